"""How the appliance is: troubles by stage, and counters.

Any thread may call it.

What the machine says of itself: its name, its processor's temperature, what slows it down.

Read from files alone, in less than a millisecond; what a machine does not say is None.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from appliance.records import ApplianceStats
from appliance.system import soc_temperature_c, throttling


class Health:
    """Troubles and counters of one running appliance; calls `on_change` when a trouble changes."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._troubles: dict[str, str] = {}
        self._counters: Counter[str] = Counter()
        self._started_s = time.monotonic()

    def trouble(self, stage: str, reason: str | None) -> bool:
        """Sets what is wrong with `stage`, in plain words with the cure; None clears it.

        True when that is news.
        """
        with self._lock:
            if self._troubles.get(stage) == reason:
                return False
            if reason is None:
                del self._troubles[stage]
            else:
                self._troubles[stage] = reason
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


def stats(health: Health, npu_temperature_c: float | None) -> ApplianceStats:
    """Counters and readings of this moment."""
    return ApplianceStats(
        counters=health.counters(),
        uptime_s=health.uptime_s,
        npu_temperature_c=npu_temperature_c,
        soc_temperature_c=soc_temperature_c(),
        throttling=throttling(),
    )
