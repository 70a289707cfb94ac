"""Brokers and networks that go wrong without saying so: all is noticed, nothing is lost."""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from rigs.broker import Broker
from rigs.mqtt_client import Subscriber
from rigs.needs import needs_broker
from rigs.old_broker import OldBroker
from rigs.proxy import TRANSCRIPT_TOPIC, Lossy, Proxy
from rigs.publishing import add, running
from rigs.waiting import PATIENCE_S, until

from appliance.config import MqttSettings
from appliance.mqtt.connection import Delays
from appliance.mqtt.probe import BrokerProbe
from appliance.store.store import Store

SOON = Delays(attempt_s=1.0, refusal_s=2.0, answer_s=1.0, ping_s=2)
WELCOME = b"\x20\x03\x00\x00\x00"
"""CONNACK of MQTT 5."""


@contextmanager
def impostor(serve: Callable[[socket.socket], None]) -> Iterator[tuple[int, list[float]]]:
    """A server in a broker's place: its port, and when it was connected to."""
    moments: list[float] = []
    over = threading.Event()
    held: list[socket.socket] = []

    def accept(server: socket.socket) -> None:
        while not over.is_set():
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            held.append(connection)
            connection.settimeout(0.5)
            with suppress(OSError):
                if connection.recv(1000):  # else it only looked whether we are there
                    moments.append(time.monotonic())
                    serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        thread = threading.Thread(target=accept, args=(server,), daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1], moments
        finally:
            over.set()
            thread.join(PATIENCE_S)
            for connection in held:
                connection.close()


def close_at_once(connection: socket.socket) -> None:
    connection.close()


def say_nothing(connection: socket.socket) -> None:
    """Takes the CONNECT and leaves it unanswered."""


def half_a_welcome(connection: socket.socket) -> None:
    connection.sendall(WELCOME[:3])


@pytest.mark.parametrize("serve", [say_nothing, half_a_welcome, close_at_once])
def test_a_broker_that_does_not_answer_is_offline_and_tried_again(
    store: Store, serve: Callable[[socket.socket], None]
) -> None:
    with (
        impostor(serve) as (port, moments),
        running(MqttSettings(host="127.0.0.1", port=port), store, delays=SOON) as publisher,
    ):
        add(store, publisher, "kept")
        until(lambda: len(moments) >= 3)
        assert "is offline; transcripts wait in the log" in publisher.reasons()[0]
        assert not publisher.connection.is_connected
    assert store.depth() == 1


@needs_broker
def test_a_connection_that_died_without_a_word_is_given_up_and_nothing_is_lost(
    store: Store,
) -> None:
    with Broker() as broker, Subscriber(broker.port) as subscriber, Proxy(broker.port) as proxy:
        here = MqttSettings(host="127.0.0.1", port=proxy.port)
        with running(here, store, delays=SOON) as publisher:
            until(lambda: publisher.connection.is_connected)
            add(store, publisher, "before")
            until(lambda: store.depth() == 0)
            proxy.freeze()
            add(store, publisher, *(f"during {number}" for number in range(30)))
            until(lambda: "messages stay unacknowledged" in "".join(publisher.reasons()))
            assert store.depth() == 30
            proxy.thaw()
            until(lambda: store.depth() == 0)
            add(store, publisher, "after")
            until(lambda: len(subscriber.events()) == 32)
        during = [f"during {number}" for number in range(30)]
        assert subscriber.texts() == ["before", *during, "after"]
        assert [event["late"] for event in subscriber.events()] == [False, *[True] * 30, False]


@needs_broker
def test_what_was_taken_and_not_acknowledged_comes_again_under_its_id(store: Store) -> None:
    """The broker has it, the acknowledgement is lost."""
    with Broker() as broker, Subscriber(broker.port) as subscriber:
        deaf = OneWay(broker.port)
        with (
            deaf,
            running(
                MqttSettings(host="127.0.0.1", port=deaf.port), store, delays=SOON
            ) as publisher,
        ):
            until(lambda: publisher.connection.is_connected)
            deaf.deaf = True
            add(store, publisher, "one")
            until(subscriber.events)
            until(publisher.reasons)
            deaf.deaf = False
            until(lambda: store.depth() == 0)
            add(store, publisher, "two")
            until(lambda: len(subscriber.events()) == 3)
        assert subscriber.texts() == ["one", "one", "two"]
        first, again, other = subscriber.events()
        assert first["id"] == again["id"] != other["id"]
        assert (first["seq"], again["seq"]) == (1, 1)
        assert (first["late"], again["late"]) == (False, True)


