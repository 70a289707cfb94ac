"""The outbox: which transcript is published next, and whether it is late.

Owned by the publisher's thread; times are time.monotonic()'s.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from appliance.config import MqttSettings
from appliance.mqtt import events, troubles
from appliance.mqtt.client import FIRST_FAILURE
from appliance.mqtt.connection import DELAYS, BrokerConnection, Delays
from appliance.mqtt.troubles import Troubles
from appliance.records import Transcript
from appliance.store import Store, StoredTranscript

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
RECENT = 100
"""Acknowledgements whose time is kept."""


class Outbox:
    """The store as a queue: strictly by number, one transcript at a time.

    Three numbers:

    - the cursor, in the store: the broker has everything up to it;
    - `_reached`: the last transcript that was acknowledged or passed over, which the cursor
      follows once a step;
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
        self._cursor = self._reached = store.cursor()
        self._sent: tuple[int, int] | None = None
        """Numbers of the message and the transcript that the broker has not acknowledged."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        """When a transcript was acknowledged, and its number; after a restart, its start."""
        for stored in store.read_after(max(0, self._cursor - RECENT), RECENT):
            if stored.seq <= self._cursor and stored.age_s() < RECENT_S:
                self._recent.append((time.monotonic(), stored.seq))
        self._again = 0

    def next_due(self) -> StoredTranscript | None:
        """Return the transcript to send now; None if there is none, or one is not acknowledged.

        Raises StoreError.
        """
        return None if self._sent else self.skip_expired()

    def skip_expired(self) -> StoredTranscript | None:
        """Pass over what is too old to be published, and return the first that is not.

        Call it also without a connection: the retention deletes by age what the cursor has passed.
        Raises StoreError.
        """
        while page := self._store.read_after(self._reached, 1):
            stored = page[0]
            if stored.age_s() < self._expiry_s:
                return stored
            self.expired += not self.is_repeated(stored.seq)
            self._reached = stored.seq
        return None

    def mark_sent(self, message: int, seq: int) -> None:
        """Record that transcript `seq` was sent as `message`."""
        self._sent = message, seq

    def is_sent(self, message: int) -> bool:
        """Return True if the transcript that is not acknowledged was sent as `message`."""
        return self._sent is not None and self._sent[0] == message

    def mark_acknowledged(self, now_s: float) -> None:
        """Record that the broker has the transcript that was sent."""
        if self._sent:
            self._reached = self._sent[1]
            self._recent.append((now_s, self._reached))
        self._sent = None

    def rewind(self) -> None:
        """Make the transcript that was sent due again."""
        self._sent = None

    def resend_since(self, since_s: float) -> None:
        """Make everything due again from the first one acknowledged since then, or just sent."""
        sent = [seq for acknowledged_s, seq in self._recent if acknowledged_s >= since_s]
        sent += [self._sent[1]] if self._sent else []
        self._recent.clear()
        self._sent = None
        if sent:
            self._again = max(self._again, *sent)
            self._reached = min(self._reached, min(sent) - 1)

    def is_repeated(self, seq: int) -> bool:
        """Return True for a transcript that `resend_since` made due again."""
        return seq <= self._again

    def save_cursor(self) -> None:
        """Store the cursor if it moved. Raises StoreError."""
        if self._reached != self._cursor:
            self._store.move_cursor(self._reached, back=self._reached < self._cursor)
            self._cursor = self._reached

    @property
    def has_in_flight(self) -> bool:
        """True while a transcript is not acknowledged."""
        return self._sent is not None


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
        self._event = b""
        """Event of the transcript that was sent last."""
        self._held_s = 0.0

    def on_connected(self) -> None:
        """Start on a new connection."""
        self._held_s = 0.0

    def on_lost(self) -> None:
        """Make due again what the lost connection had not acknowledged."""
        self._outbox.rewind()

    def on_puback(self, now_s: float, message: int, code: int) -> None:
        """Handle a PUBACK: the broker has the message, refuses it, or has no subscriber for it."""
        if not self._outbox.is_sent(message):
            return
        if code >= FIRST_FAILURE:
            self._outbox.rewind()
            self._held_s = now_s + self._delays.refusal_s
        elif code == NOBODY_SUBSCRIBES:
            self._outbox.rewind()
            self._held_s = now_s + SUBSCRIBER_DELAY_S
            topic = self._settings.topic(self._node, events.TRANSCRIPT)
            self._troubles.set(troubles.NOBODY, troubles.nobody_subscribes(topic))
        else:
            self._outbox.mark_acknowledged(now_s)
            self._troubles.clear(troubles.NOBODY)
            self._set_last(self._event)

    def send_due(self, now_s: float, first: Callable[[], None]) -> None:
        """Send the next transcript; `first` is called before it.

        Late is what was stored before this connection began, what is sent again, and old speech.
        Raises BrokerError and StoreError.
        """
        if not self._connection.is_connected or now_s < self._held_s:
            return
        stored = self._outbox.next_due()
        if stored is None:
            return
        first()
        age_s = stored.age_s()
        speech_s = age_s + stored.transcript.latency_ms / 1000
        # not `now_s`, which may be before the moment when this one was stored
        connected_for_s = time.monotonic() - self._connection.connected_s
        late = age_s > min(LATE_S, connected_for_s) or speech_s > OLD_SPEECH_S
        late = late or self._outbox.is_repeated(stored.seq)
        event = events.transcript(stored, self._node, datetime.now(UTC), late)
        self._complete(stored.transcript, event)
        self._event = events.encode(event)
        expiry_s = max(1, int(self._delays.expiry_s - age_s))
        message = self._connection.publish(events.TRANSCRIPT, self._event, expiry_s=expiry_s)
        self._outbox.mark_sent(message, stored.seq)

    def due_s(self, now_s: float) -> float:
        """Return when something is due even if nothing arrives."""
        return self._held_s if self._held_s > now_s else math.inf
