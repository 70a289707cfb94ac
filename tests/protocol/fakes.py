"""What surrounds the appliance in the state machine: a clock and a broker."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any, ClassVar, Self

from appliance.config import MqttSettings
from appliance.mqtt.client import (
    FULL,
    Abilities,
    Acknowledged,
    BrokerEvent,
    Connected,
    Lost,
    ReceivedMessage,
    ReceivedQueue,
)
from appliance.records import OutgoingMessage

TICK_S = 0.001
"""No two steps happen at the same time."""
NOBODY, PAYLOAD_INVALID = 16, 153
"""Reason codes of a PUBACK: no subscriber; this message is refused."""


class Clock:
    """Stands for the module `time`: monotonic, wall and boot clock, and the id of the boot."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self) -> None:
        self.now_s, self.wall_s, self.boots = 1000.0, 1_780_000_000.0, 0

    def advance(self, seconds: float) -> None:
        """Let time pass on all clocks."""
        self.now_s += seconds
        self.wall_s += seconds

    def boot(self) -> str:
        return f"boot {self.boots}"

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.wall_s

    def clock_gettime(self, _: int) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)


class FakeDatetime(datetime):
    """Stands for `datetime`, whose present is the clock's."""

    clock: ClassVar[Clock]

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls.fromtimestamp(cls.clock.wall_s, tz or UTC)


@dataclass(slots=True)
class Message:
    """A PUBLISH on its way to the broker."""

    number: int
    topic: str
    event: dict[str, Any] = field(default_factory=dict)
    """The transcript's fields; empty for another message."""
    qos: int = 1
    early: bool = False
    """Under way when a subscriber came, so it may be the first that it gets."""


class FakeLink:
    """Stands for BrokerLink: messages stay on the wire until the broker reads them."""

    broker: ClassVar[Broker]

    def __init__(
        self,
        _settings: MqttSettings,
        _client_id: str,
        _wake: threading.Event,
        *,
        keepalive_s: int,
        node: str = "",
        abilities: Abilities = FULL,
    ) -> None:
        self.news: deque[BrokerEvent] = deque()
        self.received = ReceivedQueue(None)
        self._number = 0
        self.broker.accept(self)

    def subscribe(self, topic: str, *, retained: bool = False) -> int:
        self._number += 1
        self.broker.acks.append((self._number, 0, "", True))
        return self._number

    def publish(self, message: OutgoingMessage) -> int:
        self._number += 1
        is_transcript = message.topic.endswith("/transcript")
        event = json.loads(message.payload) if is_transcript else {}
        if not message.qos:  # paho reports that it was sent as if it were acknowledged
            self.news.append(Acknowledged(self._number, 0, ""))
        self.broker.carry(self, Message(self._number, message.topic, event, message.qos))
        return self._number

    def drop(self) -> None:
        self.broker.forget(self)

    def close(self, timeout_s: float) -> None:
        self.broker.forget(self)


class Broker:
    """One connection of the appliance, and one subscriber with a queue."""

    def __init__(self) -> None:
        self.up = True
        self.link: FakeLink | None = None
        self.deaf = False
        """The connection is open, and nothing passes any more."""
        self.wire: deque[Message] = deque()
        self.acks: deque[tuple[int, int, str, bool]] = deque()
        """Answers on their way: number, reason code, id of the transcript, whether a SUBACK."""
        self.subscribed = True
        self.inbox: deque[dict[str, Any]] = deque()
        self.on_publish: Callable[[dict[str, Any]], object] = lambda _: None
        """Called with each transcript that is published."""

    def accept(self, link: FakeLink) -> None:
        """Let a link in, in place of the one before."""
        self.break_connection()
        if self.up:
            self.link = link
            link.news.append(Connected(1 << 20))
        else:
            link.news.append(Lost(0, "Connection refused"))

    def forget(self, link: FakeLink) -> None:
        """Drop what is on the wire of a link that its owner ended."""
        if link is self.link:
            self.link, self.deaf = None, False
            self.wire.clear()
            self.acks.clear()

    def carry(self, link: FakeLink, message: Message) -> None:
        if message.event:
            self.on_publish(message.event)
        if link is self.link and not self.deaf:
            self.wire.append(message)

    def break_connection(self) -> None:
        """End the connection; what was on its way is lost."""
        if self.link:
            self.link.news.append(Lost(0, "the connection broke"))
            self.forget(self.link)

    def read(self, *, refuses: bool = False) -> dict[str, Any] | None:
        """Read messages up to a transcript, refuse that one or pass it on, and return it."""
        while self.wire:
            message = self.wire.popleft()
            found = message.event
            wanted = found or message.topic.startswith("homeassistant/")
            code = NOBODY if wanted and not self.subscribed else 0
            if found and refuses:
                code = PAYLOAD_INVALID
            elif found and self.subscribed:
                self.inbox.append({**found, "early": message.early, "duplicate": False})
            if message.qos:
                self.acks.append((message.number, code, found.get("id", ""), False))
            if found:
                return found
        return None

    def answer(self) -> str:
        """Let answers arrive, up to a transcript's; return its id."""
        while self.acks and self.link:
            number, code, transcript, is_suback = self.acks.popleft()
            self.link.news.append(Acknowledged(number, code, "", is_suback))
            if transcript:
                return transcript
        return ""

    def subscribe(self) -> None:
        """Let the subscriber come back."""
        for message in () if self.subscribed else self.wire:
            message.early = True
        self.subscribed = True

    def repeat(self) -> None:
        """Pass the next message on twice; MQTT marks the second one as a duplicate."""
        self.inbox.insert(1, {**self.inbox[0], "duplicate": True})

    def tell(self, topic: str, payload: bytes) -> None:
        """Send a message to the appliance, if it is connected, behind the answers on their way."""
        while self.acks and self.link:
            self.answer()
        if self.link and not self.deaf:
            self.link.received.put(ReceivedMessage(topic, payload, False))
