"""Wait for a condition that another thread or process fulfils."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = float(os.environ.get("ROOMSCRIBE_TEST_PATIENCE_S", "300"))
"""Seconds until a condition counts as failed: many, as they pass only where something is wrong. A
machine that gives the tests a tenth of its processors needs a minute for what takes six seconds."""
NEVER_S = 3600.0
"""Seconds that no test lasts: what waits so long is a failure, by pytest's own limit."""


def holds(condition: Callable[[], object], within_s: float, every_s: float = 0.0) -> bool:
    """Wait until `condition` holds; return False if it does not within `within_s`.

    The longer it takes, the longer are the pauses between two looks, since many conditions ask
    another process. `every_s` sets one length for all.
    """
    begun_s = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begun_s
        if waited_s > within_s:
            return False
        time.sleep(every_s or min(0.2, max(0.01, waited_s / 10)))
    return True


def until(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Wait until `condition` holds, and fail the test if it does not within `within_s`."""
    assert holds(condition, within_s), f"the condition did not hold within {within_s:g} s"


@contextmanager
def in_thread(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    """Run something in a thread of its own until `stop`; what it raises fails the test."""
    ended: list[BaseException] = []

    def work() -> None:
        try:
            run()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it did not stop in time"
    assert ended == []
