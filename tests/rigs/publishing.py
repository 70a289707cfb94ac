"""What the tests of publish/ share: a transcript, a state, a subscriber, a running publisher."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties

from appliance.config import MqttSettings
from appliance.mqtt.publisher import Publisher
from appliance.records import ApplianceState, Transcript, new_id
from appliance.store.store import Store

STATE = ApplianceState(
    status="running",
    reasons=(),
    encoder="cpu",
    model="home-en",
    microphone="Null Output",
    microphone_online=True,
    queue_depth=0,
    uptime_s=12.3,
    version="0.1.0",
)


def transcript(text: str = "turn on the light", **changes: Any) -> Transcript:
    plain = Transcript(
        id=new_id(),
        utterance_id=new_id(),
        window=1,
        windows=1,
        start=datetime(2026, 11, 21, 8, 14, 3, 120000, UTC),
        end=datetime(2026, 11, 21, 8, 14, 6, 480000, UTC),
        text=text,
        language="en",
        avg_logprob=-0.21,
        no_speech_prob=0.03,
        compression_ratio=1.1,
        duration_s=3.36,
        model="tiny",
        encoder="hailo8",
        encode_ms=95.2,
        decode_ms=310.0,
        queue_ms=20.4,
        latency_ms=540.3,
        flags=("clipped",),
    )
    return replace(plain, **changes)


def until(condition: Callable[[], object], timeout_s: float = 8.0) -> None:
    """Waits until `condition` holds; fails the test when it does not."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.02)


class Subscriber:
    """Everything that a real broker delivers on `topics`, in order."""

    def __init__(
        self,
        port: int,
        user: str = "",
        password: str = "",
        name: str = "listener",
        topics: tuple[str, ...] = ("roomscribe/#",),
    ) -> None:
        self.messages: list[MQTTMessage] = []
        self._ready = threading.Event()
        # a session that outlives the connection: like Home Assistant's history, nothing is missed
        self._client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTv5)
        self._client.reconnect_delay_set(1, 1)
        if user:
            self._client.username_pw_set(user, password)
        self._client.on_connect = lambda c, *_: c.subscribe([(topic, 1) for topic in topics])
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = lambda _c, _u, message: self.messages.append(message)
        self._client.connect("127.0.0.1", port, clean_start=False, properties=_kept_session())
        self._client.loop_start()
        assert self._ready.wait(5)

    def publish(self, topic: str, payload: bytes) -> None:
        """Says something itself, unretained."""
        self._client.publish(topic, payload, qos=1).wait_for_publish(5)

    def payloads(self, name: str, node: str = "kitchen") -> list[bytes]:
        """Payloads of one of the node's topics."""
        return [
            bytes(m.payload) for m in list(self.messages) if m.topic == f"roomscribe/{node}/{name}"
        ]

    def events(self) -> list[dict[str, Any]]:
        """The transcripts' events."""
        return [json.loads(payload) for payload in self.payloads("transcript")]

    def texts(self) -> list[str]:
        """The transcripts' texts."""
        return [event["text"] for event in self.events()]

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def running(
    settings: MqttSettings,
    store: Store,
    state: Callable[[], ApplianceState] = lambda: STATE,
    node: str = "kitchen",
    **more: Any,
) -> Iterator[Publisher]:
    """A publisher in its thread, stopped in the end."""
    publisher = Publisher(settings, node, store, state, **more)
    thread = threading.Thread(target=publisher.run, daemon=True)
    thread.start()
    try:
        yield publisher
    finally:
        publisher.stop(flush_s=1.0)
        thread.join(5)
        assert not thread.is_alive(), "the publisher did not stop in time"


def properties_of(packet: int) -> Properties:
    """Empty ones, for an MQTT packet of a type of paho's PacketTypes."""
    return Properties(packet)  # type: ignore[no-untyped-call]  # paho has no types there


def _kept_session() -> Properties:
    from paho.mqtt.packettypes import PacketTypes

    properties = properties_of(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 3600
    return properties
