"""Troubles by stage, and counters."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable


class Health:
    """Troubles and counters of one running appliance. Any thread may call any method."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called when a trouble changes, by the thread that changed it."""
        self._lock = threading.Lock()
        self._troubles: dict[str, str] = {}
        self._counters: Counter[str] = Counter()
        self._started_s = time.monotonic()

    def trouble(self, stage: str, text: str | None) -> bool:
        """Sets what is wrong with `stage`, in plain words with the cure; None clears it.

        True when that is news.
        """
        with self._lock:
            if self._troubles.get(stage) == text:
                return False
            if text is None:
                del self._troubles[stage]
            else:
                self._troubles[stage] = text
        self.on_change()
        return True

    def count(self, name: str, amount: int = 1) -> None:
        """Adds to a counter."""
        with self._lock:
            self._counters[name] += amount

    def counters(self) -> dict[str, int]:
        """A copy of all counters."""
        with self._lock:
            return dict(self._counters)

    def troubles(self) -> dict[str, str]:
        """What is wrong now, by stage, in plain words; empty when all is well; a copy."""
        with self._lock:
            return dict(self._troubles)

    @property
    def uptime_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s
