"""Transcripts on their way to the broker: which are next, how many at once, which are late.

Owned by the publisher's thread; times are time.monotonic()'s.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from appliance.config import MqttSettings
from appliance.mqtt import events, troubles
from appliance.mqtt.client import FIRST_FAILURE
from appliance.mqtt.connection import DELAYS, Connection, Delays
from appliance.mqtt.troubles import Troubles
from appliance.store import Store, StoredTranscript

log = logging.getLogger("roomscribe.mqtt")

PAGE = 500
"""So many transcripts are looked at together when they are passed over."""
IN_FLIGHT = 20
"""Most unacknowledged messages, the product's limit and Mosquitto's."""
RESERVED = 6
"""Of these, kept free for availability, announcement, state, mute, microphone and an answer."""
LATE_S = DELAYS.subscribe_s + 1.0
"""A transcript that leaves this long after it was stored has waited for more than Home Assistant's
subscriptions after a reconnection."""
OLD_SPEECH_S = 30.0
"""Speech that ended this long before it is published is late, too: the appliance was busy, or
restarted."""
BOUND_EVERY_S = 1.0
"""Counting what waits takes a millisecond where it is much."""
SUBSCRIBER_DELAY_S = 2.0
"""Between tries while nobody subscribes: after a broker's restart its other clients come later."""
NOBODY_SUBSCRIBES = 16
"""Reason code of a PUBACK."""
REFUSALS = 3
"""After this many refusals in a row of one transcript, the next one is tried."""
RECENT_S = 30.0
"""A subscriber that goes may have stopped reading so long before its subscription ended: the
broker acknowledges meanwhile. Home Assistant was seen to do so for 3 s, longer in a large house."""
RECENT = 100
"""Of so many acknowledgements at most the time is known."""


class Outbox:
    """The store as a queue: strictly by number, a bounded number of them in flight.

    The cursor in the store follows the acknowledgements and never passes an unacknowledged
    transcript, so that whatever ends the process, sending again from the cursor loses nothing.
    """

    def __init__(self, store: Store, expiry_s: float, most: int = 0, page: int = PAGE) -> None:
        """Older ones than `expiry_s` are passed over, and the oldest beyond `most` (0: no bound).

        Raises StoreError.
        """
        self._page = page
        self.expired = 0
        """How many were passed over as too old."""
        self.passed_over = 0
        """How many were passed over because too many waited."""
        self.full = False
        """True from when one was passed over until less than `most` wait again."""
        self.refused_for_good = 0
        """Transcripts passed over because the broker refuses them and accepts the next ones."""
        self._store = store
        self._expiry_s = expiry_s
        self._most = most
        self._cursor = store.cursor()
        self._reached = self._cursor
        self._in_flight: dict[int, int] = {}
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._again = 0
        self._refusals = (0, 0)
        """The transcript that the broker refused last, and how often in a row."""
        self._suspect: int | None = None
        """A refused transcript that is passed over if the broker accepts the next one."""

    def due(self, limit: int) -> Iterator[StoredTranscript]:
        """Those to send now, in order, while fewer than `limit` are in flight.

        Each one must be reported with `sent` before the next is asked for. Raises StoreError.
        """
        while len(self._in_flight) < limit:
            page = self._store.read_after(self._reached, limit - len(self._in_flight))
            if not page:
                return
            for stored in page:
                if stored.age_s() < self._expiry_s:
                    yield stored
                else:
                    self.expired += not self.is_repeated(stored.seq)
                    self._reached = stored.seq

    def bound(self) -> None:
        """Passes over the oldest beyond the bound; raises StoreError.

        Not while any are in flight: then they are on their way, and each that arrives makes room.
        """
        if not self._most or self._in_flight or self.is_probing:
            return
        self.commit()
        waiting = self._store.depth()
        excess = waiting - self._most
        while excess > 0:
            page = self._store.read_after(self._reached, min(excess, self._page))
            if not page:
                break
            self._reached = page[-1].seq
            untold = sum(not self.is_repeated(stored.seq) for stored in page)
            self.passed_over += untold
            excess -= len(page)
            self.full = self.full or untold > 0
        if waiting < self._most:
            self.full = False

    def sent(self, message: int, seq: int) -> None:
        """Transcript `seq` was handed to the network as `message`."""
        self._in_flight[message] = seq
        self._reached = seq

    def acknowledged(self, message: int, now_s: float) -> bool:
        """The broker has `message`; False when that is no transcript of ours."""
        seq = self._in_flight.pop(message, None)
        if seq is None:
            return False
        self._recent.append((now_s, seq))
        if self._suspect is not None:
            log.warning(
                "the broker refused transcript %d %d times and accepts the next one: it stays in "
                "the log and is not published",
                *self._refusals,
            )
            self.refused_for_good += 1
            self._suspect = None
        return True

    def repeat(self, since_s: float) -> None:
        """All from the first that was acknowledged since then, or is in flight, is due again."""
        sent = [seq for acknowledged_s, seq in self._recent if acknowledged_s >= since_s]
        sent += self._in_flight.values()
        if self._suspect is not None:
            sent.append(self._suspect)
        self._recent.clear()
        self._suspect = None
        self._in_flight.clear()
        if sent:
            self._again = max(self._again, self._reached, *sent)
            self._reached = min(self._reached, min(sent) - 1)

    def is_repeated(self, seq: int) -> bool:
        """True for a transcript that `repeat` made due again."""
        return seq <= self._again

    def refused(self, message: int) -> bool:
        """The broker refuses `message`: it and all after it are due again; False as above.

        A transcript that was refused REFUSALS times becomes the suspect: the next one is due. If
        the broker accepts that, it is the suspect that it does not want, and not all of them.
        Raises StoreError.
        """
        seq = self._in_flight.get(message)
        if seq is None:
            return False
        probed = self.is_probing
        self.rewind()
        if not probed:
            known, times = self._refusals
            self._refusals = (seq, times + 1 if known == seq else 1)
            if self._refusals[1] >= REFUSALS and self._store.read_after(seq, 1):
                self._suspect = self._reached = seq
        return True

    def delayed(self, message: int) -> bool:
        """Nobody subscribes to `message`: it and all after it are due again; False as above."""
        ours = message in self._in_flight
        if ours:
            self.rewind()
        return ours

    @property
    def is_probing(self) -> bool:
        """True while the transcript behind a refused one is tried."""
        return self._suspect is not None

    def rewind(self) -> None:
        """Forgets what is in flight: it will be due again."""
        pending = list(self._in_flight.values())
        if self._suspect is not None:
            pending.append(self._suspect)
        if pending:
            self._reached = min(pending) - 1
        self._in_flight.clear()
        self._suspect = None

    def commit(self) -> None:
        """Writes the cursor where it belongs, if it moved. Raises StoreError."""
        known = min(self._in_flight.values(), default=self._reached + 1) - 1
        if self._suspect is not None:
            known = self._suspect - 1
        if known != self._cursor:
            self._store.move_cursor(known, back=known < self._cursor)
            self._cursor = known

    @property
    def waiting(self) -> bool:
        """True while anything is in flight."""
        return bool(self._in_flight)


