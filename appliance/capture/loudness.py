"""How loud samples are: powers, levels of speech and noise, clipping."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from appliance.records import FULL_SCALE, Samples

CLIPPED_SHARE = 0.001
"""More samples than this at full scale sound distorted."""
QUIET_DBFS = -65.0
"""Softer speech loses words. In 24 recordings of people, Whisper tiny.en gets 47 words wrong at -20
dBFS, 49 to 53 at -60 to -68 and 118 at -80 (tests/capture/test_quiet_speech.py)."""
LAST_BIT = 1.0
"""RMS, in steps of int16, of what is no sound. PortAudio's triangular dither gives a muted codec
0.5; the pauses of people's recordings have 1 and more, for half a second at most just below."""


def power_of(samples: Samples) -> float:
    """Mean square of samples (n,) int16, a constant offset (DC) left out; 2 us for 480 of them."""
    wide = samples.astype(np.float64)
    mean = float(np.add.reduce(wide)) / len(wide)
    return max(0.0, float(wide @ wide) / len(wide) - mean * mean)


def ratio_of(difference_db: float) -> float:
    """The ratio of powers that is so many dB."""
    return float(10 ** (difference_db / 10))


NO_SOUND = -math.inf
"""Level of a power of 0 in dB."""


def decibels(power: float) -> float:
    """Return a power in dB."""
    return 10 * math.log10(power) if power > 0 else NO_SOUND


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
    return Loudness(_level_db(rms), _level_db(peak), clipped_share(samples))


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
    """Return the mean power of each whole frame of 20 ms, without its offset, which may come and
    go; 1 for a sound of full scale."""
    whole = len(samples) // POWER_FRAME
    scaled = samples[: whole * POWER_FRAME].reshape(whole, POWER_FRAME) / np.float32(FULL_SCALE)
    powers: NDArray[np.float64] = scaled.var(axis=1, dtype=np.float64)
    return powers


def _level_db(value: float) -> float | None:
    return round(20 * math.log10(value / FULL_SCALE), 1) if value else None


def clipped_share(samples: Samples) -> float:
    """Return the share of the samples, of any shape, that are at full scale."""
    full = np.count_nonzero(samples == 32767) + np.count_nonzero(samples == -32768)
    return float(full / samples.size) if samples.size else 0.0


def is_clipped(samples: Samples) -> bool:
    """Return True if so many samples, of any shape, are at full scale that it sounds distorted."""
    return clipped_share(samples) > CLIPPED_SHARE
