"""What the parity tests and the script that makes their golden values agree on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rigs.checkout import GOLDEN
from rigs.models import BASE, ODD, SPECIALS, TINY

from appliance.convert.shapes import WhisperConfig

INPUTS = 20
STEPS = 20
KEPT_IDS = 32
KEPT_STATES = (8, 16)
"""Positions and dimensions of the encoder states kept."""


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of network and its inputs."""

    name: str
    config: WhisperConfig
    positions: int
    """Encoder positions of the window."""
    padded: int
    """Positions with silence behind; each virtual one stands for the same number."""
    seed: int
    """Of the weights; input i has the seed 1000 seed + i."""

    def golden(self) -> dict[str, NDArray[Any]]:
        """Return its golden arrays."""
        with np.load(GOLDEN / f"parity_{self.name}.npz") as arrays:
            return dict(arrays)

    @property
    def window_s(self) -> float:
        """Length of the window, seconds."""
        return self.positions / 50

    @property
    def prompt(self) -> list[int]:
        """Start, language, transcribe, no timestamps."""
        first = self.config.vocab_size - len(SPECIALS)
        return [first + index for index in (1, 2, 4, 8)]

    @property
    def kept_ids(self) -> NDArray[np.int64]:
        """Vocabulary ids, the first and the last among them, whose logits are kept."""
        return np.linspace(0, self.config.vocab_size - 1, KEPT_IDS).astype(np.int64)

    def kept_states(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """The part of states (P, d_model) that is kept, (8, 16)."""
        rows = np.linspace(0, self.positions - 1, KEPT_STATES[0]).astype(int)
        columns = np.linspace(0, self.config.d_model - 1, KEPT_STATES[1]).astype(int)
        kept: NDArray[np.float32] = states[np.ix_(rows, columns)]
        return kept


CASES = (
    Case("tiny", TINY, positions=500, padded=1500, seed=21),
    Case("base", BASE, positions=500, padded=1500, seed=22),
    Case("odd", ODD, positions=125, padded=325, seed=25),
)


def log_sum(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Logarithm of the sum of exponentials of each row, (n,)."""
    peak = logits.max(axis=-1, keepdims=True)
    total = np.exp((logits - peak).astype(np.float64)).sum(axis=-1)
    logarithm: NDArray[np.float32] = (peak[:, 0] + np.log(total)).astype(np.float32)
    return logarithm


def distance(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Return the largest absolute difference."""
    return float(np.abs(found - expected).max())
