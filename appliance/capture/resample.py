"""Any sample rate and channel count -> 16 kHz mono int16, as a stream."""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

from appliance.records import SAMPLE_RATE, Samples

FULL_SCALE = 32768.0


class Resampler:
    """Turns sound at `rate_hz` into 16 kHz mono, piece by piece. One thread.

    The filter holds back 8 to 40 ms; its output starts with the first input sample all the same,
    so that a position in it is a time. At 16 kHz, samples pass bit for bit.
    """

    def __init__(self, rate_hz: float) -> None:
        self._stream = (
            None
            if rate_hz == SAMPLE_RATE
            else soxr.ResampleStream(rate_hz, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
        )

    def push(self, sound: NDArray[np.float32], *, last: bool = False) -> Samples:
        """(m,) int16 at 16 kHz for (n, channels) float32 in -1..1; `last` empties the filter."""
        mono = mix(np.clip(np.nan_to_num(sound, posinf=1.0, neginf=-1.0), -1.0, 1.0))
        if self._stream is not None:
            mono = self._stream.resample_chunk(mono, last=last)
        whole = np.rint(mono * FULL_SCALE)
        samples: Samples = np.clip(whole, -32768, 32767).astype(np.int16)
        return samples


def mix(sound: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n,) mono of (n, channels): the mean of two; the first of more.

    Microphone arrays put their processed channel first, and a mean of the raw ones blurs speech.
    """
    two = sound.shape[1] == 2
    mono: NDArray[np.float32] = sound.mean(axis=1, dtype=np.float32) if two else sound[:, 0]
    return np.ascontiguousarray(mono)
