"""A broker that is chosen over the control socket is tried, and its password kept by itself."""

import json
import stat
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from rigs.broker import Broker
from rigs.controls import Appliance, appliance
from rigs.needs import needs_broker
from rigs.waiting import until

from appliance import config
from appliance.control.server import ControlError
from appliance.mqtt.credentials import read_password

pytestmark = needs_broker
WORD = "open sesame"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Appliance]:
    with appliance(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(users={"ear": WORD, "eye": "another"}) as one:
        yield one


def choose(house: Appliance, **given: object) -> Any:
    """The answer to `broker`, waited for as the server does."""
    answer = house.controls.commands["broker"](given)
    if not isinstance(answer, Future):
        return answer

    def look() -> bool:
        house.controls.poll()
        return answer.done()

    until(look)
    return answer.result()


def chosen(house: Appliance) -> config.MqttSettings:
    return config.load(house.folder / "roomscribe.toml").mqtt


def test_one_that_lets_us_in_is_kept_and_its_password_told_to_nobody(
    house: Appliance, broker: Broker
) -> None:
    place = {"host": broker.host, "port": broker.port}
    answer = choose(house, **place, username="ear", password=WORD)
    assert set(answer["changed"]) == {
        "mqtt.enabled", "mqtt.host", "mqtt.port", "mqtt.username", "mqtt.password_file",
    }  # fmt: skip
    mqtt = chosen(house)
    assert (mqtt.enabled, mqtt.host, mqtt.port, mqtt.username) == (True, *place.values(), "ear")
    assert read_password(mqtt) == WORD
    assert stat.S_IMODE(Path(mqtt.password_file).stat().st_mode) == 0o600
    assert Path(mqtt.password_file).parent == config.overlay_file(house.settings).parent
    shown = house.controls.commands["settings"]({})
    assert isinstance(shown, dict)
    assert shown["broker"] == {**place, "username": "ear", "tls": False, "password": True}
    assert WORD not in json.dumps([answer, shown])
    assert WORD not in config.overlay_file(house.settings).read_text("utf-8")
    assert house.reloads == 1
    # the same place and user: the password that is known
    assert choose(house, **place, username="ear") == {"changed": []}
    # another user, and the old password is gone
    before = Path(mqtt.password_file)
    assert choose(house, username="eye", password="another")["changed"]
    assert not before.exists()
    assert read_password(chosen(house)) == "another"


def test_other_settings_are_kept_together_with_the_broker_or_not_at_all(
    house: Appliance, broker: Broker
) -> None:
    login = {"host": broker.host, "port": broker.port, "username": "ear", "password": WORD}
    wrong = choose(house, **login, set={"store.retention_days": -1, "homeassistant.area": "Hall"})
    assert list(wrong["mistakes"]) == ["store.retention_days"]
    wrong = choose(house, **login | {"port": 1}, set={"homeassistant.area": "Hall"})
    assert list(wrong["mistakes"]) == ["mqtt.host"]
    assert not config.overlay_file(house.settings).exists()
    with pytest.raises(ControlError, match="set: expected keys with values"):
        choose(house, **login, set=[])
    kept = choose(house, **login, set={"homeassistant.area": "Hall", "mqtt.partials": True})
    assert {"homeassistant.area", "mqtt.partials", "mqtt.username"} <= set(kept["changed"])
    settings = config.load(house.folder / "roomscribe.toml")
    assert (settings.homeassistant.area, settings.mqtt.partials) == ("Hall", True)
    assert house.reloads == 1


def test_a_known_password_goes_to_no_other_broker(house: Appliance, broker: Broker) -> None:
    place = {"host": broker.host, "port": broker.port}
    assert choose(house, **place, username="ear", password=WORD)["changed"]
    for other in ({"host": "evil.example"}, {"port": 1}, {"username": "eye"}):
        said = choose(house, **other)["mistakes"]
        assert said == {
            "mqtt.password": "Enter the password again, because the broker or its user has changed."
        }
    assert chosen(house).username == "ear"


def test_one_that_does_not_let_us_in_changes_nothing(house: Appliance, broker: Broker) -> None:
    place = {"host": broker.host, "port": broker.port}
    wrong = choose(house, **place, username="ear", password="wrong word")["mistakes"]
    assert "refuses user 'ear'" in wrong["mqtt.password"]
    assert "wrong word" not in str(wrong)
    assert "mqtt.username" in choose(house, **place)["mistakes"]
    away = choose(house, host=broker.host, port=1)["mistakes"]
    assert "does not answer" in away["mqtt.host"]
    no_tls = choose(house, **place, tls=True)["mistakes"]
    assert len(no_tls) == 1
    assert not config.overlay_file(house.settings).exists()
    assert not list(config.overlay_file(house.settings).parent.glob("mqtt-password*"))
    assert house.reloads == 0


def test_a_host_with_tls_in_its_name_is_blamed_at_the_host(house: Appliance) -> None:
    assert list(choose(house, host="mqtt-tls.invalid")["mistakes"]) == ["mqtt.host"]


@pytest.mark.parametrize(
    ("given", "name", "mistake"),
    [
        ({"host": "mqtt://a/"}, "mqtt.host", "expected a host name"),
        ({"host": 7}, "mqtt.host", "expected a text"),
        ({"port": 0}, "mqtt.port", "expected 1 to 65535"),
        ({"port": "1883"}, "mqtt.port", "expected a whole number"),
        ({"tls": "yes"}, "mqtt.tls", "expected true or false"),
        ({"username": "a\nb", "password": "x"}, "mqtt.username", "without control characters"),
        ({"password": "x"}, "mqtt.username", "expected a user name beside the password"),
        ({"username": "a", "password": ""}, "mqtt.password", "expected a line of 1 to"),
        ({"username": "a", "password": "b\nc"}, "mqtt.password", "expected a line of 1 to"),
        ({"username": "a", "password": 7}, "mqtt.password", "expected a line of 1 to"),
        ({"username": "a", "password": "\ud800"}, "mqtt.password", "expected a line of 1 to"),
    ],
)
def test_a_mistake_is_told_by_its_field_before_anything_is_tried(
    house: Appliance, given: dict[str, object], name: str, mistake: str
) -> None:
    answer = house.controls.commands["broker"](given)
    assert isinstance(answer, dict)
    assert mistake in answer["mistakes"][name]


def test_two_at_once_are_not_tried(house: Appliance) -> None:
    house.controls.commands["broker"]({"host": "192.0.2.1"})
    with pytest.raises(ControlError, match="another broker is being tried"):
        house.controls.commands["broker"]({"host": "192.0.2.2"})


def test_what_a_broker_without_users_needs_no_more_is_taken_back(
    house: Appliance, broker: Broker
) -> None:
    place = {"host": broker.host, "port": broker.port}
    assert choose(house, **place, username="ear", password=WORD)["changed"]
    with Broker() as open_to_all:
        assert choose(house, host=open_to_all.host, port=open_to_all.port, username="")["changed"]
    assert (chosen(house).username, chosen(house).password_file) == ("", "")
    assert not list(config.overlay_file(house.settings).parent.glob("mqtt-password*"))
