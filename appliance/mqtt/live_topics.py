"""Live topics: what is published the moment it happens, and never again.

State, statistics, microphone, mute, speech, partial texts, replies, the last transcript. What is
missed during an outage is not made up for; the present state is published again after it.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from appliance.mqtt import events
from appliance.mqtt.connection import BrokerConnection
from appliance.mqtt.outbox import Outbox
from appliance.records import (
    ApplianceState,
    ApplianceStats,
    AssistReply,
    Correction,
    Discarded,
    Listener,
    OutgoingMessage,
    Partial,
)
from appliance.store import Store

STATE_S = STATS_S = 60.0
"""State and statistics are published at least this often."""
REPLY_S = 15.0
"""A reply of Assist waits so long for Home Assistant's return to the broker. It has acted
already: sentences reach it without the broker."""
LATENCIES_FROM = timedelta(hours=1)
LATENCIES = 1000
"""Age and number of the transcripts whose latencies the statistics contain, at most."""


State = Callable[[], ApplianceState]
Stats = Callable[[], ApplianceStats]
"""Where the publisher reads these. They must not wait."""


def read_stats(stats: ApplianceStats, store: Store, expired: int) -> dict[str, Any]:
    """Return the `stats` message. Raises StoreError."""
    latencies_ms = store.read_latencies(datetime.now(UTC) - LATENCIES_FROM, LATENCIES)
    return events.stats(stats, latencies_ms, expired)


class LiveTopics(Listener):
    """State, microphone, speech, discarded speech: published live, and only what is new.

    The listener's methods: any thread; they set `wake`. The rest: the publisher's thread, which
    calls `state` and `stats`, too. Raises BrokerError.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        store: Store,
        outbox: Outbox,
        *,
        state: State,
        stats: Stats | None,
    ) -> None:
        self._connection, self._wake, self._troubles = (
            connection, connection.wake, connection.troubles
        )  # fmt: skip
        self._node, self._partials = connection.node, connection.settings.partials
        self._state, self._stats, self._store, self._outbox = state, stats, store, outbox
        self._queue: deque[tuple[str, bytes]] = deque(maxlen=100)
        self._replies: deque[tuple[float, bytes]] = deque(maxlen=100)
        """Replies of Assist, and until when they are published."""
        self._answers: deque[OutgoingMessage] = deque(maxlen=100)
        self._corrected: deque[str] = deque(maxlen=100)
        """Ids of transcripts that were corrected."""
        self._speech = events.OFF
        self._last: bytes | None = None
        self._retained: dict[str, bytes] = {}
        self._published: tuple[object, ...] = ()
        """The state that was published last, with its reasons."""
        self._state_s = self._stats_s = -math.inf
        self._online_s = -math.inf

    def _put(self, name: str, payload: bytes) -> None:
        """Queue a message that is published only if the broker is online."""
        self._queue.append((name, payload))
        self._wake.set()

    def on_speech(self, speaking: bool) -> None:
        """Publish that speech begins or ends, if the broker is online."""
        self._speech = events.ON if speaking else events.OFF
        self._put(events.SPEECH, self._speech)

    def on_discarded(self, discarded: Discarded) -> None:
        """Publish, without text, that speech gave no transcript, if the broker is online."""
        self._put(events.DISCARDED, events.encode(events.discarded(discarded)))

    @property
    def wants_partials(self) -> bool:
        """True while partial texts are enabled and the broker is online."""
        return self._partials and self._connection.is_connected

    def on_partial(self, partial: Partial) -> None:
        """Publish a partial text, if that is enabled and the broker is online."""
        if self._partials:
            self._put(events.PARTIAL, events.encode(events.partial(partial)))

    def on_reply(self, reply: AssistReply) -> None:
        """Publish Assist's reply to a sentence, if Home Assistant is back at the broker soon."""
        until_s = time.monotonic() + REPLY_S
        self._replies.append((until_s, events.encode(events.assist_reply(reply))))
        self._wake.set()

    def on_correction(self, correction: Correction) -> None:
        """Publish that a user has corrected a transcript, if the broker is online."""
        self._corrected.append(correction.transcript_id)
        self._put(events.CORRECTION, events.encode(events.correction(correction)))

    def on_answer(self, message: OutgoingMessage) -> None:
        """Publish a late answer to a command, if the broker is online."""
        self._answers.append(message)
        self._wake.set()

    def set_last(self, event: bytes) -> None:
        """Set the event to publish as `last`."""
        self._last = event

    def on_connected(self) -> None:
        """Drop what was missed during the outage, and publish the present state again."""
        self._queue.clear()
        self._answers.clear()
        self._online_s = time.monotonic()  # its first message
        self.repeat()

    def repeat(self) -> None:
        """Publish the present state once more."""
        self._queue.append((events.SPEECH, self._speech))
        self._retained.clear()
        self._published = ()
        self._state_s = self._stats_s = -math.inf

    def publish(self, now_s: float) -> None:
        """Publish what is new; state and statistics once a minute in any case. Raises StoreError.

        Order: state, mute, microphone, statistics, queued messages, the last transcript, answers.
        """
        state = self._state()
        reasons, waits = self._troubles.reasons(waits=False), self._troubles.reasons(waits=True)
        published = (*state.news(), reasons, waits)
        if self._online_s + STATE_S <= now_s:  # an old connection's will may come late
            self._connection.publish(events.AVAILABILITY, events.ONLINE, retain=True)
            self._online_s = now_s
        if published != self._published or now_s >= self._state_s + STATE_S:
            message = events.state(state, self._outbox.depth(), reasons, waits)
            self._connection.publish(events.STATE, events.encode(message), retain=True)
            self._published, self._state_s = published, now_s
        if state.muted is not None:  # else the broker keeps the last known value
            self._retain(events.MUTE, events.ON if state.muted else events.OFF)
        online = events.ONLINE if state.microphone_online else events.OFFLINE
        self._retain(events.MICROPHONE, online)
        if self._stats and now_s >= self._stats_s + STATS_S:
            message = read_stats(self._stats(), self._store, self._outbox.expired)
            self._connection.publish(events.STATS, events.encode(message), qos=0)
            self._stats_s = now_s
        self.publish_queued()
        self._correct_last()
        if self._last is not None:
            self._connection.publish(events.LAST, self._last, qos=0)
            self._last = None
        while self._answers:
            self._connection.send(self._answers.popleft())

    def _correct_last(self) -> None:
        """Publish `last` again if the newest transcript was corrected; late, so nothing acts on
        it. Raises StoreError."""
        if not self._corrected:
            return
        for newest in self._store.query(limit=1):
            if newest.transcript.id in self._corrected:
                event = events.transcript(newest, self._node, datetime.now(UTC), late=True)
                self._last = events.encode(event)
        self._corrected.clear()

    def publish_stop(self) -> None:
        """Publish as the last state that the appliance has stopped; a muted one stays muted."""
        state = self._state()
        if state.status != "muted":
            message = events.state(state, self._outbox.depth()) | {"status": "stopped"}
            self._connection.publish(events.STATE, events.encode(message), retain=True)

    def publish_replies(self, now_s: float) -> None:
        """Publish the replies of Assist that are not too old."""
        while self._replies:
            until_s, payload = self._replies.popleft()
            if now_s <= until_s:
                self._connection.publish(events.ASSIST_REPLY, payload, qos=0)

    def publish_queued(self) -> None:
        """Publish the queued messages."""
        while self._queue:
            name, payload = self._queue.popleft()
            self._connection.publish(name, payload, qos=0)

    @property
    def due_s(self) -> float:
        """When state or statistics are due again, on time.monotonic()'s clock."""
        stats_s = self._stats_s + STATS_S if self._stats else math.inf
        return min(self._state_s + STATE_S, stats_s)

    def _retain(self, name: str, payload: bytes) -> None:
        """Publish a retained payload unless the broker has it."""
        if self._retained.get(name) != payload:
            self._connection.publish(name, payload, retain=True)
            self._retained[name] = payload
