"""Samples of any rate and channel count -> 16 kHz mono int16, without a hum."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise, repeat

import numpy as np
import soxr
from numpy.typing import NDArray

from appliance.records import FULL_SCALE, SAMPLE_RATE, Samples

log = logging.getLogger("roomscribe.capture")

OPPOSITE = 0.01
"""Two channels are in opposite phase if their mean has less than this share of the louder one's
power. That of independent noises has half of it."""
HIGH_PASS_HZ = 90.0
"""Below it lie the hum of the mains (50 and 60 Hz), rumble and a constant offset."""
HUM, HUM_SHARE = 10 ** (-60 / 10), 0.25
"""A hum has at least so much power, of full scale, and this share of the loudest speech's."""
HUM_RISE, QUIET, SPEECH_FALL = 100.0, 10 ** (-80 / 10), 0.8
"""The quietest moment's power rises by the first factor a second, from -80 dB at least, so that a
hum that begins is found within 4 s; the loudest speech's falls by the last one."""
HUM_S = 1.0
"""A hum must last this long: the silence before a sentence, in which there is one, is shorter."""
HUM_FADE_S = 0.1
"""Time in which the filter is switched on or off."""
PIECE = 96
"""Samples that the filter takes at once."""


class HighPass:
    """Removes what lies below speech from samples at 16 kHz, piece by piece: a Butterworth filter
    of the fourth order (24 dB for each octave below HIGH_PASS_HZ). One thread.

    It is on while there is a hum or an offset: what is below speech is loud in its quietest moment,
    too. Otherwise sound passes unchanged, since Whisper hears clean commands slightly worse through
    a filter. The pieces of PIECE samples are one product of matrices, all but their states: of 480
    samples in 30 us, of 2400 in 60.
    """

    def __init__(self, span: int = 0) -> None:
        """`span`: about so many samples are judged together; 0: those of a push."""
        self._matrices, self._span = _high_pass(), span
        self._state: NDArray[np.float64] | None = None
        self._quietest = math.inf
        """Power of the lowest part in its quietest moment; it rises slowly."""
        self._loudest = 0.0
        """Power of the rest in its loudest moment; it falls slowly."""
        self._hum_s = 0.0
        """How long there has been a hum."""
        self._share = 0.0
        """How much of the lowest part is removed now, 0 to 1."""

    def push(self, sound: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (n,) for (n,), without the lowest part while that is a hum."""
        if not sound.size:
            return sound
        rest = self.filter(sound)
        low = sound - rest
        count = max(1, round(len(sound) / self._span)) if self._span else 1
        starts = [len(sound) * number // count for number in range(count + 1)]
        energies = np.add.reduceat(np.square((low, rest)), starts[:-1], axis=1).tolist()
        shares, ramps = [self._share], []
        for quiet, loud, (start, end) in zip(*energies, pairwise(starts), strict=True):
            size = end - start
            shares.append(self._follow(quiet / size, loud / size, size / SAMPLE_RATE))
            ramps.append((*shares[-2:], size))
        if not any(shares):
            return sound
        ramp = np.concatenate([np.linspace(*one, dtype=np.float32) for one in ramps])
        removed: NDArray[np.float32] = sound - ramp * low
        return removed

    def _follow(self, quiet: float, loud: float, duration_s: float) -> float:
        """Take in the powers of a frame's lowest part and of its rest; return the share of the
        lowest part that is removed at its end."""
        self._quietest = min(max(self._quietest, QUIET) * HUM_RISE**duration_s, quiet)
        self._loudest = max(self._loudest * SPEECH_FALL**duration_s, loud)
        hums = self._quietest > max(HUM, HUM_SHARE * self._loudest)
        self._hum_s = self._hum_s + duration_s if hums else 0.0
        wanted, step = float(self._hum_s >= HUM_S), duration_s / HUM_FADE_S
        self._share = min(max(wanted, self._share - step), self._share + step)
        return self._share

    def filter(self, sound: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return (n,) without its lowest part, for (n,)."""
        answers, powers, entries, constant = self._matrices
        if self._state is None:
            self._state = constant * (sound[0] if sound.size else 0.0)
        pieces = np.zeros((-(-len(sound) // PIECE), PIECE))
        pieces.ravel()[: len(sound)] = sound
        states, added = np.empty((len(pieces), 4)), pieces @ entries.T
        for number, state in enumerate(states):
            state[:] = self._state
            self._state = powers[PIECE] @ self._state + added[number]
        if size := len(sound) % PIECE:  # the last piece is shorter
            self._state = powers[size] @ states[-1] + entries[:, PIECE - size :] @ pieces[-1, :size]
        passed = pieces @ answers.T + states @ powers[:PIECE, 0].T
        return passed.ravel()[: len(sound)].astype(np.float32)


@functools.cache
def _high_pass() -> tuple[NDArray[np.float64], ...]:
    """Return the matrices that all filters of the process share, for pieces of PIECE samples: what
    they become without a state before; the state's powers; what they add to the state (4,); and the
    state behind a constant 1."""
    k = math.tan(math.pi * HIGH_PASS_HZ / SAMPLE_RATE)  # bilinear transform
    b, a = np.ones(1), np.ones(1)
    for angle in (math.pi / 8, 3 * math.pi / 8):
        damping = 2 * math.cos(angle) * k
        scale = 1 + damping + k * k
        b = np.convolve(b, np.array([1.0, -2.0, 1.0]) / scale)
        a = np.convolve(a, [1.0, 2 * (k * k - 1) / scale, (1 - damping + k * k) / scale])
    step, entry = np.eye(4, k=1), b[1:] - a[1:] * b[0]
    step[:, 0] -= a[1:]
    # one after the other: powers by squaring lose seven digits here
    powers = np.array([*accumulate(repeat(step, PIECE), np.matmul, initial=np.eye(4))])
    entries = (powers[PIECE - 1 :: -1] @ entry).T
    answer = np.concatenate(([b[0]], entries[0, :0:-1]))
    lag = np.subtract.outer(np.arange(PIECE), np.arange(PIECE))
    answers = np.where(lag >= 0, answer[np.maximum(lag, 0)], 0.0)
    return answers, powers, entries, np.linalg.solve(np.eye(4) - step, entry)


class Resampler:
    """Turns sound at `rate_hz` into 16 kHz mono without a hum, piece by piece. One thread.

    The filter holds back 8 to 40 ms; its output starts with the first input sample all the same,
    so that a position in it is a time.
    """

    def __init__(
        self, rate_hz: float, weights: Sequence[float] | None = None, span: int = 0
    ) -> None:
        """`weights` of the channels in a recording's mono; None: a microphone's, see `_mix`.
        `span` is HighPass's."""
        self._rate_hz = rate_hz
        self._weights = None if weights is None else np.array(weights, np.float32)
        self._stream = (
            None
            if rate_hz == SAMPLE_RATE
            else soxr.ResampleStream(rate_hz, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
        )
        self._high_pass = HighPass(span)
        self._energies, self._is_opposite = np.zeros(3), False
        """Of the two channels and of their mean, the last second counting most."""

    def push(
        self, sound: NDArray[np.float32] | NDArray[np.int16], *, last: bool = False
    ) -> Samples:
        """(m,) int16 at 16 kHz for (n, channels) int16, or float32 in -1..1; `last` empties the
        filter."""
        if sound.dtype == np.int16:
            clear = sound.astype(np.float32) / np.float32(FULL_SCALE)
        else:
            clear = np.clip(np.nan_to_num(sound, posinf=1.0, neginf=-1.0), -1.0, 1.0)
        mono = self._mix(clear)
        if self._stream is not None:
            mono = self._stream.resample_chunk(mono, last=last)
        whole = np.rint(self._high_pass.push(mono) * FULL_SCALE)
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