class OneWay(Proxy):
    """A proxy that, while `deaf`, forwards to the broker and nothing back."""

    deaf = False

    def _pass_on(self, connection: socket.socket) -> None:
        if self.deaf and connection.getpeername()[1] == self._broker_port:
            connection.recv(65536)
        else:
            super()._pass_on(connection)


class Refuser(Lossy):
    """A proxy that answers a transcript of "bad" with a PUBACK of that code; 0: it hangs up."""

    def __init__(self, broker_port: int, code: int) -> None:
        super().__init__(
            broker_port, lambda packet, _: TRANSCRIPT_TOPIC in packet and b'"bad"' in packet
        )
        self.code = code

    def lose(self, packet: bytes, connection: socket.socket) -> None:
        at = packet.index(TRANSCRIPT_TOPIC) + len(TRANSCRIPT_TOPIC)
        if self.code:
            connection.sendall(b"\x40\x04" + packet[at : at + 2] + bytes([self.code, 0]))
        else:
            self.cut()


UNSPECIFIED, QUOTA, PAYLOAD_INVALID, HANGS_UP = 128, 151, 153, 0


@needs_broker
@pytest.mark.parametrize("code", [UNSPECIFIED, PAYLOAD_INVALID, HANGS_UP, QUOTA])
def test_a_transcript_that_is_refused_alone_comes_after_the_others(
    store: Store, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    delays = replace(SOON, outages_s=(0.1,), again_s=4.0)
    before = ["first"] if code == QUOTA else ["first", "next", "last"]
    with (
        Broker() as broker,
        Subscriber(broker.port) as subscriber,
        Refuser(broker.port, code) as refuser,
        running(MqttSettings(host="127.0.0.1", port=refuser.port), store, delays=delays) as p,
    ):
        until(lambda: p.connection.is_connected)
        add(store, p, "first", "bad", "next", "last")
        until(lambda: subscriber.texts() == before)
        until(lambda: p.outbox.depth() == 4 - len(before))
        until(lambda: (store.cursor(), store.depth()) == (1, 3))  # a restart would send it again
        refused = refuser.lost
        until(lambda: refuser.lost > refused)
        refuser._loses = lambda *_: False
        until(lambda: store.depth() == 0)
        until(lambda: not p.reasons())
    assert subscriber.texts() == [*before, *(x for x in ("bad", "next", "last") if x not in before)]
    assert code == QUOTA or subscriber.events()[3]["late"]
    assert json.loads(subscriber.payloads("last")[-1])["text"] == "last"
    named = sum("refuses transcript 2" in one.message for one in caplog.records)
    assert named == (code != QUOTA)


@pytest.mark.parametrize(
    "packets",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00" * 64,
        b"\xff" * 64,
        b"\x20\xff\xff\xff\xff\x7f",
        WELCOME + b"\xf0\x00",
        WELCOME + b"\x30\x05\x00\x02\xff\xfe\x00",
        WELCOME + b"\x40\x02\x00",
        WELCOME + b"\x90\x04\x00\x01\x05\x11",
    ],
    ids=["http", "zeros", "ones", "length", "AUTH", "topic", "PUBACK", "SUBACK"],
)
def test_a_broker_that_talks_nonsense_is_left_and_tried_again(
    store: Store, packets: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        impostor(lambda connection: connection.sendall(packets)) as (port, moments),
        running(MqttSettings(host="127.0.0.1", port=port), store, delays=SOON) as publisher,
    ):
        add(store, publisher, "kept")
        until(lambda: len(moments) >= 2)
        until(publisher.reasons)
    assert store.depth() == 1
    assert "Traceback" not in capfd.readouterr().err


