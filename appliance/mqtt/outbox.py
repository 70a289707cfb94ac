"""The outbox: which transcripts are published next, how many at once, and which are late.

Owned by the publisher's thread; times are time.monotonic()'s.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from appliance.config import MqttSettings
from appliance.mqtt import events, troubles
from appliance.mqtt.client import FIRST_FAILURE
from appliance.mqtt.connection import DELAYS, BrokerConnection, Delays
from appliance.mqtt.troubles import Troubles
from appliance.records import Transcript
from appliance.store import Store, StoredTranscript

IN_FLIGHT = 20
"""Most unacknowledged messages: our limit, and Mosquitto's."""
RESERVED = 6
"""Of these, kept free for availability, announcement, state, mute, microphone and an answer."""
LATE_S = DELAYS.subscribe_s + 1.0
"""A transcript is late if it is sent more than this after it was stored: longer than Home
Assistant's subscriptions take after a reconnection."""
OLD_SPEECH_S = 30.0
"""It is late, too, if its speech ended this long ago: the appliance was busy, or restarted."""
SUBSCRIBER_DELAY_S = 2.0
"""Between attempts while nobody subscribes: other clients return later than we do."""
NOBODY_SUBSCRIBES = 16
"""Reason code of a PUBACK."""
RECENT_S = 30.0
"""A subscriber may have stopped reading this long before its subscription ends, and the broker
acknowledges meanwhile. Home Assistant did so for 3 s; a large one may take longer."""
PAGE = 100
"""Transcripts that are looked at at a time."""
RECENT = 100
"""Acknowledgements whose time is kept."""


