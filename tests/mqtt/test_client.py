"""What a broker, or somebody behind it, can do to the publisher; on a real Mosquitto."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from rigs.broker import Broker
from rigs.mqtt_client import Subscriber, properties_of
from rigs.needs import needs_broker
from rigs.publishing import add, running
from rigs.waiting import PATIENCE_S, until

from appliance.config import StoreSettings
from appliance.mqtt.client import RECEIVED_WAITING, ReceivedMessage, ReceivedQueue
from appliance.mqtt.commands import BURST, Expect, Subscription, subscriptions
from appliance.mqtt.connection import DELAYS
from appliance.mqtt.publisher import Publisher
from appliance.records import OutgoingMessage
from appliance.store.store import Store
from appliance.system import Closing

pytestmark = needs_broker


class Switch:
    """A mute that notes how it was turned."""

    def __init__(self) -> None:
        self.turned: list[bool] = []
        self.ends: list[str] = []

    def set(self, on: bool, who: str = "", end: str = "") -> None:
        if end not in ("", "30m"):
            raise ValueError("expected 30m")
        self.turned.append(on)
        self.ends.append(end)


class Asker(Closing):
    """A client of the house that asks and gets answers."""

    def __init__(self, port: int, name: str = "asker") -> None:
        self.answers: list[tuple[str, dict[str, Any], bytes | None]] = []
        self._client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTv5)
        self._client.on_message = self._heard
        subscribed = threading.Event()
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.on_connect = lambda c, *_: c.subscribe("roomscribe/kitchen/response/#", 1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert subscribed.wait(PATIENCE_S)

    def ask(
        self,
        request: object,
        response: str | None = "roomscribe/kitchen/response/asker",
        correlation: bytes = b"\x00one",
    ) -> tuple[str, dict[str, Any], bytes | None]:
        """Topic, payload and correlation data of the answer."""
        before = len(self.answers)
        self.send(request, response, correlation)
        until(lambda: len(self.answers) > before)
        return self.answers[-1]

    def send(
        self,
        request: object,
        response: str | None = None,
        correlation: bytes = b"",
        *,
        wait: bool = True,
    ) -> None:
        """Asks, and does not wait for an answer; with `wait` until the broker has the request."""
        properties = properties_of(PacketTypes.PUBLISH)
        if response:
            properties.ResponseTopic = response
            properties.CorrelationData = correlation
        payload = request if isinstance(request, bytes) else json.dumps(request).encode()
        topic = "roomscribe/kitchen/command/expect"
        sent = self._client.publish(topic, payload, int(wait), properties=properties)
        if wait:
            sent.wait_for_publish(5)

    def publish(self, name: str, payload: bytes, *, retain: bool = False) -> None:
        """Any message on one of the node's topics."""
        topic = f"roomscribe/kitchen/{name}"
        self._client.publish(topic, payload, 1, retain).wait_for_publish(5)

    def _heard(self, _client: Client, _data: Any, message: Any) -> None:
        correlation = getattr(message.properties, "CorrelationData", None)
        self.answers.append((message.topic, json.loads(message.payload), correlation))

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


class House:
    """A publisher that obeys, its broker and who asks it."""

    def __init__(self, broker: Broker, store: Store, switch: Switch, asker: Asker) -> None:
        self.broker, self.store, self.switch, self.asker = broker, store, switch, asker
        self.publisher: Publisher

    def send(self, answer: OutgoingMessage) -> None:
        self.publisher.live.on_answer(answer)

    def expect(
        self, request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], object]
    ) -> None:
        """Answer at once."""
        if "sentences" not in request:
            raise ValueError("expected sentences")
        answer({"text": request["sentences"][0]})


def handlers(switch: Switch, expect: Expect = lambda *_: None) -> Mapping[str, Subscription]:
    """The commands of a publisher that sends no late answer."""
    return subscriptions("kitchen", switch.set, expect, lambda _: None)


