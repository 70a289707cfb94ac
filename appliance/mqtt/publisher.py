"""The publisher: reads the store from its cursor and publishes each transcript, in order.

One thread does everything in `run`; the other methods only leave a note and wake it. Trouble with
broker or store never leaves this module: it is a line in the log, a reason in `status`, and another
try. Beside the transcripts go what is published live or not at all (LiveTopics), and an
announcement for Home Assistant, for which transcripts wait while it is away (Presence).

Over 500 lines because all three are one thread's, and know each other.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from appliance.config import HomeAssistantSettings, MqttSettings
from appliance.errors import BrokerError, StoreError
from appliance.mqtt import events, troubles
from appliance.mqtt.client import Acknowledged, Connected, Lost, Message, Outgoing, matches
from appliance.mqtt.connection import DELAYS, Connection, Delays
from appliance.mqtt.former import FormerNames, Name
from appliance.mqtt.home_assistant import discovery, temperatures, topic as discovery_topic
from appliance.mqtt.outbox import NOBODY_SUBSCRIBES, RECENT_S, Delivery, Outbox
from appliance.mqtt.troubles import Troubles
from appliance.records import ApplianceState, ApplianceStats, AssistReply, Discarded, Partial
from appliance.store import Store

log = logging.getLogger("roomscribe.mqtt")

PROGRESS_S = 5.0
"""Looks around this often though nobody woke it."""
STATE_S = STATS_S = 60.0
"""State and statistics are published this often though nothing changed."""
LATENCIES_FROM = timedelta(hours=1)
LATENCIES = 1000
"""The statistics know the latencies of so many transcripts at most, and none older."""
Subscription = Callable[[Message], Outgoing | None]
"""Is given each message on a topic; its answer is published."""


class Publish(Protocol):
    """Sends a payload on one of the node's topics."""

    def __call__(self, name: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> object:
        """Returns nothing of interest here. Raises BrokerError."""


class LiveTopics:
    """State, microphone, voice, discarded speech: published live, and only what is new.

    `speech`, `discarded`, `partial` and `assist`: any thread.
    """

    def __init__(
        self,
        state_source: Callable[[], ApplianceState],
        stats_source: Callable[[], ApplianceStats] | None,
        store: Store,
        outbox: Outbox,
        found: Troubles,
    ) -> None:
        """The sources are called by the thread of `publish`; statistics need theirs."""
        self._state_source, self._stats_source = state_source, stats_source
        self._store, self._outbox, self._troubles = store, outbox, found
        self._passing: deque[tuple[str, bytes]] = deque(maxlen=100)
        self._speech = events.OFF
        self._last: bytes | None = None
        self._retained: dict[str, bytes] = {}
        self._news: tuple[object, ...] = ()
        self._state_s = self._stats_s = -math.inf

    def speech(self, on: bool) -> None:
        """Voice begins or ends."""
        self._speech = events.ON if on else events.OFF
        self._passing.append((events.SPEECH, self._speech))

    def discarded(self, speech: Discarded) -> None:
        """Speech gave no transcript."""
        payload = events.encode(events.discarded(speech))
        self._passing.append((events.DISCARDED, payload))

    def partial(self, said: Partial) -> None:
        """What somebody says, so far."""
        self._passing.append((events.PARTIAL, events.encode(events.partial(said))))

    def assist(self, reply: AssistReply) -> None:
        """A sentence for Assist was answered."""
        self._passing.append((events.ASSIST_REPLY, events.encode(events.assist_reply(reply))))

    def last(self, event: bytes) -> None:
        """The broker has this event: it is the one to retain there. The thread of `publish`."""
        self._last = event

    def begin_anew(self) -> None:
        """A new connection: what was missed meanwhile is of no use, what holds is repeated."""
        self._passing.clear()
        self.repeat()

    def repeat(self) -> None:
        """What holds is published once more."""
        self._passing.append((events.SPEECH, self._speech))
        self._retained.clear()
        self._news = ()
        self._state_s = self._stats_s = -math.inf

    def publish(self, now_s: float, publish: Publish) -> None:
        """Publishes what is new, state and statistics once a minute as well. Raises BrokerError.

        In this order: state, mute, microphone, statistics, what passes, the last transcript.
        """
        state = self._state_source()
        found, waits = self._troubles.reasons(waits=False), self._troubles.reasons(waits=True)
        news = (*state.news(), found, waits)
        if news != self._news or now_s >= self._state_s + STATE_S:
            message = events.state(state, self._store.depth(), found, waits)
            publish(events.STATE, events.encode(message), retain=True)
            self._news, self._state_s = news, now_s
        if state.muted is not None:  # else the broker keeps what was last known
            self._keep(events.MUTE, events.ON if state.muted else events.OFF, publish)
        online = events.ONLINE if state.microphone_online else events.OFFLINE
        self._keep(events.MICROPHONE, online, publish)
        if self._stats_source and now_s >= self._stats_s + STATS_S:
            undelivered = {
                "expired": self._outbox.expired,
                "passed_over": self._outbox.passed_over,
                "refused": self._outbox.refused_for_good,
            }
            latencies_ms = self._store.read_latencies(datetime.now(UTC) - LATENCIES_FROM, LATENCIES)
            message = events.stats(self._stats_source(), latencies_ms, undelivered)
            publish(events.STATS, events.encode(message), qos=0)
            self._stats_s = now_s
        self.pass_on(publish)
        if self._last is not None:
            publish(events.LAST, self._last, retain=True)
            self._last = None

    def pass_on(self, publish: Publish) -> None:
        """Publishes what is live alone. Raises BrokerError."""
        while self._passing:
            name, payload = self._passing.popleft()
            publish(name, payload, qos=0)

    @property
    def due_s(self) -> float:
        """When something is to be published again, on time.monotonic()'s clock."""
        return min(
            self._state_s + STATE_S, self._stats_s + STATS_S if self._stats_source else math.inf
        )

    def _keep(self, name: str, payload: bytes, publish: Publish) -> None:
        """Publishes a retained payload unless it is there already."""
        if self._retained.get(name) != payload:
            publish(name, payload, retain=True)
            self._retained[name] = payload


class Presence:
    """Whether Home Assistant is there, as far as its birth and will messages say so.

    A PUBACK means that the broker has a message, not that Home Assistant has: after a restart of
    either it subscribes seconds later than we connect, and any other subscriber hides that from us;
    and when it stops, it is subscribed for seconds in which it reads nothing. Owned by one thread;
    times are time.monotonic()'s, given by the caller.
    """

    def __init__(
        self,
        settings: HomeAssistantSettings,
        longest_s: float = math.inf,
        delays: Delays = DELAYS,
    ) -> None:
        """Holds are no longer than `longest_s`, nor than the configuration allows."""
        self._delays = delays
        self.announce_s = math.inf
        """When it is to be sent everything again."""
        self.held_until_s = 0.0
        """Until when transcripts wait for it."""
        self._settings = settings
        self._hold_s = min(settings.hold_s, longest_s)
        self._seen = False
        self._connected_s = 0.0
        self._unheard_s = self._sure_s = math.inf
        self._away_s: float | None = None
        self._discovery: int | None = None

    def connected(self, now_s: float, discovery: int) -> None:
        """A connection stands, and the announcement has gone out as message `discovery`.

        It lost its connection with ours, perhaps; if it was ever there, it has to say that it is.
        """
        self.announce_s = self._sure_s = math.inf
        self._discovery, self._connected_s = discovery, now_s
        if self._seen:
            # also when its last word was offline: the broker says that for it while it goes down,
            # and it may be back before us
            self.held_until_s = now_s + min(self._delays.birth_s, self._hold_s)

    def acknowledged(self, now_s: float, message: int, *, nobody: bool) -> None:
        """A PUBACK came; `nobody` subscribes to the announcement: Home Assistant is not there.

        Where somebody does, only our connection was broken, or it subscribes just now.
        """
        if message != self._discovery:
            return
        self._discovery = None
        if not nobody:
            self._seen, self._away_s = True, None
            soon_s = self._connected_s + self._delays.subscribe_s
            self.held_until_s = min(self.held_until_s, soon_s)
        elif self._seen:
            self._leave(now_s)

    def on_status(self, now_s: float, message: Message) -> None:
        """A message on its status topic; what is neither birth nor will is ignored.

        So is what was retained there: nobody knows how old that is.
        """
        if message.retained or message.payload not in (events.ONLINE, events.OFFLINE):
            return
        seen, was_there = self._seen, self._away_s is None
        self._seen = True
        if message.payload == events.OFFLINE:
            self._leave(now_s)
            if was_there and self._hold_s:
                self._unheard_s = now_s - RECENT_S
                self._sure_s = now_s + self._delays.leave_s
            return
        if seen and was_there and self._hold_s:
            # it begins anew and did not say before that it goes: after the broker's restart
            # somebody else, who subscribes to everything, has answered for it
            self._unheard_s, self._sure_s = max(now_s - RECENT_S, self._connected_s), now_s
        self._away_s = None
        self.announce_s = now_s + random.SystemRandom().uniform(*self._delays.announce_s)
        if self.held_until_s > now_s:
            self.held_until_s = self.announce_s
        log.info("Home Assistant is there")

    def unheard_s(self, now_s: float) -> float | None:
        """Since when what the broker acknowledged may have passed it by, once that is sure; told
        once, else None."""
        if now_s < self._sure_s:
            return None
        self._sure_s = math.inf
        return self._unheard_s

    def announced(self) -> None:
        """It was sent everything again; transcripts may follow."""
        self.announce_s = math.inf
        self.held_until_s = 0.0

    def holds(self, now_s: float) -> bool:
        """True while transcripts wait for it."""
        return now_s < self.held_until_s

    @property
    def why(self) -> str:
        """Why they wait."""
        away = self._away_s is not None
        return troubles.HOME_ASSISTANT_AWAY if away else troubles.HOME_ASSISTANT_RETURNS

    def due_s(self, now_s: float) -> float:
        """When something is to be done though nothing arrives."""
        held_s = self.held_until_s if self.holds(now_s) else math.inf
        return min(self.announce_s, held_s, self._sure_s)

    def _leave(self, now_s: float) -> None:
        """It is away; the wait for it is counted from when that was first known."""
        if self._away_s is None:
            self._away_s = now_s
        self.announce_s = math.inf
        self.held_until_s = max(self.held_until_s, self._away_s + self._hold_s)


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


class Publisher:
    """Publishes the store's transcripts from its cursor on, the state, and what is only live."""

    def __init__(
        self,
        settings: MqttSettings,
        node: str,
        store: Store,
        state_source: Callable[[], ApplianceState],
        *,
        subscriptions: Mapping[str, Subscription] | None = None,
        stats_source: Callable[[], ApplianceStats] | None = None,
        home_assistant: HomeAssistantSettings | None = None,
        page: str = "",
        on_birth: Callable[[], object] = lambda: None,
        announced: Path | None = None,
        delays: Delays = DELAYS,
    ) -> None:
        """Connects nowhere yet. The sources are called in the thread of `run`; they must not wait.

        `subscriptions` are topics below the node's, such as mute/set, with what is called for
        their messages, in the same thread; what it returns is published as the answer. `on_birth`
        is called there when Home Assistant has started.
        their messages, in the same thread; what it returns is published as the answer.
        `announced` is the file that keeps the names which this appliance had.

        Raises ConfigError when the password's file cannot be read, StoreError for the store.
        """
        self._node = node
        self._partials = settings.partials
        self._store = store
        self._state_source, self._stats_source = state_source, stats_source
        self._delays, self._on_birth = delays, on_birth
        self._temperatures = frozenset[str]()
        """Temperatures that were announced; one that the machine had once stays."""
        self._home_assistant = home_assistant or HomeAssistantSettings()
        self._page = page
        self._knows_subscribers = settings.protocol == "5"
        self._presence = Presence(self._home_assistant, settings.expiry_s, delays)
        self._wake = threading.Event()
        self._troubles = Troubles()
        self._subscriptions = {
            events.topic(node, name): answer for name, answer in (subscriptions or {}).items()
        }
        listens_on = list(self._subscriptions)
        if self._home_assistant.enabled:
            listens_on.append(self._home_assistant.status_topic)
        self._connection = Connection(
            settings, node, self._wake, self._troubles, listens_on=tuple(listens_on), delays=delays
        )
        self._outbox = Outbox(store, settings.expiry_s, settings.outbox_limit)
        self._live = LiveTopics(state_source, stats_source, store, self._outbox, self._troubles)
        self._delivery = Delivery(
            settings,
            node,
            self._outbox,
            self._connection,
            found=self._troubles,
            last=self._live.last,
            delays=delays,
        )
        where = f"{settings.host}:{settings.port}"
        self._former = FormerNames(announced, Name(where, node, self._home_assistant.prefix))
        self._stopping = threading.Event()
        self._stop_s = math.inf

    # any thread

    def notify(self) -> None:
        """There is something new in the store or in the state."""
        self._wake.set()

    def speech(self, on: bool) -> None:
        """Voice begins or ends; published if the broker is there."""
        self._live.speech(on)
        self._wake.set()

    def discarded(self, speech: Discarded) -> None:
        """Speech gave no transcript; published, without text, if the broker is there."""
        self._live.discarded(speech)
        self._wake.set()

    @property
    def wants_partials(self) -> bool:
        """True while partial texts are asked for and the broker is there."""
        return self._partials and self._connection.connected_s is not None

    def partial(self, partial: Partial) -> None:
        """What somebody says, so far; published if that is asked for and the broker is there."""
        if self._partials:
            self._live.partial(partial)
            self._wake.set()

    def assist(self, reply: AssistReply) -> None:
        """A sentence for Assist was answered; published if the broker is there."""
        self._live.assist(reply)
        self._wake.set()

    def stop(self, flush_s: float = 2.0) -> None:
        """Makes `run` return when all is delivered, at the latest `flush_s` + 0.5 s from now."""
        self._stop_s = time.monotonic() + flush_s
        self._stopping.set()
        self._wake.set()

    def reasons(self, *, waits: bool | None = None) -> tuple[str, ...]:
        """What is wrong and what to do, in plain words; does not wait. With `waits`, only those for
        whom transcripts wait (True), or only the others (False)."""
        return self._troubles.reasons(waits=waits)

    def status(self) -> PublisherStatus:
        """How it stands now. Raises StoreError when the store cannot be read."""
        return PublisherStatus(
            connected=self._connection.connected_s is not None,
            reasons=self._troubles.reasons(),
            outbox_depth=self._store.depth(),
            expired=self._outbox.expired,
            passed_over=self._outbox.passed_over,
        )

    # the publisher's thread

    def run(self, moved: Callable[[], None] = lambda: None) -> None:
        """Delivers until `stop`, then publishes offline. Blocks; for a thread of its own.

        Calls `moved` at least every PROGRESS_S + `delays.store_s` while it is not stuck.
        """
        while True:
            moved()
            self._wake.wait(self._idle_s())
            self._wake.clear()
            stopping = self._stopping.is_set()
            if stopping and not self._connection.trying:
                break
            try:
                self._step(time.monotonic())
                self._troubles.clear("store")
            except (BrokerError, StoreError) as error:
                self._troubles.set("store", str(error))
                self._stopping.wait(self._delays.store_s)
            if stopping and self._drained():
                break
        self._connection.close()

    def _step(self, now_s: float) -> None:
        """Everything that is due. Raises BrokerError and StoreError."""
        for news in self._connection.news(now_s):
            match news:
                case Connected(receive_maximum):
                    self._begin_anew(now_s, receive_maximum)
                case Acknowledged(number, code, _):
                    if self._knows_subscribers:
                        nobody = code == NOBODY_SUBSCRIBES
                        self._presence.acknowledged(now_s, number, nobody=nobody)
                    self._delivery.acknowledged(now_s, number, code)
                case Lost():
                    self._delivery.lost()
                    self._former.lost()
        for message in self._connection.received():
            self._take(now_s, message)
        self._delivery.bound(now_s)
        if self._connection.connected_s is not None:
            self._publish_due(now_s)
        self._outbox.commit()

    def _publish_due(self, now_s: float) -> None:
        """What there is to publish; transcripts last. Raises BrokerError and StoreError."""
        self._former.poll(now_s, self._connection)
        unheard_s = self._presence.unheard_s(now_s)
        if unheard_s is not None:
            self._outbox.repeat(unheard_s)
        if now_s >= self._presence.announce_s:
            self._announce_again()
        elif self._home_assistant.enabled and self._has_new_temperature():
            self._announce()
        held = self._presence.holds(now_s)
        if held and self._store.depth():
            self._troubles.set(troubles.AWAY, self._presence.why)
        else:
            self._troubles.clear(troubles.AWAY)
        self._live.publish(now_s, self._connection.publish)
        if not held:
            self._delivery.send(now_s, lambda: self._live.pass_on(self._connection.publish))

    def _idle_s(self) -> float:
        """Seconds until something is due though nobody wakes us."""
        now_s = time.monotonic()
        due_s = self._connection.due_s
        if self._connection.connected_s is not None:
            due_s = min(due_s, self._live.due_s, self._delivery.due_s(now_s))
            due_s = min(due_s, self._presence.due_s(now_s), self._former.due_s)
        return max(0.0, min(due_s, self._stop_s, now_s + PROGRESS_S) - now_s)

    def _drained(self) -> bool:
        """Nothing more can be delivered before the deadline."""
        if self._connection.connected_s is not None and not self._outbox.waiting:
            return True
        return not self._connection.trying or time.monotonic() >= self._stop_s

    def _begin_anew(self, now_s: float, receive_maximum: int) -> None:
        """A connection stands and is known to be online."""
        self._delivery.begin_anew(receive_maximum)
        self._live.begin_anew()
        if self._home_assistant.enabled:
            self._presence.connected(now_s, self._announce())
        self._former.connected(now_s, self._connection)

    def _announce(self) -> int:
        """Publishes the discovery message; its number. Raises BrokerError."""
        state = self._state_source()
        self._temperatures |= temperatures(
            state, self._stats_source() if self._stats_source else None
        )
        message = discovery(
            self._node,
            state,
            area=self._home_assistant.area,
            page=self._page,
            temperatures=self._temperatures,
        )
        topic = discovery_topic(self._home_assistant.prefix, self._node)
        return self._connection.send(Outgoing(topic, events.encode(message), retain=True))

    def _has_new_temperature(self) -> bool:
        """True if a Hailo is in use that was not when the device was announced."""
        return not temperatures(self._state_source(), None) <= self._temperatures

    def _announce_again(self) -> None:
        """Home Assistant has started: it is sent everything again. Raises BrokerError."""
        self._announce()
        self._connection.publish(events.AVAILABILITY, events.ONLINE, retain=True)
        self._live.repeat()
        self._presence.announced()

    def _take(self, now_s: float, message: Message) -> None:
        """Gives a message to its subscription, and sends the answer. Raises BrokerError."""
        if self._former.take(message):
            return
        if message.topic == self._home_assistant.status_topic:
            self._presence.on_status(now_s, message)
            if message.payload == events.ONLINE and not message.retained:
                self._on_birth()
            return
        for pattern, subscription in self._subscriptions.items():
            if matches(pattern, message.topic):
                if reply := subscription(message):
                    self._connection.send(reply)
                return
