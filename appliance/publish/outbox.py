"""Which transcripts the broker is sent next, and how far it has them. Used by one thread."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.store.store import Store
from appliance.store.tables import StoredTranscript

PAGE = 500
"""So many transcripts are looked at together when they are passed over."""


class Outbox:
    """The store as a queue: strictly by number, a bounded number of them in flight.

    The cursor in the store follows the acknowledgements and never passes an unacknowledged
    transcript, so that whatever ends the process, sending again from the cursor loses nothing.
    """

    def __init__(self, store: Store, expiry_s: float, most: int = 0) -> None:
        """Older ones than `expiry_s` are passed over, and the oldest beyond `most` (0: no bound).

        Raises PublishError.
        """
        self.expired = 0
        """How many were passed over as too old."""
        self.passed_over = 0
        """How many were passed over because too many waited."""
        self.full = False
        """True from when one was passed over until less than `most` wait again."""
        self._store = store
        self._expiry_s = expiry_s
        self._most = most
        self._cursor = store.cursor()
        self._reached = self._cursor
        self._in_flight: dict[int, int] = {}

    def due(self, limit: int) -> Iterator[StoredTranscript]:
        """Those to send now, in order, while fewer than `limit` are in flight.

        Each one must be reported with `sent` before the next is asked for. Raises PublishError.
        """
        while len(self._in_flight) < limit:
            page = self._store.after(self._reached, limit - len(self._in_flight))
            if not page:
                return
            for stored in page:
                if stored.age_s() < self._expiry_s:
                    yield stored
                else:
                    self.expired += 1
                    self._reached = stored.seq

    def bound(self) -> None:
        """Passes over the oldest beyond the bound; raises PublishError.

        Not while any are in flight: then they are on their way, and each that arrives makes room.
        """
        if not self._most or self._in_flight:
            return
        self.commit()
        waiting = self._store.depth()
        excess = waiting - self._most
        while excess > 0:
            page = self._store.after(self._reached, min(excess, PAGE))
            if not page:
                break
            self._reached = page[-1].seq
            self.passed_over += len(page)
            excess -= len(page)
            self.full = True
        if waiting < self._most:
            self.full = False

    def sent(self, message: int, seq: int) -> None:
        """Transcript `seq` was handed to the network as `message`."""
        self._in_flight[message] = seq
        self._reached = seq

    def acknowledged(self, message: int) -> bool:
        """The broker has `message`; False when that is no transcript of ours."""
        return self._in_flight.pop(message, None) is not None

    def refused(self, message: int) -> bool:
        """The broker does not want `message`: it and all after it are due again; False as above."""
        ours = message in self._in_flight
        if ours:
            self.rewind()
        return ours

    def rewind(self) -> None:
        """Forgets what is in flight: it will be due again."""
        if self._in_flight:
            self._reached = min(self._in_flight.values()) - 1
            self._in_flight.clear()

    def commit(self) -> None:
        """Writes the cursor where it belongs, if it moved. Raises PublishError."""
        known = min(self._in_flight.values(), default=self._reached + 1) - 1
        if known > self._cursor:
            self._store.move_cursor(known)
            self._cursor = known

    @property
    def waiting(self) -> bool:
        """True while anything is in flight."""
        return bool(self._in_flight)
