"""The clock that a row is measured by; one for the process."""

from __future__ import annotations

import time

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""cpu: what all threads of the process took together. With one thread it is the wall clock of a
machine that does nothing else."""

_chosen = CLOCKS["wall"]


def choose(name: str) -> None:
    """Makes `now` read one of CLOCKS."""
    global _chosen  # noqa: PLW0603 - the clock is the process's
    _chosen = CLOCKS[name]


def now() -> float:
    """Seconds on the chosen clock."""
    return _chosen()
