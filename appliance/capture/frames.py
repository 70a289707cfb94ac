"""Samples of any rate, channel count and number -> frames of 30 ms, 16 kHz mono int16, dated."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from typing import NamedTuple

import numpy as np
import soxr
from numpy.typing import NDArray

from appliance.records import FULL_SCALE, SAMPLE_RATE, Frame, Samples

FRAME_MS = 30
"""webrtcvad takes 10, 20 or 30 ms and nothing else; the longest costs least."""
FRAME_SAMPLES = SAMPLE_RATE * FRAME_MS // 1000
CLIPPED_SHARE = 0.001
"""More samples than this at full scale sound distorted."""
QUIET_DBFS = -65.0
"""Softer speech loses words. In 24 recordings of people, Whisper tiny.en gets 47 words wrong at -20
dBFS, 49 to 53 at -60 to -68 and 118 at -80 (tests/capture/test_quiet_speech.py)."""
LAST_BIT = 1.0
"""RMS, in steps of int16, of what is no sound. PortAudio's triangular dither gives a muted codec
0.5; the pauses of people's recordings have 1 and more, for half a second at most just below."""
LOST_S = 0.2
"""When the clock is further ahead of the samples than this, samples were lost or are late."""
BURST_WITHIN_S = 0.5
"""Late samples come within this; what has not come by then is lost."""
DRIFT_SHARE = 0.01
"""Share of a difference from the clock that is made good per block: smooths jitter, follows the
sound card's own clock."""


def power_of(samples: Samples) -> float:
    """Mean square of samples (n,) int16, a constant offset (DC) left out; 2 us for 480 of them."""
    wide = samples.astype(np.float64)
    mean = float(np.add.reduce(wide)) / len(wide)
    return max(0.0, float(wide @ wide) / len(wide) - mean * mean)


def ratio_of(difference_db: float) -> float:
    """The ratio of powers that is so many dB."""
    return float(10 ** (difference_db / 10))


def has_sound(samples: Samples) -> bool:
    """Return True if more changes in samples (n,) int16 than the last bit."""
    return bool(samples.std() > LAST_BIT)


class Loudness(NamedTuple):
    """How loud a piece of sound is, in dB of full scale; None if it is all zeros."""

    rms_db: float | None
    peak_db: float | None
    clipped_share: float
    """Share of the samples at full scale, 0 to 1."""


def measure_loudness(samples: Samples) -> Loudness:
    """Return the loudness of samples (n,) int16, in tenths of a dB."""
    exact = samples.astype(np.float32)
    peak, rms = float(np.abs(exact).max(initial=0.0)), math.sqrt(float(np.mean(exact * exact)))
    return Loudness(_decibels(rms), _decibels(peak), clipped_share(samples))


POWER_FRAME = 320
"""Samples of the frames in which speech and noise are told apart by their power: 20 ms."""
NOISE_SHARE = 0.1
"""The quietest frames of a window, which begins and ends with a little silence, are noise."""
SPEECH_DB = 20.0
"""Frames that are at most this much softer than the loudest ones are speech."""
SILENCE_DBFS = -96.0
"""Level of int16 silence: half of the smallest step."""


def measure_speech(samples: Samples) -> tuple[float | None, float | None]:
    """Return the level of the speech in samples (n,) int16, dB of full scale, and how far it is
    above the noise, dB; None for a sound of zeros or of less than 20 ms."""
    powers = frame_powers(samples)
    if not powers.size or not powers.max():
        return None, None
    decibels = np.maximum(10 * np.log10(np.maximum(powers, 1e-12)), SILENCE_DBFS)
    loudest, noise = (quantile(decibels, at) for at in (1 - NOISE_SHARE / 2, NOISE_SHARE))
    level = 10 * math.log10(float(powers[decibels >= loudest - SPEECH_DB].mean()))
    return round(level, 1), round(level - noise, 1)


def quantile(values: NDArray[np.float64], share: float) -> float:
    """Return what this share of values (n,) is below. np.quantile imports numpy.ma, 1.8 MB."""
    count = len(values)
    return float(np.interp(share * (count - 1), np.arange(count), np.sort(values)))


