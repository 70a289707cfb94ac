"""The broker's checks against a real Mosquitto, beside a daemon that notices nothing."""

import functools
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rigs.broker import Broker
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker, unless
from rigs.publishing import running
from rigs.waiting import until

from appliance.cli.doctor import mqtt as doctor, mqtt as publishing
from appliance.cli.doctor.daemon import DaemonProcess, is_hidden, with_credentials
from appliance.cli.doctor.main import error_outcome
from appliance.cli.doctor.outcome import Outcome, Surroundings
from appliance.config import (
    ApplianceSettings,
    HomeAssistantSettings,
    MqttSettings,
    Settings,
    StoreSettings,
)
from appliance.errors import BrokerError
from appliance.mqtt.probe import BrokerProbe
from appliance.store.store import Store

pytestmark = needs_broker

PASSWORD = "correct horse"
PLUGIN = next(Path("/usr/lib").glob("*/mosquitto_dynamic_security.so"), None)


@pytest.fixture(scope="module")
def open_broker() -> Iterator[Broker]:
    """Lets anybody in."""
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Users `whole` (all rights), `writer` (may only write below its node) and `nobody` (none)."""
    rights = tmp_path_factory.mktemp("rights") / "acl"
    rights.write_text(
        "user whole\ntopic readwrite roomscribe/kitchen/#\n"
        "user writer\ntopic write roomscribe/kitchen/#\n",
        encoding="ascii",
    )
    rights.chmod(0o600)
    users = {"whole": PASSWORD, "writer": PASSWORD, "nobody": PASSWORD}
    with Broker(users, f"acl_file {rights}") as broker:
        yield broker


def around(broker: Broker, **mqtt: object) -> Surroundings:
    settings = Settings(
        appliance=ApplianceSettings(node="kitchen"),
        mqtt=MqttSettings(host=broker.host, port=broker.port, **mqtt),  # type: ignore[arg-type]
    )
    return Surroundings(settings)


def as_user(broker: Broker, folder: Path, user: str, password: str = PASSWORD) -> Surroundings:
    file = folder / "password"
    file.write_text(password + "\n", encoding="utf-8")
    return around(broker, username=user, password_file=str(file))


def refusal(look: object, where: Surroundings) -> Outcome:
    """The outcome of the error that a check raises."""
    with pytest.raises(BrokerError) as caught:
        look(where)  # type: ignore[operator]
    return error_outcome(caught.value, "")


def test_a_broker_that_lets_us_in_brings_our_message_back(open_broker: Broker) -> None:
    found = doctor.broker(around(open_broker))
    assert found.status == "ok"
    assert ": a message came back after " in found.found
    assert "no access list keeps it from other rooms' topics" in found.found


@pytest.mark.parametrize("key", ["password_file", "token_file"])
def test_a_secret_that_every_user_can_read_is_a_fault(tmp_path: Path, key: str) -> None:
    file = tmp_path / "secret"
    file.write_text("word\n", encoding="utf-8")
    settings = Settings()
    if key == "token_file":
        settings = replace(settings, homeassistant=HomeAssistantSettings(token_file=str(file)))
    else:
        mqtt = MqttSettings(**{key: str(file)})  # type: ignore[arg-type]
        settings = replace(settings, mqtt=mqtt)
    tmp_path.chmod(0o755)
    file.chmod(0o644)
    found = doctor.secret_files(Surroundings(settings))
    assert (found.status, found.found) == ("failed", f"every user can read {file}")
    assert f"chmod o= {file}" in found.fix
    file.chmod(0o640)
    assert doctor.secret_files(Surroundings(settings)).status == "ok"
    file.chmod(0o644)
    tmp_path.chmod(0o700)
    assert doctor.secret_files(Surroundings(settings)).status == "ok"
    assert doctor.secret_files(Surroundings(Settings())).status == "skipped"


def test_an_unreachable_broker_fails_with_its_address() -> None:
    with Broker(start=False) as broker:
        found = refusal(doctor.broker, around(broker))
    assert f"broker 127.0.0.1:{broker.port} does not answer" in found.found
    assert "mqtt.host" in found.fix


def test_a_broker_that_hangs_is_given_up() -> None:
    soon = functools.partial(doctor.broker, connect_s=0.5)
    with Broker() as broker:
        broker.signal(signal.SIGSTOP)
        try:
            found = refusal(soon, around(broker))
        finally:
            broker.signal(signal.SIGCONT)
    assert "no answer within 0.5 s" in found.found


def test_a_wrong_password_fails_and_is_not_printed(strict_broker: Broker, tmp_path: Path) -> None:
    found = refusal(doctor.broker, as_user(strict_broker, tmp_path, "whole", "wrong"))
    assert "refuses user 'whole'" in found.found
    assert "mqtt.password_file" in found.fix
    assert "wrong" not in found.found + found.fix
    assert doctor.broker(as_user(strict_broker, tmp_path, "whole")).status == "ok"


def test_a_missing_user_name_differs_from_a_wrong_one(strict_broker: Broker) -> None:
    found = refusal(doctor.broker, around(strict_broker))
    assert "a client without mqtt.username" in found.found


def test_missing_rights_fail(strict_broker: Broker, tmp_path: Path) -> None:
    whole = doctor.broker(as_user(strict_broker, tmp_path, "whole"))
    assert (whole.status, "access list" in whole.found) == ("ok", False)
    for user, fault in (("nobody", "does not allow"), ("writer", "did not come back")):
        found = doctor.broker(as_user(strict_broker, tmp_path, user))
        assert found.status == "failed"
        assert fault in found.found
        assert found.fix.startswith(f"allow '{user}' to read and write roomscribe/kitchen/doctor")


@unless("" if PLUGIN else "not installed: mosquitto_dynamic_security.so (apt install mosquitto)")
def test_a_refused_subscription_fails(tmp_path: Path) -> None:
    access = {"publishClientSend": True, "publishClientReceive": True, "subscribe": False}
    rules = {"defaultACLAccess": access, "clients": [], "groups": [], "roles": []}
    (tmp_path / "rules.json").write_text(json.dumps(rules), encoding="ascii")
    plugin = f"plugin {PLUGIN}\nplugin_opt_config_file {tmp_path}/rules.json"
    with Broker(config=plugin) as broker:
        found = doctor.broker(around(broker))
    assert found.status == "failed"
    assert "does not allow reading roomscribe/kitchen/doctor" in found.found


def test_without_mqtt_the_checks_are_skipped() -> None:
    off = Surroundings(Settings(mqtt=MqttSettings(enabled=False, host="nowhere.invalid")))
    assert doctor.broker(off).status == "skipped"


def test_a_password_that_is_not_for_this_user_is_not_missed(
    strict_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_file = as_user(strict_broker, tmp_path, "whole")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert doctor.broker(with_file).status == "ok"
    service = replace(
        around(strict_broker, username="whole"), daemon=DaemonProcess(1, service=True)
    )
    assert doctor.broker(service).status == "skipped"
    assert "sudo roomscribe doctor" in doctor.broker(service).found
    monkeypatch.setattr(os, "access", lambda _file, _mode: False)
    assert doctor.broker(with_file).status == "skipped"


def test_a_credential_that_this_user_may_not_read_hides_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, store, none = "roomscribe.mqtt-password", tmp_path / "store", tmp_path / "none"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    store.mkdir()
    (store / name).write_text("x", encoding="utf-8")
    assert not is_hidden("", name, None, (none, store))
    monkeypatch.setattr(os, "access", lambda _file, _mode: False)
    assert is_hidden("", name, None, (none, store))


def test_the_services_credentials_are_those_of_a_command(
    strict_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, encrypted = tmp_path / "plain", tmp_path / "encrypted"
    plain.mkdir()
    encrypted.mkdir()
    wanted = around(strict_broker, username="whole").settings.mqtt
    assert with_credentials(wanted, plain, encrypted) == wanted

    (encrypted / "roomscribe.mqtt-password").write_text("secret", encoding="utf-8")
    creds = tmp_path / "systemd-creds"
    expected = f"decrypt --name=roomscribe.mqtt-password {encrypted}/roomscribe.mqtt-password -"
    creds.write_text(f'#!/bin/sh\n[ "$*" = "{expected}" ] && printf "{PASSWORD}"\n', "utf-8")
    creds.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for _ in range(2):  # what is in memory can be read again
        with BrokerProbe(with_credentials(wanted, plain, encrypted), "kitchen"):
            pass
    creds.write_text("#!/bin/sh\nexit 1\n", "utf-8")
    assert with_credentials(wanted, plain, encrypted) == wanted

    (plain / "roomscribe.mqtt-password").write_text(PASSWORD, encoding="utf-8")
    found = with_credentials(wanted, plain, encrypted)
    assert found.password_file == str(plain / "roomscribe.mqtt-password")
    own = replace(wanted, password_file="own")
    assert with_credentials(own, plain, encrypted) == own


def test_the_daemon_beside_it_notices_nothing(tmp_path: Path) -> None:
    with Broker() as broker, Store.open(StoreSettings(path=str(tmp_path))) as store:
        where = around(broker)
        with Subscriber(broker.port) as listener, running(where.settings.mqtt, store):
            until(lambda: listener.payloads("availability") == [b"online"])
            assert doctor.broker(where).status == "ok"
            assert listener.payloads("availability") == [b"online"]
        assert broker.log().count("as roomscribe-kitchen (") == 1


STATE = {
    "status": "running", "reasons": [], "encoder": "cpu", "model": "tiny.en", "version": "0.1.0",
    "queue_depth": 0, "outbox_depth": 0,
}  # fmt: skip


def test_a_daemon_that_does_not_run_is_skipped(open_broker: Broker) -> None:
    assert publishing.state(around(open_broker)).found == "the daemon does not run"


def test_a_degraded_daemon_is_a_fault_with_its_reasons() -> None:
    reasons = ["microphone gone; plug it in"]
    found = publishing.judge_state(STATE | {"status": "degraded", "reasons": reasons})
    assert found.status == "failed"
    assert "microphone gone; plug it in" in found.found


def test_the_other_rooms_and_the_way_to_assist_are_listed() -> None:
    alone = publishing.judge_state(STATE)
    assert alone.found.startswith("running, encoder cpu, model tiny.en")
    assert "rooms" not in alone.found
    together = publishing.judge_state(STATE | {"rooms": ["bath", "hall"]})
    assert together.status == "ok"
    assert together.found == f"{alone.found}, other rooms: bath hall"
    talking = {"way": "sound", "home": None, "listening": False}
    found = publishing.judge_state(STATE | {"assist": talking}).found
    assert found == f"{alone.found}, Assist gets sound, the satellite has no Home Assistant yet"


def test_a_unit_that_is_not_active_is_a_fault() -> None:
    facts = {"LoadState": "loaded", "ActiveState": "active", "SubState": "running"}
    assert publishing.judge_unit(facts).status == "ok"
    dead = facts | {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}
    found = publishing.judge_unit(dead)
    assert found.status == "failed"
    assert "last result: exit-code" in found.found
    assert "journalctl" in found.fix
    missing_unit = publishing.judge_unit({"LoadState": "not-found"}, running="; the daemon")
    assert missing_unit.status == "skipped"
    assert "the daemon" in missing_unit.found


def test_without_systemd_the_unit_is_skipped(tmp_path: Path) -> None:
    assert publishing.unit(replace(Surroundings(Settings()), root=tmp_path)).status == "skipped"