class Delivery:
    """Sends what is due in the outbox, and takes the acknowledgements."""

    def __init__(
        self,
        settings: MqttSettings,
        node: str,
        outbox: Outbox,
        connection: Connection,
        *,
        found: Troubles,
        last: Callable[[bytes], None],
        delays: Delays = DELAYS,
    ) -> None:
        """`last` is given each event that the broker has taken, if the configuration wants it."""
        self._settings, self._node = settings, node
        self._outbox, self._connection, self._troubles = outbox, connection, found
        self._last, self._delays = last, delays
        self._events: dict[int, bytes] = {}
        self._window = self._limit = 1
        self._held_s = self._bound_s = 0.0

    def begin_anew(self, receive_maximum: int) -> None:
        """A connection stands, and takes so many unacknowledged messages."""
        self._held_s = 0.0
        self._window = max(1, min(IN_FLIGHT, receive_maximum) - RESERVED)
        self._limit = 1

    def lost(self) -> None:
        """The connection has ended: what it had not acknowledged is due again."""
        self._events.clear()
        self._outbox.rewind()

    def acknowledged(self, now_s: float, message: int, code: int) -> None:
        """A PUBACK: the broker has the message, or refuses it, or has nobody to give it to.

        After a connection and after a refusal one transcript goes alone, to find out: a whole
        window of them could reach somebody who subscribes just then without the first ones.
        """
        event = self._events.pop(message, None)
        if code >= FIRST_FAILURE:
            if self._outbox.refused(message):
                probing = self._outbox.is_probing
                self._hold(now_s if probing else now_s + self._delays.refusal_s)
        elif code == NOBODY_SUBSCRIBES and self._settings.hold:
            if self._outbox.delayed(message):
                self._hold(now_s + SUBSCRIBER_DELAY_S)
                self._troubles.set(troubles.NOBODY, troubles.nobody_subscribes(self._node))
        elif self._outbox.acknowledged(message, now_s):
            self._limit = self._window
            self._troubles.clear(troubles.NOBODY)
            if event is not None:
                self._last(event)

    def bound(self, now_s: float) -> None:
        """Keeps the outbox within its bound and says so; raises StoreError."""
        if now_s < self._bound_s:
            return
        self._bound_s = now_s + BOUND_EVERY_S
        self._outbox.bound()
        if self._outbox.full:
            why = troubles.outbox_full(self._settings.outbox_limit)
            self._troubles.set("outbox", why, f" ({self._outbox.passed_over} so far)")
        else:
            self._troubles.clear("outbox")

    def send(self, now_s: float, first: Callable[[], None]) -> None:
        """Sends what is due; late is what was stored before this connection stood, what was sent
        before, and old speech. `first` is called before each transcript, for what precedes it.

        Raises BrokerError and StoreError.
        """
        connected_s = self._connection.connected_s
        if connected_s is None or now_s < self._held_s:
            return
        for stored in self._outbox.due(self._limit):
            first()
            age_s = stored.age_s()
            speech_s = age_s + stored.transcript.latency_ms / 1000
            stood_s = time.monotonic() - connected_s  # `now_s` may be before what was just stored
            late = age_s > min(LATE_S, stood_s) or speech_s > OLD_SPEECH_S
            late = late or self._outbox.is_repeated(stored.seq)
            event = events.transcript(stored, self._node, datetime.now(UTC), late)
            payload = events.encode(event)
            expiry_s = max(1, int(self._settings.expiry_s - age_s))
            message = self._connection.publish(events.TRANSCRIPT, payload, expiry_s=expiry_s)
            if self._settings.retain_last:
                self._events[message] = payload
            self._outbox.sent(message, stored.seq)

    def due_s(self, now_s: float) -> float:
        """When something is to be done though nothing arrives."""
        bound_s = self._bound_s if self._outbox.full else math.inf
        return min(bound_s, self._held_s if self._held_s > now_s else math.inf)

    def _hold(self, until_s: float) -> None:
        """Send nothing until then, and one transcript at a time afterwards."""
        self._events.clear()
        self._held_s = until_s
        self._limit = 1
