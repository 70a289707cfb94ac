"""Samples of any rate and channel count -> 16 kHz mono int16, without a hum."""

import logging
from collections.abc import Sequence

import numpy as np
import soxr
from numpy.typing import NDArray

from appliance.capture.hum import HumFilter
from appliance.records import FULL_SCALE, SAMPLE_RATE, Samples

log = logging.getLogger("roomscribe.capture")

OPPOSITE = 0.01
"""Two channels are in opposite phase if their mean has less than this share of the louder one's
power. That of independent noises has half of it."""


class Resampler:
    """Turns sound at `rate_hz` into 16 kHz mono without a hum, piece by piece. One thread.

    The filter holds back 8 to 40 ms; its output starts with the first input sample all the same,
    so that a position in it is a time.
    """

    def __init__(self, rate_hz: float, weights: Sequence[float] | None = None) -> None:
        """`weights` of the channels in a recording's mono; None: a microphone's, see `_mix`."""
        self._rate_hz = rate_hz
        self._weights = None if weights is None else np.array(weights, np.float32)
        self._stream = (
            None
            if rate_hz == SAMPLE_RATE
            else soxr.ResampleStream(rate_hz, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
        )
        self._hum = HumFilter()
        self._energies, self._is_opposite = np.zeros(3), False
        """Of the two channels and of their mean, the last second counting most."""

    def push(
        self,
        sound: NDArray[np.float32] | NDArray[np.int16],
        *,
        last: bool = False,
        ahead: bool = False,
    ) -> Samples:
        """(m,) int16 at 16 kHz for (n, channels) int16, or float32 in -1..1; `last` empties the
        filter. `ahead`: this is a file's begin, and a hum in it is removed from the first sample
        on."""
        if sound.dtype == np.int16:
            clear = sound.astype(np.float32) / np.float32(FULL_SCALE)
        else:
            clear = np.clip(np.nan_to_num(sound, posinf=1.0, neginf=-1.0), -1.0, 1.0)
        mono = self._mix(clear)
        if self._stream is not None:
            mono = self._stream.resample_chunk(mono, last=last)
        if ahead:
            self._hum.push(mono)
            period = self._hum.period  # a hum has the phase that it begins with
            self._hum.push(mono[: round(len(mono) // period * period)])
        whole = np.rint(self._hum.push(mono) * FULL_SCALE)
        samples: Samples = np.minimum(np.maximum(whole, -32768), 32767).astype(np.int16)
        return samples

    def _mix(self, sound: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n,) mono of (n, channels): by the weights; else the mean of two, and the first of more.

        Microphone arrays put their processed channel first, and a mean of the raw ones blurs
        speech. Of two channels in opposite phase, whose mean is silent, it is the louder one.
        """
        if self._weights is None and sound.shape[1] != 2:
            return np.ascontiguousarray(sound[:, 0])
        weights = np.full(2, 0.5, np.float32) if self._weights is None else self._weights
        mono: NDArray[np.float32] = sound @ weights
        if len(weights) != 2 or weights[0] != weights[1]:
            return mono
        fade = 0.5 ** (len(sound) / self._rate_hz)
        energies = [*np.square(sound).sum(axis=0), np.square(mono).sum()]
        self._energies = fade * self._energies + energies
        *each, mean = self._energies.tolist()
        if mean >= OPPOSITE * max(each):
            return mono
        if not self._is_opposite:
            self._is_opposite = True
            log.warning("the two channels are in opposite phase: only the louder one is used")
        return np.ascontiguousarray(sound[:, int(each[1] > each[0])])
