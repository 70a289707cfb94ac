"""Where speech ends in a recording, by its level alone and without a voice detector.

Synthetic sentences end with their last 10 ms within 35 dB of their loudest. In people's commands
noise, breath, the room's tail and the click of a mouse follow the last word: it ends with the last
60 ms in a row that are, in the band of voices or in that of hisses, 10 dB above that band's noise
(its tenth percentile) and within 30 dB of its loudest.
"""

import numpy as np
from numpy.typing import NDArray

from appliance.records import SAMPLE_RATE

Samples = NDArray[np.int16]

STEP = SAMPLE_RATE // 100
WITHIN_DB = 35.0
BANDS_HZ = ((150, 4000), (4000, 7800))
"""Voices and hisses (s, t, f)."""
ABOVE_NOISE_DB, BELOW_LOUDEST_DB, RUN = 10.0, 30.0, 6
"""RUN steps in a row are 60 ms: no click lasts as long."""
QUIET_S = 0.2
"""The quietest so much of a recording surrounds it, over and over."""


def speech_ends(sound: Samples) -> int:
    """Return the sample behind the last loud 10 ms."""
    steps = sound[: len(sound) // STEP * STEP].reshape(-1, STEP).astype(np.float64)
    level = 10 * np.log10((steps**2).mean(axis=1) + 1e-2)
    return (int(np.flatnonzero(level > level.max() - WITHIN_DB)[-1]) + 1) * STEP


def word_ends(sound: Samples) -> int:
    """Return the sample behind the last word of a person."""
    frames = np.lib.stride_tricks.sliding_window_view(sound.astype(np.float64), 2 * STEP)[::STEP]
    powers = np.abs(np.fft.rfft(frames * np.hanning(2 * STEP))) ** 2
    frequencies = np.fft.rfftfreq(2 * STEP, 1 / SAMPLE_RATE)
    last = 0
    for low, high in BANDS_HZ:
        band = powers[:, (frequencies >= low) & (frequencies < high)].mean(axis=1) + 1e-2
        level = 10 * np.log10(np.convolve(band, np.ones(3) / 3, "same"))
        loudest = np.percentile(level, 99) - BELOW_LOUDEST_DB
        loud = level > max(np.percentile(level, 10) + ABOVE_NOISE_DB, float(loudest))
        runs = np.convolve(loud, np.ones(RUN), "valid") == RUN
        last = max(last, int(np.flatnonzero(runs)[-1]) + RUN if runs.any() else 0)
    return last * STEP + STEP


def in_own_quiet(sound: Samples, before_s: float, after_s: float) -> Samples:
    """Return the recording between so much of its own quietest part, over and over."""
    quiet = np.tile(quietest(sound), int(max(before_s, after_s) / QUIET_S) + 1)
    return np.concatenate(
        (quiet[: int(before_s * SAMPLE_RATE)], sound, quiet[: int(after_s * SAMPLE_RATE)])
    )


def quietest(sound: Samples) -> Samples:
    """Return the softest QUIET_S of a recording, forth and back, so that its ends meet."""
    size = int(QUIET_S / 2 * SAMPLE_RATE)
    energy = np.convolve(sound.astype(np.float64) ** 2, np.ones(size), "valid")
    at = int(np.argmin(energy))
    piece = sound[at : at + size]
    return np.concatenate((piece, piece[::-1]))