@pytest.fixture
def house(store: Store) -> Iterator[House]:
    switch = Switch()
    with Broker() as broker, Asker(broker.port) as asker:
        one = House(broker, store, switch, asker)
        wanted = subscriptions("kitchen", switch.set, one.expect, one.send)
        with running(broker.settings, store, subscriptions=wanted) as one.publisher:
            until(lambda: "kitchen/command/expect" in broker.log())
            yield one


MALFORMED: list[tuple[object, str]] = [
    (b"\xff\xfe{", "expected a JSON object"),
    (b"[" * 1000, "expected a JSON object"),
    (b"{" + b" " * 20_000 + b"}", "expected at most 16384 bytes"),
    ([], "expected a JSON object"),
    ({}, "expected sentences"),
]


def test_a_malformed_request_gets_an_error_and_the_next_one_an_answer(house: House) -> None:
    for request, expected in MALFORMED:
        _, answer, correlation = house.asker.ask(request)
        assert correlation == b"\x00one"
        assert answer["status"] == "error"
        assert expected in answer["error"], request
    for response in ("roomscribe/kitchen/response/asker", None):
        topic, answer, _ = house.asker.ask({"sentences": ["yes"]}, response)
        assert topic == (response or "roomscribe/kitchen/response")
        assert (answer["status"], answer["text"]) == ("ok", "yes")


def test_an_answer_goes_nowhere_but_below_our_own_response_topic(house: House) -> None:
    for topic in (
        "zigbee2mqtt/lock/set",
        "roomscribe/kitchen/mute/set",
        "roomscribe/kitchen/responses",
        "roomscribe/kitchen/response/../x",
        "roomscribe/hall/response/x",
    ):
        where, answer, _ = house.asker.ask({"sentences": ["yes"]}, topic)
        assert where == "roomscribe/kitchen/response"
        assert "expected a response topic below roomscribe/kitchen/response" in answer["error"]
    time.sleep(0.2)
    assert house.switch.turned == []


def test_a_flood_of_requests_is_not_answered_for_ever(house: House) -> None:
    for _ in range(2 * BURST):
        house.asker.send({})
    time.sleep(1)
    assert BURST <= len(house.asker.answers) < 1.5 * BURST


def test_every_mute_is_obeyed_in_a_flood_of_requests(store: Store) -> None:
    switch, handled = Switch(), 0

    def work(request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], object]) -> None:
        nonlocal handled
        assert request["sentences"] and callable(answer)
        handled += 1
        begun_s = time.thread_time()
        while time.thread_time() - begun_s < 0.05:
            pass

    with Broker() as broker, Asker(broker.port) as asker, Asker(broker.port, "rude") as rude:
        over = threading.Event()
        sent = 0

        def flood() -> None:
            nonlocal sent
            while not over.wait(1 / 600):
                rude.send({"sentences": ["yes"]}, wait=False)
                sent += 1

        def more_than(count: int) -> Callable[[], bool]:
            return lambda: sent > count

        with running(broker.settings, store, subscriptions=handlers(switch, work)):
            until(lambda: "kitchen/command/expect" in broker.log())
            thread = threading.Thread(target=flood, daemon=True)
            thread.start()
            until(lambda: sent > RECEIVED_WAITING)
            for _ in range(8):
                for payload in (b"ON", b"OFF"):
                    asker.publish("mute/set", payload)
                    until(more_than(sent + 50))
            until(lambda: len(switch.turned) >= 16)
            over.set()
            thread.join(PATIENCE_S)
        assert switch.turned == [True, False] * 8
        assert handled < sent / 10


def test_mutes_go_first_and_no_kind_of_message_pushes_another_out() -> None:
    inbox = ReceivedQueue(3)
    topics = ("x/y/claim", "x/y/mute/set", "x/z/claim", *["x/y/command/expect"] * 5, "x/y/mute/set")
    for number, topic in enumerate(topics):
        inbox.put(ReceivedMessage(topic, b"%d" % number, retained=False))
    assert len(inbox) == 7
    first = [inbox.take(urgent=True) for _ in range(3)]
    rest = [inbox.take() for _ in range(6)]
    assert [one and one.payload for one in first] == [b"1", b"8", None]
    assert [one and one.payload for one in rest] == [b"0", b"2", b"5", b"6", b"7", None]


