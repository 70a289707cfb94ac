"""Waiting for what happens in another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def holds(condition: Callable[[], object], within_s: float, every_s: float = 0.02) -> bool:
    """Waits until `condition` holds; False when it does not in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(every_s)
    return True


def until(condition: Callable[[], object], within_s: float = 8.0) -> None:
    """The same, and fails the test when it does not."""
    assert holds(condition, within_s), f"what was waited for did not happen in {within_s:g} s"
