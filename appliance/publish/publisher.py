"""The broker's reader of the store: tells subscribers what was heard, in order, as soon as it may.

One thread does everything in `run`; the other methods only leave a note and wake it. Trouble with
broker or store never leaves this module: it is a line in the log, a reason in `status`, and another
try.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from appliance.errors import PublishError
from appliance.publish import events, troubles
from appliance.publish.connection import FIRST_FAILURE, REFUSAL_DELAY_S, Connection
from appliance.publish.events import ApplianceState
from appliance.publish.live import LiveTopics
from appliance.publish.messages import Acknowledged, Connected, Lost, Message, Reply
from appliance.publish.outbox import Outbox
from appliance.publish.store import Store
from appliance.publish.troubles import Troubles
from appliance.records import Discarded
from appliance.settings import MqttSettings

IN_FLIGHT = 20
"""Most unacknowledged messages, the product's limit and Mosquitto's."""
RESERVED = 4
"""Of these, kept free for availability, state and microphone."""
LATE_S = 5.0
"""A transcript that leaves this long after it was stored has waited, whatever for."""
ANSWER_S = 10.0
"""With the keep-alive on top: how long the broker may leave a message unacknowledged."""
SUBSCRIBER_DELAY_S = 2.0
"""Between tries while nobody subscribes: after a broker's restart its other clients come later."""
PROGRESS_S = 5.0
"""Looks around this often though nobody woke it."""
STORE_DELAY_S = 5.0
"""Pause after the store failed."""
_NOBODY_SUBSCRIBES = 16  # reason code of a PUBACK
Subscription = Callable[[Message], Reply | None]
"""Is given what came on a topic; its answer is published."""


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """How it stands with the broker."""

    connected: bool
    reasons: tuple[str, ...]
    """What is wrong and what to do, in plain words."""
    outbox_depth: int
    """Transcripts stored and not yet acknowledged by the broker."""
    expired: int
    """Transcripts passed over as too old since the start; they are in the log."""