def test_a_mute_is_obeyed_while_the_store_fails(store: Store) -> None:
    switch = Switch()
    with Broker() as broker, Asker(broker.port) as asker:
        wanted = handlers(switch)
        slow = replace(DELAYS, store_s=3600.0)
        with running(broker.settings, store, subscriptions=wanted, delays=slow) as publisher:
            until(lambda: "kitchen/command/expect" in broker.log())
            store.close()
            publisher.on_change()
            until(publisher.reasons)
            asker.publish("mute/set", b"ON")
            until(lambda: switch.turned == [True])


def test_the_answer_follows_when_somebody_has_spoken() -> None:
    later: list[Callable[[Mapping[str, Any]], object]] = []
    sent: list[OutgoingMessage] = []
    handle = subscriptions(
        "kitchen", Switch().set, lambda _, answer: later.append(answer), sent.append
    )["command/expect"]
    topic = "roomscribe/kitchen/command/expect"
    request = ReceivedMessage(topic, b'{"sentences": ["yes"]}', False, correlation=b"7")
    assert handle(request) is None
    assert sent == []
    later[0]({"text": "yes"})
    assert (sent[0].topic, sent[0].correlation) == ("roomscribe/kitchen/response", b"7")
    assert json.loads(sent[0].payload)["text"] == "yes"


def test_mute_set_obeys_common_words_mutes_in_doubt_and_takes_nothing_retained(
    house: House,
) -> None:
    for payload in (
        b"",
        b"TOGGLE",
        b"\xff",
        b"ON" * 1000,
        b"30m",
        b"OFF 30m",
        b'{"a": "ON"}',
        b"[1]",
    ):
        house.asker.publish("mute/set", payload)
    house.asker.publish("mute/set", b"ON", retain=True)
    house.asker.publish("mute/set", b"", retain=True)
    obeyed = {
        b"ON 30m": (True, "30m"), b"OFF": (False, ""), b"on\n": (True, ""), b"0": (False, ""),
        b"true": (True, ""), b'{"state": "OFF"}': (False, ""), b"ON 5": (True, ""),
        b" Off ": (False, ""), b'"ON"': (True, ""), b"no": (False, ""),
        b'{"state": "ON", "transition": 1}': (True, ""), b'{"STATE": "on 30m"}': (True, "30m"),
        b"Yes": (True, ""), b'{"value": false}': (False, ""), b'{"mute": true}': (True, ""),
        b"1.0": (True, ""), b'{"state": 0}': (False, ""), b'"muted"': (True, ""),
        b"ON \xff": (True, ""),
    }  # fmt: skip
    for payload in obeyed:
        house.asker.publish("mute/set", payload)
    until(lambda: len(house.switch.turned) == 1 + len(obeyed))
    # to a client that is subscribed a retained message comes like any other
    told = list(zip(house.switch.turned, house.switch.ends, strict=True))
    assert told == [(True, ""), *obeyed.values()]
    until(lambda: "muted without an end" in str(house.publisher.reasons(waits=True)))
    house.asker.publish("mute/set", b"OFF")
    until(lambda: "mute/set" not in str(house.publisher.reasons()))


def test_no_message_ends_the_publisher_whatever_its_handler_raises(store: Store) -> None:
    handled: list[bytes] = []

    def fail(message: ReceivedMessage) -> None:
        handled.append(message.payload)
        raise RecursionError("maximum recursion depth exceeded")

    with Broker() as broker, Asker(broker.port) as asker:

        def is_handled_again() -> bool:
            asker.publish("mute/set", b"ON")
            return len(handled) > 1

        with running(broker.settings, store, subscriptions={"mute/set": fail}):
            until(is_handled_again)


