"""The outbox: which transcript is published next, and whether it is late.

Owned by the publisher's thread; times are time.monotonic()'s.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from appliance.mqtt import events, troubles
from appliance.mqtt.client import FIRST_FAILURE, Lost
from appliance.mqtt.connection import DELAYS, BrokerConnection
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
LOSSES = 3
"""If the broker ends so many connections in a row with the same transcript in flight, it refuses
that one."""
RECENT = 100
"""Acknowledgements whose time is kept."""


class Outbox:
    """The store as a queue: strictly by number, one transcript at a time.

    Three numbers:

    - the cursor, in the store: the broker has everything up to it;
    - `_reached`: the last transcript that was acknowledged, refused or passed over, which the
      cursor follows once a step, up to the first of the refused ones;
    - `_again`: up to here, transcripts are sent for the second time.

    The cursor never passes an unacknowledged transcript. So whatever ends the process, sending
    again from the cursor loses nothing.
    """

    def __init__(self, store: Store, expiry_s: float) -> None:
        """Pass over what is older than `expiry_s`. Raises StoreError."""
        self.expired = 0
        """Transcripts passed over as too old."""
        self.refused: dict[int, float] = {}
        """Transcripts that the broker refused alone, and when each is due again."""
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

    def next_due(self, now_s: float = 0.0) -> StoredTranscript | None:
        """Pass over what is too old to be published, and return the transcript to send now; None if
        there is none, or one is not acknowledged.

        Call it also without a connection: the retention deletes by age what the cursor has passed.
        Raises StoreError.
        """
        if self._sent:
            return None
        for seq in sorted(seq for seq, due_s in self.refused.items() if now_s >= due_s):
            page = [one for one in self._store.read_after(seq - 1, 1) if one.seq == seq]
            if page and page[0].age_s() < self._expiry_s:
                return page[0]
            self.expired += len(page)
            del self.refused[seq]
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

    def mark_acknowledged(self, now_s: float) -> bool:
        """Record that the broker has the transcript that was sent. Return True if it is the last
        one, by number."""
        seq = self.in_flight
        self._sent = None
        self.refused.pop(seq, None)
        self._recent.append((now_s, seq))
        newest, self._reached = seq >= self._reached, max(self._reached, seq)
        return newest

    def set_aside(self, due_s: float) -> None:
        """Record that the broker refused the transcript that was sent: it is due again at `due_s`,
        and the next one now."""
        seq = self.in_flight
        self._sent = None
        self.refused[seq] = due_s
        self._reached = max(self._reached, seq)

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
            self.refused = {seq: at for seq, at in self.refused.items() if seq <= self._reached}

    def is_repeated(self, seq: int) -> bool:
        """Return True for a transcript that `resend_since` made due again."""
        return seq <= self._again

    def save_cursor(self) -> None:
        """Store the cursor if it moved. Raises StoreError."""
        cursor = min([self._reached, *(seq - 1 for seq in self.refused)])
        if cursor != self._cursor:
            self._store.move_cursor(cursor, back=cursor < self._cursor)
            self._cursor = cursor

    def depth(self) -> int:
        """Return how many transcripts the broker does not have. Any thread. Raises StoreError."""
        return self._store.depth(self._reached) + len(self.refused)

    @property
    def in_flight(self) -> int:
        """Number of the transcript that is not acknowledged; 0: none."""
        return self._sent[1] if self._sent else 0


class Delivery:
    """Sends what is due in the outbox and handles the acknowledgements."""

    def __init__(
        self,
        connection: BrokerConnection,
        outbox: Outbox,
        *,
        set_last: Callable[[bytes], None],
        complete: Callable[[Transcript, dict[str, Any]], None] = lambda *_: None,
    ) -> None:
        """`set_last` is called with each event that the broker accepted; `complete` with each
        transcript and its event, to which it may add fields."""
        self._settings, self._node = connection.settings, connection.node
        self._outbox, self._connection, self._troubles = outbox, connection, connection.troubles
        self._set_last, self._complete, self._delays = set_last, complete, connection.delays
        self._event = b""
        """Event of the transcript that was sent last."""
        self._held_s = 0.0
        self._losses: deque[int] = deque(maxlen=LOSSES)
        """The transcript in flight at the end of each of the last connections."""

    def on_lost(self, now_s: float, lost: Lost) -> None:
        """Make due again what the lost connection had not acknowledged.

        A transcript at which the broker ended one connection after another is set aside.
        """
        seq, self._held_s = self._outbox.in_flight, 0.0
        self._losses.append(seq)
        on_purpose = lost.code == troubles.TAKEN_OVER and self._losses.count(seq) == LOSSES
        if seq and (on_purpose or seq in self._outbox.refused):
            self._set_aside(now_s, "the connection ended")
        self._outbox.rewind()

    def on_puback(self, now_s: float, message: int, code: int, reason: str) -> None:
        """Handle a PUBACK: the broker has the message, refuses it, or has no subscriber for it."""
        if not self._outbox.is_sent(message):
            return
        if code >= FIRST_FAILURE and code not in troubles.REFUSES_ALL:
            self._set_aside(now_s, reason)
        elif code >= FIRST_FAILURE:
            self._outbox.rewind()
            self._held_s = now_s + self._delays.refusal_s
        elif code == NOBODY_SUBSCRIBES:
            self._outbox.rewind()
            self._held_s = now_s + SUBSCRIBER_DELAY_S
            topic = self._settings.topic(self._node, events.TRANSCRIPT)
            self._troubles.set(troubles.NOBODY, troubles.NO_SUBSCRIBER.format(topic))
        else:
            self._troubles.clear(troubles.NOBODY)
            if self._outbox.mark_acknowledged(now_s):
                self._set_last(self._event)

    def _set_aside(self, now_s: float, reason: str) -> None:
        """Go on without the transcript that was sent, and report it."""
        self._outbox.set_aside(now_s + self._delays.again_s)
        why = troubles.refused_alone(self._settings, self._outbox.refused, reason)
        self._troubles.set(troubles.TRANSCRIPTS, why)

    def send_due(self, now_s: float, first: Callable[[], None]) -> None:
        """Send the next transcript; `first` is called before it.

        Late is what was stored before this connection began, what is sent again, and old speech.
        Raises BrokerError and StoreError.
        """
        if not self._connection.is_connected or now_s < self._held_s:
            return
        stored = self._outbox.next_due(now_s)
        if not self._outbox.refused:
            self._troubles.clear(troubles.TRANSCRIPTS)
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
