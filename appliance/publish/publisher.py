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

from appliance.config import HomeAssistantSettings, MqttSettings
from appliance.errors import PublishError
from appliance.publish import events, home_assistant, troubles
from appliance.publish.connection import Connection
from appliance.publish.delivery import NOBODY_SUBSCRIBES, Delivery
from appliance.publish.live import LiveTopics
from appliance.publish.messages import Acknowledged, Connected, Lost, Message, Reply, matches
from appliance.publish.outbox import Outbox
from appliance.publish.presence import Presence
from appliance.publish.troubles import Troubles
from appliance.records import ApplianceState, ApplianceStats, Discarded
from appliance.store.store import Store

PROGRESS_S = 5.0
"""Looks around this often though nobody woke it."""
STORE_DELAY_S = 5.0
"""Pause after the store failed."""
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
    passed_over: int = 0
    """The same for those beyond mqtt.outbox_limit."""


class MqttPublisher:
    """Follows the store from its cursor; also carries the state and what is told only live."""

    def __init__(
        self,
        settings: MqttSettings,
        node: str,
        store: Store,
        state_source: Callable[[], ApplianceState],
        *,
        subscriptions: Mapping[str, Subscription] | None = None,
        stats_source: Callable[[], ApplianceStats] | None = None,
        house: HomeAssistantSettings | None = None,
    ) -> None:
        """Connects nowhere yet. The sources are called in the thread of `run`; they must not wait.

        `subscriptions` are topics below the node's, such as mute/set, with who is told of their
        messages, in the same thread, and may answer.

        Raises ConfigError when the password's file cannot be read, PublishError for the store.
        """
        self._node = node
        self._store = store
        self._state_source = state_source
        self._home_assistant = house or HomeAssistantSettings()
        self._knows_subscribers = settings.protocol == "5"
        self._presence = Presence(self._home_assistant, settings.expiry_s)
        self._wake = threading.Event()
        self._troubles = Troubles()
        self._subscriptions = {
            events.topic(node, name): told for name, told in (subscriptions or {}).items()
        }
        listens_on = list(self._subscriptions)
        if self._home_assistant.enabled:
            listens_on.append(self._home_assistant.status_topic)
        self._connection = Connection(settings, node, self._wake, self._troubles, tuple(listens_on))
        self._outbox = Outbox(store, settings.expiry_s, settings.outbox_limit)
        self._live = LiveTopics(state_source, stats_source, store, self._outbox, self._troubles)
        self._delivery = Delivery(
            settings,
            node,
            self._outbox,
            self._connection,
            problems=self._troubles,
            last=self._live.last,
        )
        self._stopping = threading.Event()
        self._stop_s = math.inf

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
            passed_over=self._outbox.passed_over,
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
                    if self._knows_subscribers:
                        nobody = code == NOBODY_SUBSCRIBES
                        self._presence.acknowledged(now_s, message, nobody=nobody)
                    self._delivery.acknowledged(now_s, message, code)
                case Lost():
                    self._delivery.lost()
        for letter in self._connection.received():
            self._take(now_s, letter)
        if now_s >= self._delivery.silent_s:
            self._connection.give_up(now_s, "messages stay unacknowledged")
            self._delivery.lost()
        self._delivery.bound(now_s)
        if self._connection.connected_s is not None:
            self._publish_due(now_s)
        self._outbox.commit()

    def _publish_due(self, now_s: float) -> None:
        """What there is to tell; transcripts last. Raises PublishError."""
        if now_s >= self._presence.announce_s:
            self._announce_again()
        held = self._presence.holds(now_s)
        if held and self._store.depth():
            self._troubles.set(troubles.AWAY, troubles.HOME_ASSISTANT_AWAY)
        else:
            self._troubles.clear(troubles.AWAY)
        self._live.tell(now_s, self._connection.publish)
        if not held:
            self._delivery.send(now_s)

    def _patience_s(self) -> float:
        """Seconds until something is due though nobody wakes us."""
        now_s = time.monotonic()
        due_s = self._connection.due_s
        if due_s is None:
            due_s = min(self._live.due_s, self._delivery.due_s(now_s), self._presence.due_s(now_s))
        return max(0.0, min(due_s, self._stop_s, now_s + PROGRESS_S) - now_s)

    def _drained(self) -> bool:
        """Nothing more can be delivered before the deadline."""
        if self._connection.connected_s is not None and not self._delivery.waiting:
            return True
        return not self._connection.trying or time.monotonic() >= self._stop_s

    def _begin_anew(self, now_s: float, receive_maximum: int) -> None:
        """A connection stands and is known to be online."""
        self._delivery.begin_anew(now_s, receive_maximum)
        self._live.begin_anew()
        if self._home_assistant.enabled:
            self._presence.connected(now_s, self._announce())

    def _announce(self) -> int:
        """Tells Home Assistant what there is; the message's number. Raises PublishError."""
        message = home_assistant.discovery(self._node, self._state_source())
        topic = home_assistant.topic(self._home_assistant.prefix, self._node)
        return self._connection.publish_to(topic, events.encode(message), retain=True)

    def _announce_again(self) -> None:
        """Home Assistant is new here: it is told everything again. Raises PublishError."""
        self._announce()
        self._connection.publish(events.AVAILABILITY, events.ONLINE, retain=True)
        self._live.tell_again()
        self._presence.announced()

    def _take(self, now_s: float, message: Message) -> None:
        """Hands a message to who waits for it, and sends the answer. Raises PublishError."""
        if message.topic == self._home_assistant.status_topic:
            self._presence.told(now_s, message)
            return
        for pattern, told in self._subscriptions.items():
            if matches(pattern, message.topic):
                reply = told(message)
                if reply:
                    self._connection.answer(reply)
                return