def test_what_is_retained_on_the_topics_of_commands_does_nothing(store: Store) -> None:
    switch = Switch()
    with Broker() as broker, Asker(broker.port) as asker:
        asker.publish("mute/set", b"ON", retain=True)
        asker.publish("command/expect", b"\xff" * 5000, retain=True)
        with running(broker.settings, store, subscriptions=handlers(switch)) as publisher:
            until(lambda: publisher.connection.is_connected)
            asker.publish("mute/set", b"OFF")
            until(lambda: switch.turned)
        assert switch.turned == [False]
        assert asker.answers == []


def test_a_command_of_a_megabyte_disturbs_nothing(store: Store) -> None:
    switch = Switch()
    with Broker() as broker, Asker(broker.port) as asker, Subscriber(broker.port) as heard:
        with running(broker.settings, store, subscriptions=handlers(switch)) as publisher:
            until(lambda: "kitchen/command/expect" in broker.log())
            for name in ("mute/set", "command/expect"):
                asker.publish(name, b"x" * 1_000_000)
            asker.publish("mute/set", b"ON")
            until(lambda: switch.turned == [True])
            add(store, publisher, "as ever")
            until(lambda: heard.texts() == ["as ever"])
            assert publisher.connection.is_connected
        until(lambda: heard.payloads("availability") == [b"online", b"offline"])
    assert asker.answers == []


@needs_broker
def test_what_is_longer_than_the_broker_accepts_is_left_out_and_named(store: Store) -> None:
    with (
        Broker(config="max_packet_size 1500") as broker,
        Subscriber(broker.port) as house,
        running(broker.settings, store) as publisher,
    ):
        add(store, publisher, "told at once")
        until(lambda: house.payloads("transcript"))
        (reason,) = publisher.reasons()
        assert publisher.connection.is_connected
    assert "homeassistant/device/" in reason and "max_packet_size" in reason


def test_one_topic_that_the_access_list_refuses_is_named_and_the_rest_works(
    store: Store, tmp_path: Path
) -> None:
    allowed = ("availability", "transcript", "mute", "microphone", "speech")
    rules = tmp_path / "acl"
    rules.write_text(
        "".join(f"topic write roomscribe/kitchen/{name}\n" for name in allowed)
        + "topic write homeassistant/device/kitchen/config\n"
        + "user listener\ntopic read #\n",
        encoding="utf-8",
    )
    with (
        Broker(config=f"acl_file {rules}") as broker,
        Subscriber(broker.port, "listener") as heard,
        running(broker.settings, store) as publisher,
    ):
        add(store, publisher, "told all the same")
        until(heard.events)
        until(publisher.reasons)
        (why,) = publisher.reasons()
        assert "does not let us write to some topics" in why
        assert why.endswith(": roomscribe/kitchen/state")
        until(lambda: store.depth() == 0)


def test_two_appliances_with_one_client_id_say_so_and_leave_each_other_alone(
    store: Store, tmp_path: Path
) -> None:
    with (
        Broker() as broker,
        Store.open(StoreSettings(path=str(tmp_path / "other"))) as other,
        running(broker.settings, store) as one,
        running(broker.settings, other) as two,
    ):

        def reasons() -> str:
            return "".join(one.reasons() + two.reasons())

        # Mosquitto 2.1 says it, of 2.0 it is guessed
        until(lambda: "another client uses the client id" in reasons())
        count = broker.log().count("New client connected")
        assert count < 10
        time.sleep(3)
        assert broker.log().count("New client connected") == count
        assert "'roomscribe-kitchen'" in reasons()


def test_state_reports_a_second_appliance_of_the_same_node_while_it_may_return(
    store: Store, tmp_path: Path
) -> None:
    hasty = replace(DELAYS, refusal_s=2.0)
    with (
        Broker() as broker,
        Subscriber(broker.port) as heard,
        Store.open(StoreSettings(path=str(tmp_path / "other"))) as other,
    ):

        def told() -> bool:
            reasons = heard.state()["reasons"] if heard.payloads("state") else []
            return any("another client uses the client id" in reason for reason in reasons)

        with running(broker.settings, store, delays=hasty) as one:
            with running(broker.settings, other, delays=hasty):
                until(told)
            until(lambda: one.connection.is_connected)
            until(lambda: not told())
            assert heard.state()["status"] == "running"