class Outbox:
    """The store as a queue: strictly by number, with a limited number in flight.

    Four numbers, from the lowest to the highest:

    - the cursor, in the store: the broker has everything up to it;
    - the transcripts in flight: sent, and not acknowledged yet;
    - `_reached`: the last transcript that was sent or passed over;
    - `_again`: up to here, transcripts are sent for the second time.

    The cursor never passes an unacknowledged transcript. So whatever ends the process, sending
    again from the cursor loses nothing.
    """

    def __init__(self, store: Store, expiry_s: float) -> None:
        """Pass over what is older than `expiry_s`. Raises StoreError."""
        self.expired = 0
        """Transcripts passed over as too old."""
        self._store = store
        self._expiry_s = expiry_s
        self._cursor = store.cursor()
        self._reached = self._cursor
        self._in_flight: dict[int, int] = {}
        """Number of the transcript by number of the message."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        """When a transcript was acknowledged, and its number; after a restart, its start."""
        for stored in store.read_after(max(0, self._cursor - RECENT), RECENT):
            if stored.seq <= self._cursor and stored.age_s() < RECENT_S:
                self._recent.append((time.monotonic(), stored.seq))
        self._again = 0

    def iter_due(self, limit: int) -> Iterator[StoredTranscript]:
        """Yield the transcripts to send now, in order, while fewer than `limit` are in flight.

        Call `mark_sent` for each one before taking the next. Raises StoreError.
        """
        while len(self._in_flight) < limit:
            self.skip_expired()
            page = self._store.read_after(self._reached, limit - len(self._in_flight))
            if not page:
                return
            yield from page

    def skip_expired(self) -> None:
        """Pass over what is too old to be published, also without a connection: the retention
        deletes by age what the cursor has passed. Raises StoreError."""
        while page := self._store.read_after(self._reached, PAGE):
            for stored in page:
                if stored.age_s() < self._expiry_s:
                    return
                self.expired += not self.is_repeated(stored.seq)
                self._reached = stored.seq

    def mark_sent(self, message: int, seq: int) -> None:
        """Record that transcript `seq` was sent as `message`."""
        self._in_flight[message] = seq
        self._reached = seq

    def mark_acknowledged(self, message: int, now_s: float) -> bool:
        """Record that the broker has `message`; return False if that is no transcript of ours."""
        seq = self._in_flight.pop(message, None)
        if seq is None:
            return False
        self._recent.append((now_s, seq))
        return True

    def resend_since(self, since_s: float) -> None:
        """Make everything due again from the first one acknowledged since then, or in flight."""
        sent = [seq for acknowledged_s, seq in self._recent if acknowledged_s >= since_s]
        sent += self._in_flight.values()
        self._recent.clear()
        self._in_flight.clear()
        if sent:
            self._again = max(self._again, self._reached, *sent)
            self._reached = min(self._reached, min(sent) - 1)

    def is_repeated(self, seq: int) -> bool:
        """Return True for a transcript that `resend_since` made due again."""
        return seq <= self._again

    def mark_refused(self, message: int) -> bool:
        """Make a refused message and everything after it due again; False as above."""
        if message not in self._in_flight:
            return False
        self.rewind()
        return True

    def mark_unsubscribed(self, message: int) -> bool:
        """Make a message without subscribers and everything after it due again; False as above.

        A client that subscribed meanwhile may have got what was sent after it. One that left may
        have got what was sent before, if that acknowledgement is lost. Those are repeated.
        """
        seq = self._in_flight.get(message)
        if seq is None:
            return False
        last = max(self._in_flight.values())
        self._again = max(self._again, last if last > seq else seq - 1)
        self.rewind()
        return True

    def rewind(self) -> None:
        """Make everything in flight due again."""
        if self._in_flight:
            self._reached = min(self._in_flight.values()) - 1
        self._in_flight.clear()

    def save_cursor(self) -> None:
        """Store the cursor if it moved. Raises StoreError."""
        # Everything before the first one in flight is acknowledged.
        cursor = min(self._in_flight.values(), default=self._reached + 1) - 1
        if cursor != self._cursor:
            self._store.move_cursor(cursor, back=cursor < self._cursor)
            self._cursor = cursor

    @property
    def has_in_flight(self) -> bool:
        """True while anything is in flight."""
        return bool(self._in_flight)


class Delivery:
    """Sends what is due in the outbox and handles the acknowledgements."""

    def __init__(
        self,
        settings: MqttSettings,
        node: str,
        outbox: Outbox,
        connection: BrokerConnection,
        *,
        found: Troubles,
        set_last: Callable[[bytes], None],
        complete: Callable[[Transcript, dict[str, Any]], None] = lambda *_: None,
        delays: Delays = DELAYS,
    ) -> None:
        """`set_last` is called with each event that the broker accepted; `complete` with each
        transcript and its event, to which it may add fields."""
        self._settings, self._node = settings, node
        self._outbox, self._connection, self._troubles = outbox, connection, found
        self._set_last, self._complete, self._delays = set_last, complete, delays
        self._events: dict[int, bytes] = {}
        self._window = self._limit = 1
        """Transcripts in flight that this connection allows, and that are allowed now."""
        self._held_s = 0.0

    def on_connected(self, receive_maximum: int) -> None:
        """Start on a new connection, which takes so many unacknowledged messages."""
        self._held_s = 0.0
        self._window = max(1, min(IN_FLIGHT, receive_maximum) - RESERVED)
        self._limit = 1

    def on_lost(self) -> None:
        """Make everything due again that the lost connection had not acknowledged."""
        self._events.clear()
        self._outbox.rewind()

    def on_puback(self, now_s: float, message: int, code: int) -> None:
        """Handle a PUBACK: the broker has the message, refuses it, or has no subscriber for it.

        After a connection and after a refusal, one transcript goes alone, as a trial: a subscriber
        that subscribes just then could get a whole window of them without the first ones.
        """
        event = self._events.pop(message, None)
        if code >= FIRST_FAILURE:
            if self._outbox.mark_refused(message):
                self._hold(now_s + self._delays.refusal_s)
        elif code == NOBODY_SUBSCRIBES:
            if self._outbox.mark_unsubscribed(message):
                self._hold(now_s + SUBSCRIBER_DELAY_S)
                topic = self._settings.topic(self._node, events.TRANSCRIPT)
                self._troubles.set(troubles.NOBODY, troubles.nobody_subscribes(topic))
        elif self._outbox.mark_acknowledged(message, now_s):
            self._limit = self._window
            self._troubles.clear(troubles.NOBODY)
            if event is not None:
                self._set_last(event)

    def send_due(self, now_s: float, first: Callable[[], None]) -> None:
        """Send what is due; `first` is called before each transcript.

        Late is what was stored before this connection began, what is sent again, and old speech.
        Raises BrokerError and StoreError.
        """
        if not self._connection.is_connected or now_s < self._held_s:
            return
        for stored in self._outbox.iter_due(self._limit):
            first()
            age_s = stored.age_s()
            speech_s = age_s + stored.transcript.latency_ms / 1000
            # not `now_s`, which may be before the moment when this one was stored
            connected_for_s = time.monotonic() - self._connection.connected_s
            late = age_s > min(LATE_S, connected_for_s) or speech_s > OLD_SPEECH_S
            late = late or self._outbox.is_repeated(stored.seq)
            event = events.transcript(stored, self._node, datetime.now(UTC), late)
            self._complete(stored.transcript, event)
            payload = events.encode(event)
            expiry_s = max(1, int(self._delays.expiry_s - age_s))
            message = self._connection.publish(events.TRANSCRIPT, payload, expiry_s=expiry_s)
            self._events[message] = payload
            self._outbox.mark_sent(message, stored.seq)

    def due_s(self, now_s: float) -> float:
        """Return when something is due even if nothing arrives."""
        return self._held_s if self._held_s > now_s else math.inf

    def _hold(self, until_s: float) -> None:
        """Send nothing until then, and one transcript at a time afterwards."""
        self._events.clear()
        self._held_s = until_s
        self._limit = 1
