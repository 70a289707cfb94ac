"""Wait for a condition that another thread or process fulfils."""

from __future__ import annotations

import time
from collections.abc import Callable


def holds(condition: Callable[[], object], within_s: float, every_s: float = 0.02) -> bool:
    """Wait until `condition` holds; return False if it does not within `within_s`."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(every_s)
    return True


def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    """Wait until `condition` holds, and fail the test if it does not within `within_s`."""
    assert holds(condition, within_s), f"the condition did not hold within {within_s:g} s"