def frame_powers(samples: Samples) -> NDArray[np.float64]:
    """Return the mean power of each whole frame of 20 ms, without a constant offset, 1 for a sound
    of full scale."""
    whole = len(samples) // POWER_FRAME
    scaled = samples[: whole * POWER_FRAME].reshape(whole, POWER_FRAME) / np.float32(FULL_SCALE)
    offset = scaled.mean() if whole else 0.0
    powers: NDArray[np.float64] = np.square(scaled - offset).mean(axis=1, dtype=np.float64)
    return powers


def _decibels(value: float) -> float | None:
    return round(20 * math.log10(value / FULL_SCALE), 1) if value else None


def clipped_share(samples: Samples) -> float:
    """Return the share of the samples, of any shape, that are at full scale."""
    full = np.count_nonzero(samples == 32767) + np.count_nonzero(samples == -32768)
    return float(full / samples.size) if samples.size else 0.0


def is_clipped(samples: Samples) -> bool:
    """Return True if so many samples, of any shape, are at full scale that it sounds distorted."""
    return clipped_share(samples) > CLIPPED_SHARE


class Framer:
    """Cuts a stream of samples into frames of FRAME_SAMPLES. One thread."""

    def __init__(self) -> None:
        self._pending: Samples = np.empty(0, np.int16)
        self._after_gap = False

    def push(self, samples: Samples, start_s: float) -> Iterator[Frame]:
        """The frames completed by `samples` (n,) int16, the first one recorded at `start_s`."""
        first_s = start_s - len(self._pending) / SAMPLE_RATE
        waiting = np.concatenate((self._pending, samples))
        whole = len(waiting) - len(waiting) % FRAME_SAMPLES
        self._pending = waiting[whole:]
        for at in range(0, whole, FRAME_SAMPLES):
            frame = waiting[at : at + FRAME_SAMPLES]
            yield Frame(frame, first_s + at / SAMPLE_RATE, self._after_gap)
            self._after_gap = False

    def gap(self) -> None:
        """Says that samples were lost here: the begun frame is dropped, the next one flagged."""
        self._pending = np.empty(0, np.int16)
        self._after_gap = True

    def rest(self, start_s: float) -> Iterator[Frame]:
        """The begun frame, if there is one, filled up with silence; `start_s` is the end of it."""
        if missing := -len(self._pending) % FRAME_SAMPLES:
            yield from self.push(np.zeros(missing, np.int16), start_s)


class SampleClock:
    """Dates samples on time.monotonic()'s clock by counting them. One thread."""

    def __init__(self) -> None:
        self.began_s = 0.0
        """When the stream's first sample was recorded, as it looks from the newest one."""
        self._begun = False
        self._late_since_s = 0.0
        self._late_s: float | None = None
        """The least that samples have been behind the clock since they fell behind."""

    def follow(self, now_s: float, received_s: float, *, lost: bool = False) -> bool | None:
        """True when samples were lost; `received_s` of sound had come when it was `now_s`.

        None while it is not known: sound that is behind the clock may be lost, or only late, and
        then what is missing comes in one burst.
        """
        ahead_s = now_s - received_s - self.began_s
        if not self._begun:
            self._begun, self.began_s = True, now_s - received_s
            return False
        if lost:
            self._late_s = None
            self.began_s += max(ahead_s, 0.0)
            return True
        if ahead_s > LOST_S:
            return self._wait_and_see(now_s, ahead_s)
        self._late_s = None
        self.began_s += ahead_s if ahead_s < -LOST_S else DRIFT_SHARE * ahead_s
        return False

    def _wait_and_see(self, now_s: float, ahead_s: float) -> bool | None:
        if self._late_s is None:
            self._late_s, self._late_since_s = ahead_s, now_s
        self._late_s = min(self._late_s, ahead_s)
        if now_s < self._late_since_s + BURST_WITHIN_S:
            return None
        self.began_s += self._late_s
        self._late_s = None
        return True


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
        self._weights = None if weights is None else np.array(weights, np.float32)
        self._stream = (
            None
            if rate_hz == SAMPLE_RATE
            else soxr.ResampleStream(rate_hz, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
        )
        self._high_pass = HighPass(span)

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
        speech.
        """
        if self._weights is None and sound.shape[1] != 2:
            return np.ascontiguousarray(sound[:, 0])
        weights = np.full(2, 0.5, np.float32) if self._weights is None else self._weights
        mono: NDArray[np.float32] = sound @ weights
        return mono
