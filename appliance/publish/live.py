"""What subscribers are told live, or not at all: state, microphone, voice, discarded speech."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from appliance.publish import events
from appliance.publish.outbox import Outbox
from appliance.publish.troubles import Troubles
from appliance.records import ApplianceState, ApplianceStats, Discarded
from appliance.store.store import Store

STATE_S = STATS_S = 60.0
"""State and statistics are told this often though nothing changed."""
LATENCIES_FROM = timedelta(hours=1)
LATENCIES = 1000
"""The statistics know the latencies of so many transcripts at most, and none older."""


class Publish(Protocol):
    """Sends a payload on one of the node's topics."""

    def __call__(self, name: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> object:
        """Returns nothing of interest here. Raises PublishError."""


class LiveTopics:
    """Remembers what was told, so that only news is. `speech` and `discarded`: any thread."""

    def __init__(
        self,
        state_source: Callable[[], ApplianceState],
        stats_source: Callable[[], ApplianceStats] | None,
        store: Store,
        outbox: Outbox,
        problems: Troubles,
    ) -> None:
        """The sources are called by the thread of `tell`; no statistics are told without theirs."""
        self._state_source, self._stats_source = state_source, stats_source
        self._store, self._outbox, self._troubles = store, outbox, problems
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

    def last(self, event: bytes) -> None:
        """The broker has this event: it is the one to leave there. The thread of `tell`."""
        self._last = event

    def begin_anew(self) -> None:
        """A new connection: what was missed meanwhile is of no use, what holds is told again."""
        self._passing.clear()
        self.tell_again()

    def tell_again(self) -> None:
        """What holds is told once more."""
        self._passing.append((events.SPEECH, self._speech))
        self._retained.clear()
        self._news = ()
        self._state_s = self._stats_s = -math.inf

    def tell(self, now_s: float, publish: Publish) -> None:
        """Publishes what is new, state and statistics once a minute as well. Raises PublishError.

        In this order: state, mute, microphone, statistics, what passes, the last transcript.
        """
        state = self._state_source()
        faults, waits = self._troubles.faults(), self._troubles.waits()
        news = (*state.news(), faults, waits)
        if news != self._news or now_s >= self._state_s + STATE_S:
            told = events.state(state, self._store.depth(), faults, waits)
            publish(events.STATE, events.encode(told), retain=True)
            self._news, self._state_s = news, now_s
        self._keep(events.MUTE, events.ON if state.muted else events.OFF, publish)
        online = events.ONLINE if state.microphone_online else events.OFFLINE
        self._keep(events.MICROPHONE, online, publish)
        if self._stats_source and now_s >= self._stats_s + STATS_S:
            undelivered = {"expired": self._outbox.expired, "passed_over": self._outbox.passed_over}
            told = events.stats(self._stats_source(), self._latencies(), undelivered)
            publish(events.STATS, events.encode(told), qos=0)
            self._stats_s = now_s
        while self._passing:
            name, payload = self._passing.popleft()
            publish(name, payload, qos=0)
        if self._last is not None:
            publish(events.LAST, self._last, retain=True)
            self._last = None

    @property
    def due_s(self) -> float:
        """When something is to be told again, on time.monotonic()'s clock."""
        return min(
            self._state_s + STATE_S, self._stats_s + STATS_S if self._stats_source else math.inf
        )

    def _keep(self, name: str, payload: bytes, publish: Publish) -> None:
        """Publishes a retained payload unless it is there already."""
        if self._retained.get(name) != payload:
            publish(name, payload, retain=True)
            self._retained[name] = payload

    def _latencies(self) -> list[float]:
        """Of the transcripts of the past hour, in milliseconds. Raises PublishError."""
        since = datetime.now(UTC) - LATENCIES_FROM
        return self._store.latencies(since, LATENCIES)
