"""What stands behind a window of 10 s where Whisper was trained on 30: zeros, or silence's states.

The product puts a few virtual positions there. Here they are all really computed, so the decoder is
one of a longer window, and the encoder that of 10 s with states behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from appliance.infer import CpuEncoder
from appliance.model import FRAMES_PER_POSITION, SILENT_MEL, load_bundle
from appliance.records import Mel, States


@dataclass(frozen=True, slots=True)
class Padding:
    """How a row's windows are filled up."""

    sound: Path
    """The bundle whose encoder computes the sound."""
    silence: Path | None
    """The bundle, of 30 s, whose encoder computes silence; None: zeros."""


class PaddedEncoder:
    """An encoder of 10 s, with states behind up to `positions`. One thread."""

    name = "cpu"
    trouble: str | None = None

    def __init__(self, padding: Padding, positions: int, threads: int) -> None:
        """Raises ModelError."""
        sound = load_bundle(padding.sound)
        self._inner = CpuEncoder(sound, threads)
        self._computed = sound.positions
        behind = positions - sound.positions
        self._behind: States = np.zeros((behind, sound.d_model), np.float32)
        if padding.silence and behind:
            whole = load_bundle(padding.silence)
            silent = np.full((whole.frames, whole.n_mels), SILENT_MEL, np.float32)
            states = CpuEncoder(whole, threads).encode(silent)
            self._behind = states[sound.positions : positions]

    def encode(self, mel: Mel) -> States:
        """Return states (P, d_model) of `mel` (2 P, n_mels), whose end is silent."""
        states = self._inner.encode(mel[: self._computed * FRAMES_PER_POSITION])
        return np.concatenate((states, self._behind))

    def poll(self, now_s: float) -> None:
        """Nothing to do."""

    def facts(self) -> dict[str, Any]:
        """Return nothing: there is no chip."""
        return {}

    def close(self) -> None:
        """Nothing to free."""