def test_a_web_server_is_told_from_a_broker(store: Store) -> None:
    page = b"HTTP/1.1 400 Bad Request\r\nServer: a\r\n\r\n" + b"Bad Request " * 20
    with (
        impostor(lambda connection: connection.sendall(page)) as (port, _),
        running(MqttSettings(host="127.0.0.1", port=port), store, delays=SOON) as publisher,
    ):
        until(publisher.reasons)
        assert "not an MQTT broker (a web server?)" in publisher.reasons()[0]


def test_a_host_name_that_is_none_is_one_line(store: Store) -> None:
    with running(MqttSettings(host="x" * 64 + ".home"), store) as publisher:
        until(publisher.reasons)
        assert "is offline" in publisher.reasons()[0]
        assert re.search(r"Unicode\w*Error", publisher.reasons()[0])


@pytest.mark.parametrize("manner", ["polite", "silent", "rude"])
def test_a_broker_of_mqtt_3_gets_everything_and_what_is_lost_is_named(
    store: Store, manner: str
) -> None:
    delays = Delays(attempt_s=2.0, outages_s=(0.1,))
    with (
        Broker() as broker,
        Subscriber(broker.port) as heard,
        OldBroker(broker.port, manner) as old,
    ):
        settings = MqttSettings(host="127.0.0.1", port=old.port)
        switched: list[bytes] = []
        commands = {"mute/set": lambda message: switched.append(message.payload)}
        with running(settings, store, delays=delays, subscriptions=commands) as publisher:
            until(lambda: publisher.connection.is_connected)
            add(store, publisher, "turn on the light")
            until(heard.events)
            heard.publish("roomscribe/kitchen/mute/set", b"ON")
            until(lambda: switched == [b"ON"])
            (reason,) = publisher.reasons(waits=True)
            assert "speaks MQTT 3.1.1: transcripts do not wait" in reason
            assert publisher.reasons(waits=False) == ()
            until(lambda: store.depth(store.cursor()) == 0)
            with BrokerProbe(settings, "kitchen", 2.0) as probe:
                assert probe.publish("x/y", b"1") == 0
        until(lambda: heard.payloads("availability")[-1] == b"offline")
        asked = [5, 4] if manner == "polite" else [5, 4, 5, 4]  # silence is tried twice
        assert old.versions[: len(asked)] == asked


def test_a_broker_that_was_not_up_yet_is_not_taken_for_an_old_one(store: Store) -> None:
    """A proxy before a broker that starts accepts connections and ends them."""
    delays = Delays(outages_s=(0.1,))
    with Broker() as broker, OldBroker(broker.port, "closed") as proxy:
        settings = MqttSettings(host="127.0.0.1", port=proxy.port)
        with running(settings, store, delays=delays) as publisher:
            until(lambda: 4 in proxy.versions)
            proxy.manner = "open"
            until(lambda: proxy.versions[-1] == 5 and publisher.connection.is_connected)
            assert publisher.reasons(waits=True) == ()


@pytest.mark.parametrize(
    ("config", "lost"),
    [
        ("retain_available false", "it retains nothing"),
        ("max_qos 0", "it knows QoS 0 only"),
        ("retain_available false\nmax_qos 0", "it retains nothing: .*; it knows QoS 0 only"),
    ],
)
def test_a_broker_that_can_do_less_is_lived_with(store: Store, config: str, lost: str) -> None:
    with Broker(config=config) as broker, Subscriber(broker.port) as heard:
        with running(broker.settings, store) as publisher:
            until(lambda: publisher.connection.is_connected)
            add(store, publisher, "turn on the light", "turn it off")
            until(lambda: heard.texts() == ["turn on the light", "turn it off"])
            assert re.search(lost, "".join(publisher.reasons(waits=True)))
            assert publisher.reasons(waits=False) == ()
            with BrokerProbe(broker.settings, "kitchen") as probe:
                assert probe.publish("x/y", b"1", retain=True) == 0
        until(lambda: heard.payloads("availability") == [b"online", b"offline"])