class MqttPublisher:
    """Follows the store from its cursor; also carries the state and what is told only live."""

    def __init__(
        self,
        settings: MqttSettings,
        node: str,
        store: Store,
        state_source: Callable[[], ApplianceState],
        subscriptions: Mapping[str, Subscription] | None = None,
    ) -> None:
        """Connects nowhere yet. `state_source` is called in the thread of `run`; it must not wait.

        `subscriptions` are topics below the node's, such as mute/set, with who is told of their
        messages, in the same thread, and may answer.

        Raises ConfigError when the password's file cannot be read, PublishError for the store.
        """
        self._settings = settings
        self._node = node
        self._store = store
        self._outbox = Outbox(store, settings.expiry_s)
        self._live = LiveTopics(state_source, store.depth)
        self._wake = threading.Event()
        self._troubles = Troubles()
        self._subscriptions = {
            events.topic(node, name): told for name, told in (subscriptions or {}).items()
        }
        listens_on = tuple(self._subscriptions)
        self._connection = Connection(settings, node, self._wake, self._troubles, listens_on)
        self._stopping = threading.Event()
        self._stop_s = math.inf
        self._window = self._limit = 1
        self._answer_s = 0.0
        self._held_s = 0.0

    # any thread

    def notify(self) -> None:
        """There is something new in the store or in the state."""
        self._wake.set()

    def speech(self, on: bool) -> None:
        """Voice begins or ends; told if the broker is there."""
        self._live.speech(on)
        self._wake.set()

    def discarded(self, speech: Discarded) -> None:
        """Speech gave no transcript; told, without text, if the broker is there."""
        self._live.discarded(speech)
        self._wake.set()

    def stop(self, flush_s: float = 2.0) -> None:
        """Makes `run` return when all is delivered, at the latest `flush_s` + 0.5 s from now."""
        self._stop_s = time.monotonic() + flush_s
        self._stopping.set()
        self._wake.set()

    def reasons(self) -> tuple[str, ...]:
        """What is wrong and what to do, in plain words; does not wait."""
        return self._troubles.reasons()

    def status(self) -> PublisherStatus:
        """How it stands now. Raises PublishError when the store cannot be read."""
        return PublisherStatus(
            connected=self._connection.connected_s is not None,
            reasons=self._troubles.reasons(),
            outbox_depth=self._store.depth(),
            expired=self._outbox.expired,
        )

    # the publisher's thread

    def run(self, moved: Callable[[], None] = lambda: None) -> None:
        """Delivers until `stop`, then says offline. Blocks; for a thread of its own.

        Calls `moved` at least every PROGRESS_S + STORE_DELAY_S while it is not stuck.
        """
        while True:
            moved()
            self._wake.wait(self._patience_s())
            self._wake.clear()
            stopping = self._stopping.is_set()
            if stopping and not self._connection.trying:
                break
            try:
                self._step(time.monotonic())
                self._troubles.clear("store")
            except PublishError as error:
                self._troubles.set("store", str(error))
                self._stopping.wait(STORE_DELAY_S)
            if stopping and self._drained():
                break
        self._connection.close()

    def _step(self, now_s: float) -> None:
        """Everything that is due. Raises PublishError."""
        for news in self._connection.news(now_s):
            match news:
                case Connected(receive_maximum):
                    self._begin_anew(now_s, receive_maximum)
                case Acknowledged(message, code, _):
                    self._answer_s = now_s
                    self._acknowledged(message, code)
                case Lost():
                    self._outbox.rewind()
        for letter in self._connection.received():
            self._take(letter)
        if now_s >= self._silent_s():
            self._connection.give_up(now_s, "messages stay unacknowledged")
            self._outbox.rewind()
        if self._connection.connected_s is not None:
            self._live.tell(now_s, self._connection.publish)
            if now_s >= self._held_s:
                self._send_transcripts(now_s - self._connection.connected_s)
        self._outbox.commit()

    def _patience_s(self) -> float:
        """Seconds until something is due though nobody wakes us."""
        now_s = time.monotonic()
        due_s = self._connection.due_s
        if due_s is None:
            due_s = min(self._live.due_s, self._silent_s())
            if self._held_s > now_s:
                due_s = min(due_s, self._held_s)
        return max(0.0, min(due_s, self._stop_s, now_s + PROGRESS_S) - now_s)

    def _silent_s(self) -> float:
        """When the broker's silence on what is in flight is to be taken for an outage."""
        if not self._outbox.waiting:
            return math.inf
        return self._answer_s + self._settings.keepalive_s + ANSWER_S

    def _drained(self) -> bool:
        """Nothing more can be delivered before the deadline."""
        if self._connection.connected_s is not None and not self._outbox.waiting:
            return True
        return not self._connection.trying or time.monotonic() >= self._stop_s

    def _begin_anew(self, now_s: float, receive_maximum: int) -> None:
        """A connection stands and is known to be online."""
        self._answer_s = now_s
        self._held_s = 0.0
        self._window = max(1, min(IN_FLIGHT, receive_maximum) - RESERVED)
        self._limit = 1
        self._live.begin_anew()

    def _take(self, message: Message) -> None:
        """Hands a message to who waits for it, and sends the answer. Raises PublishError."""
        level = f"{message.topic.rpartition('/')[0]}/+"
        told = self._subscriptions.get(message.topic) or self._subscriptions.get(level)
        reply = told(message) if told else None
        if reply:
            self._connection.answer(reply)

    def _acknowledged(self, message: int, code: int) -> None:
        """The broker has the message, or does not want it, or has nobody to give it to.

        After a connection and after a refusal one transcript goes alone, to find out: a whole
        window of them could reach somebody who subscribes just then without the first ones.
        """
        if code >= FIRST_FAILURE:
            self._hold(message, REFUSAL_DELAY_S)
        elif code == _NOBODY_SUBSCRIBES:
            if self._hold(message, SUBSCRIBER_DELAY_S):
                self._troubles.set("outbox", troubles.nobody_subscribes(self._node))
        elif self._outbox.acknowledged(message):
            self._limit = self._window
            self._troubles.clear("outbox")

    def _hold(self, message: int, delay_s: float) -> bool:
        """Stops sending for a while when `message` is a transcript, which is then sent again."""
        held = self._outbox.refused(message)
        if held:
            self._held_s = self._answer_s + delay_s
            self._limit = 1
        return held

    def _send_transcripts(self, connected_for_s: float) -> None:
        """Sends what is due; late is what was stored before this connection stood."""
        for stored in self._outbox.due(self._limit):
            age_s = stored.age_s()
            late = age_s > min(LATE_S, connected_for_s)
            event = events.transcript(stored, self._node, datetime.now(UTC), late)
            payload = events.encode(event)
            expiry_s = max(1, int(self._settings.expiry_s - age_s))
            message = self._connection.publish(events.TRANSCRIPT, payload, expiry_s=expiry_s)
            if not self._outbox.waiting:
                self._answer_s = time.monotonic()
            self._outbox.sent(message, stored.seq)
