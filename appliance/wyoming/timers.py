"""Home Assistant's timers of this room, so that one rings even if Home Assistant has gone."""

import time
from collections.abc import Callable

from appliance.wyoming.protocol import Event

MOST_TIMERS = 50
GRACE_S = 2.0
"""A timer rings by itself if Home Assistant does not say so long after its end."""
RING_S = 60.0
"""A ring ends by itself after this."""


class Timers:
    """The timers that run, and those that ring. One thread, except for `rings` and `hush`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._ring_until_s = clock, 0.0
        self._ends_s: dict[str, float] = {}

    @property
    def rings(self) -> bool:
        """True while a timer rings."""
        return self._clock() < self._ring_until_s

    def take(self, event: Event) -> None:
        """Take in an event of the protocol (wyoming/timer.py); a wrong one does nothing."""
        name, left_s = event.data.get("id"), event.data.get("total_seconds")
        ended = self._ends_s.pop(name, None) if isinstance(name, str) else None
        runs = event.data.get("is_active") is not False and len(self._ends_s) < MOST_TIMERS
        if event.type == "timer-finished" and ended is not None:
            self._ring_until_s = self._clock() + RING_S
        elif runs and isinstance(name, str) and type(left_s) in (int, float) and left_s is not None:
            self._ends_s[name] = self._clock() + left_s

    def poll(self) -> None:
        """Ring for the timers that are over. Call it about once a second."""
        now_s = self._clock()
        for name in [name for name, end_s in self._ends_s.items() if end_s + GRACE_S <= now_s]:
            del self._ends_s[name]
            self._ring_until_s = now_s + RING_S

    def hush(self) -> None:
        """Stop ringing; timers that still run will ring."""
        self._ring_until_s = 0.0
