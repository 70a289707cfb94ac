"""What the daemon and the encoder's process share: the order and the arrays in memory."""

from __future__ import annotations

import math
import mmap
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from appliance.model import Bundle

Shape = tuple[int, ...]
BEAT_S = 0.1
"""Between two heartbeats of the process."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the process is started for, and how long the chip may take until it counts as failed."""

    hef: str
    """Empty: only identify the chip."""
    mel: Shape
    """(1, W, n_mels)."""
    states: Shape
    """(1, P, d_model)."""
    share: bool = False
    job_ms: int = 400
    """At least, and six times what the first jobs need. Others measured some 31 ms of tiny on
    a Hailo-8L, and about 40 of base (5 s) on a Hailo-8."""
    longest_job_ms: int = 1000
    """At most."""
    first_job_ms: int = 2000
    """For the first one, which also loads the network."""
    open_s: float = 10.0
    """From the start of the process until the chip is open; a first job that hangs takes 4 s."""
    beat_s: float = 1.0
    """Without a heartbeat: stopped, or in a call of HailoRT that holds the interpreter's lock (on a
    Hailo-10H for 10 s each)."""
    answer_ms: int = 50
    """Beyond a job's limit, for the answer of the process."""
    read_every_s: float = 30.0
    """Between two readings of the sensors."""


def make_order(bundle: Bundle, *, share: bool = False, **limits: Any) -> Order:
    """Return the order for a bundle with a HEF; `limits` replace those of Order."""
    mel, states = (1, bundle.frames, bundle.n_mels), (1, bundle.positions, bundle.d_model)
    return Order(str(bundle.hef), mel, states, share, **limits)


class SharedArrays:
    """The arrays of a job, float32, in memory that both processes see."""

    def __init__(self, descriptor: int, mel: Shape, states: Shape) -> None:
        """Map the memory file `descriptor`, and give it its size."""
        count = math.prod(mel)
        os.ftruncate(descriptor, 8 + 4 * (count + math.prod(states)))
        memory = mmap.mmap(descriptor, 0)
        self._beat: NDArray[np.float64] = np.frombuffer(memory, np.float64, 1)
        self.mel: NDArray[np.float32] = np.frombuffer(memory, np.float32, count, 8).reshape(mel)
        found = np.frombuffer(memory, np.float32, math.prod(states), 8 + 4 * count)
        self.states: NDArray[np.float32] = found.reshape(states)

    def beat(self) -> None:
        """Set the heartbeat to now, on time.monotonic()'s clock, which all processes share."""
        self._beat[0] = time.monotonic()

    def idle_s(self) -> float:
        """Return the seconds since the last heartbeat."""
        return float(time.monotonic() - self._beat[0])
