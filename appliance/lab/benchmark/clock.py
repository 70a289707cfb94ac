"""The process's clock, by which a row of the benchmark is measured, and what a row does."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.records import Mel

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""cpu: what all threads of the process took together. With one thread it is the wall clock of a
machine that does nothing else."""

_chosen = CLOCKS["wall"]


@dataclass(frozen=True, slots=True)
class TimedDecode:
    """Tokens of one utterance, and the time they took."""

    tokens: tuple[int, ...]
    first_ms: float
    """From encoder states to the first token; what is computed once a window is in it."""
    total_ms: float


class Runner(Protocol):
    """One row's way from sound to tokens. Loaded when it is made."""

    def mel(self, samples: NDArray[np.float32]) -> Mel:
        """Log-mel of at most a window."""

    def encode(self, mel: Mel) -> Any:
        """Encoder states, in whatever form `decode` takes them."""

    def decode(self, states: Any, count: int) -> TimedDecode:
        """Exactly `count` tokens, greedily, end-of-text left out of the choice."""

    def transcribe(self, states: Any, limit: int) -> tuple[int, ...]:
        """Tokens until end-of-text, at most `limit`."""


def choose(name: str) -> None:
    """Make `now` read one of CLOCKS."""
    global _chosen  # noqa: PLW0603 - the clock is the process's
    _chosen = CLOCKS[name]


def now() -> float:
    """Seconds on the chosen clock."""
    return _chosen()
