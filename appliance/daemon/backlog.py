"""Windows that wait to be transcribed: in the order in which they were heard, bounded, and with few
samples in memory: those of the others are in the spool until their turn comes.

When too much waits, the oldest window is dropped; the newest speech matters most in a house.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from appliance.config import SpoolSettings
from appliance.daemon.health import Health
from appliance.daemon.spool import DEATHS, Kept, Spool
from appliance.records import Discarded, Window

log = logging.getLogger("roomscribe.daemon")

HELD = 4
"""So many windows at most keep their samples here although the spool has them, too."""
UNSPOOLED = 64
"""So many windows wait at most that the spool does not have."""
BEHIND_S = 30.0
"""More speech than this, waiting, is told as a trouble."""
CAUGHT_UP_S = 10.0
"""Less than this is no trouble any more."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A window in the queue."""

    id: str
    utterance_id: str
    duration_s: float
    deaths: int
    """How many processes ended while they transcribed it."""
    queued_s: float
    """When it was queued, on time.monotonic()'s clock."""
    window: Window | None
    """None when it is in the spool alone."""
    spooled: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """A window whose turn has come."""

    window: Window
    deaths: int
    queued_s: float


class Backlog:
    """The queue between the segmenter and the encoder. Any thread may call any method."""

    def __init__(
        self,
        spool: Spool,
        settings: SpoolSettings,
        health: Health,
        discard: Callable[[Discarded], None],
    ) -> None:
        """Begins with what was left in `spool`; `discard` is told of each window that is lost."""
        self._spool, self._limit = spool, settings.limit_mb << 20
        self._health, self._discard = health, discard
        self._news = threading.Condition()
        self._waiting: deque[Waiting] = deque(_left(kept) for kept in spool.left())
        self._ends_s = math.inf
        """When it is over even if windows wait."""
        self._complete = False
        """True when nothing will be added."""
        self._behind = self._dropping = False
        if self._waiting:
            health.count("recovered", len(self._waiting))
            log.info("%d windows were left by the process before", len(self._waiting))
        self._tell()

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, window: Window) -> None:
        """Keeps a window over a crash, then queues it; drops the oldest of too many."""
        spooled = self._spool.put(window)
        with self._news:
            held = sum(1 for one in self._waiting if one.window) < HELD
            self._waiting.append(
                Waiting(
                    window.id,
                    window.utterance_id,
                    window.duration_s,
                    0,
                    time.monotonic(),
                    window if held or not spooled else None,
                    spooled,
                )
            )
            dropped = self._surplus()
            self._news.notify()
        for one in dropped:
            self._drop(one)
        self._tell()

    def next(self, timeout_s: float) -> Taken | None:
        """The oldest window, whose transcription begins now; None when none came for a while."""
        with self._news:
            if not self._waiting and not self.over:
                self._news.wait(timeout_s)
            if not self._waiting or self.over:
                return None
            one = self._waiting.popleft()
        self._tell()
        window = one.window or self._spool.load(one.id)
        if window is None:
            self._spool.done(one.id)
            self._discard(Discarded("failed", one.utterance_id, one.duration_s))
            return None
        if one.deaths < DEATHS:
            self._spool.begin(one.id)
        return Taken(window, one.deaths, one.queued_s)

    def complete(self, within_s: float = math.inf) -> None:
        """Nothing follows; what still waits after `within_s` is left to the next start."""
        with self._news:
            self._complete = True
            self._ends_s = min(self._ends_s, time.monotonic() + within_s)
            self._news.notify_all()

    @property
    def over(self) -> bool:
        """True when no more windows are to be taken."""
        return self._complete and (not self._waiting or self.out_of_time)

    @property
    def out_of_time(self) -> bool:
        """True when what still waits is left to the next start."""
        return time.monotonic() >= self._ends_s

    def lost(self) -> int:
        """How many of those that wait would be lost with the process."""
        with self._news:
            return sum(1 for one in self._waiting if not one.spooled)

    def _surplus(self) -> list[Waiting]:
        """Takes out the oldest windows until the rest is within the limits."""
        dropped: list[Waiting] = []
        unspooled = [one for one in self._waiting if not one.spooled]
        dropped += unspooled[: max(0, len(unspooled) - UNSPOOLED)]
        size = self._spool.size
        for one in self._waiting if size > self._limit else ():
            while self._spool.size > self._limit and self._spool.release():
                pass
            if self._spool.size <= self._limit:
                break
            if one.spooled:
                self._spool.done(one.id)
                dropped.append(one)
        for one in dropped:
            self._waiting.remove(one)
        return dropped

    def _drop(self, one: Waiting) -> None:
        if not self._dropping:
            self._dropping = True
            log.error("too much speech waits to be transcribed: the oldest is dropped")
        self._health.count("lost_overload")
        self._discard(Discarded("overload", one.utterance_id, one.duration_s))

    def _tell(self) -> None:
        """Says so when the appliance falls behind, and when it has caught up."""
        with self._news:
            waiting_s = sum(one.duration_s for one in self._waiting)
            number = len(self._waiting)
            was, bound_s = self._behind, CAUGHT_UP_S if self._behind else BEHIND_S
            self._behind = waiting_s > bound_s
            behind = self._behind
            self._dropping = self._dropping and behind
        if behind == was:
            return
        if behind:
            log.warning("%d windows wait (%.0f s of speech): we are behind", number, waiting_s)
        else:
            log.info("caught up: %d windows wait", number)
        self._health.trouble(
            "backlog",
            f"more than {BEHIND_S:.0f} s of speech wait: it comes faster than it can be "
            "transcribed; a smaller model is faster"
            if behind
            else None,
        )


def _left(kept: Kept) -> Waiting:
    """A window of the process before."""
    return Waiting(
        kept.id,
        kept.utterance_id,
        kept.duration_s,
        kept.attempts,
        time.monotonic(),
        None,
        True,
    )
