"""Log-mel spectrogram to encoder states: the interface of an encoder, and the CPU's."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from appliance.model import ENCODER_FILE, FRAMES_PER_POSITION, SILENT_MEL, Bundle
from appliance.records import Mel, States

STEP = 10
"""Positions by which a short window grows: 0.2 s."""
QUIET = 50
"""Positions that are always computed behind the sound: 1 s. With 0.4 s tiny.en gets 15.1 % of the
words wrong instead of 14.1."""
SILENT_WITHIN = 1e-3
"""A frame is silent if no band is further above the window's lowest value."""


class Backend(Protocol):
    """A device or server that transcribes, as the health report sees it. One thread; `name`,
    `trouble` and `facts` may be read from any."""

    @property
    def name(self) -> str:
        """What encoded last: cpu, hailo8, hailo8l or hailo10h; or wyoming, a server."""

    @property
    def trouble(self) -> str | None:
        """Why it does not run where it should, with the fix; None while it does."""

    def poll(self, now_s: float) -> None:
        """Begin slow maintenance work, such as a reconnect, without waiting for it. Called about
        once a second while there is no window to encode (`now_s` is time.monotonic())."""

    def facts(self) -> dict[str, Any]:
        """Return the last readings of the chip in use. Does not wait."""

    def close(self) -> None:
        """Free the device."""


class Encoder(Backend, Protocol):
    """An encoder on any device."""

    def encode(self, mel: Mel) -> States:
        """Return states (P, d_model) float32 of `mel` (W, n_mels) float32, W = 2 P."""


class CpuEncoder:
    """encoder.onnx through ONNX Runtime. Same input and output as the NPU's, but several threads
    may `encode`.

    With `bundle.short_windows` it computes only the positions up to the end of the sound. Behind
    them come the states of a silent window.
    """

    name = "cpu"
    trouble: str | None = None

    def __init__(self, bundle: Bundle, threads: int) -> None:
        """Loads the graph; `threads` 0: one per core. Raises ModelError."""
        from appliance.infer.sessions import Session

        short = bundle.short_windows
        self._session = Session(
            bundle.folder / ENCODER_FILE,
            threads,
            inputs={"mel": (1, None if short else bundle.frames, bundle.n_mels)},
            outputs={"states": (1, None if short else bundle.positions, bundle.d_model)},
        )
        self._silence: States | None = None
        if short:
            silent = np.full((bundle.frames, bundle.n_mels), SILENT_MEL, np.float32)
            self._silence = self._compute(silent)

    def encode(self, mel: Mel) -> States:
        """Return states (P, d_model) float32 of `mel` (W, n_mels) float32. Raises ModelError."""
        if self._silence is None:
            return self._compute(mel)
        used = positions_of_sound(mel)
        if used == len(self._silence):
            return self._compute(mel)
        return np.concatenate(
            (self._compute(mel[: used * FRAMES_PER_POSITION]), self._silence[used:])
        )

    def _compute(self, mel: Mel) -> States:
        states: States = self._session.run({"mel": mel[None]})[0][0]
        return states

    def poll(self, now_s: float) -> None:
        """Nothing to do for a CPU."""

    def facts(self) -> dict[str, Any]:
        """Return nothing: there is no chip."""
        return {}

    def close(self) -> None:
        """Nothing to free."""


def positions_of_sound(mel: Mel) -> int:
    """Return how many positions of `mel` (W, n_mels) to compute: to the end of the sound and QUIET
    more, in steps of STEP, at most W / 2.

    Zeros behind the samples give the lowest value in all bands.
    """
    sounding = np.flatnonzero(mel.max(axis=1) > mel.min() + SILENT_WITHIN)
    frames = int(sounding[-1]) + 1 if len(sounding) else 0
    steps = -(-frames // (STEP * FRAMES_PER_POSITION))
    return min(steps * STEP + QUIET, len(mel) // FRAMES_PER_POSITION)
