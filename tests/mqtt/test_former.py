"""What a broker retains under a former name of the appliance, with a real Mosquitto."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.broker import Broker
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker
from rigs.publishing import running
from rigs.waiting import until

from appliance.config import MqttSettings, StoreSettings
from appliance.mqtt.former import MOST, STEP_S, FormerNames, Name
from appliance.mqtt.publisher import Announcement
from appliance.store.store import Store

pytestmark = needs_broker
TOPICS = ("homeassistant/#", "roomscribe/#")
OWN = {"availability", "state", "mute", "microphone"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(StoreSettings(path=str(tmp_path / "state"))) as opened:
        yield opened


def at(broker: Broker) -> MqttSettings:
    return MqttSettings(host=broker.host, port=broker.port)


def retained(broker: Broker) -> set[str]:
    """The topics on which the broker keeps a message."""
    name = f"look-{time.monotonic_ns()}"
    with Subscriber(broker.port, name=name, topics=TOPICS) as subscriber:
        time.sleep(0.3)
        return {one.topic for one in subscriber.messages if one.retain and one.payload}


def topics_of(node: str) -> set[str]:
    return {f"homeassistant/device/{node}/config", *(f"roomscribe/{node}/{n}" for n in OWN)}


def test_a_new_name_clears_what_the_broker_retains_of_the_old_one(
    tmp_path: Path, store: Store
) -> None:
    file = tmp_path / "announced.json"
    with Broker() as broker:
        with running(at(broker), store, announcement=Announcement(names_file=file)):
            until(lambda: retained(broker) >= topics_of("kitchen"))
        with running(
            at(broker), store, node="hall", announcement=Announcement(names_file=file)
        ) as publisher:
            until(lambda: retained(broker) == topics_of("hall"))
            assert publisher.status().reasons == ()
            until(lambda: [one[1] for one in json.loads(file.read_text())] == ["hall"])


def test_it_is_cleared_when_a_broker_that_was_offline_at_the_change_returns(
    tmp_path: Path, store: Store
) -> None:
    file = tmp_path / "announced.json"
    with Broker(persistent=True) as broker:
        with running(at(broker), store, announcement=Announcement(names_file=file)):
            until(lambda: retained(broker) >= topics_of("kitchen"))
        broker.stop()
        with running(at(broker), store, node="den", announcement=Announcement(names_file=file)):
            time.sleep(0.5)
        with running(at(broker), store, node="hall", announcement=Announcement(names_file=file)):
            time.sleep(0.5)
            broker.start()
            until(lambda: retained(broker) == topics_of("hall"))


def test_the_old_name_is_left_to_another_appliance_that_is_online_with_it(
    tmp_path: Path, store: Store
) -> None:
    file = tmp_path / "announced.json"
    with (
        Broker() as broker,
        Store.open(StoreSettings(path=str(tmp_path / "other"))) as others,
    ):
        with running(at(broker), store, announcement=Announcement(names_file=file)):
            until(lambda: retained(broker) >= topics_of("kitchen"))
        with (
            running(at(broker), others),
            running(at(broker), store, node="hall", announcement=Announcement(names_file=file)),
        ):
            until(lambda: retained(broker) >= topics_of("hall"))
            until(lambda: [one[1] for one in json.loads(file.read_text())] == ["hall"])
            time.sleep(STEP_S / 2)
            assert retained(broker) == topics_of("hall") | topics_of("kitchen")


def test_a_broker_that_forbids_it_is_no_trouble(tmp_path: Path, store: Store) -> None:
    file, rules = tmp_path / "announced.json", tmp_path / "acl"
    rules.write_text(
        "topic readwrite homeassistant/device/hall/config\n"
        "topic readwrite roomscribe/hall/#\ntopic read homeassistant/status\n"
    )
    with Broker(config=f"acl_file {rules}") as broker:
        file.write_text(json.dumps([[f"{broker.host}:{broker.port}", "kitchen", "homeassistant"]]))
        with running(
            at(broker), store, node="hall", announcement=Announcement(names_file=file)
        ) as publisher:
            until(lambda: [one[1] for one in json.loads(file.read_text())] == ["hall"])
            assert publisher.status().reasons == ()


@pytest.mark.parametrize("content", ["", "{", "3", '[["a", "b"]]', '[["a", "b", 3]]', "[[]]"])
def test_a_damaged_file_of_names_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    file = tmp_path / "announced.json"
    file.write_text(content)
    broker = Recorded()
    names = FormerNames(file, Name("a:1883", "hall", "homeassistant"))
    names.connected(0.0, broker)
    names.poll(10.0, broker)
    assert broker.topics == []
    assert json.loads(file.read_text()) == [["a:1883", "hall", "homeassistant"]]


def test_names_at_other_brokers_stay_known_and_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "announced.json"
    broker = Recorded()
    for number in range(MOST + 5):
        FormerNames(file, Name(f"b{number}:1883", "kitchen", "homeassistant")).connected(0, broker)
    known = json.loads(file.read_text())
    assert broker.topics == []
    assert (len(known), known[-1][0]) == (MOST, f"b{MOST + 4}:1883")


def test_another_discovery_prefix_clears_the_entities_alone(tmp_path: Path) -> None:
    file = tmp_path / "announced.json"
    broker = Recorded()
    FormerNames(file, Name("a:1883", "hall", "homeassistant")).connected(0.0, broker)
    names = FormerNames(file, Name("a:1883", "hall", "ha"))
    names.connected(0.0, broker)
    names.poll(10.0, broker)
    assert broker.topics == ["homeassistant/device/hall/config"]


class Recorded:
    """A broker that notes what it is sent."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def subscribe_retained(self, topic: str) -> None:
        raise AssertionError(topic)

    def send(self, message: object) -> int:
        self.topics.append(message.topic)  # type: ignore[attr-defined]
        return 1
