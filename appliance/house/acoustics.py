"""Measures a window of sound, to compare it with what other rooms heard, and scores it.

A score is one number that can be compared with other rooms'. Its weights are those of a logistic
regression: the difference of two rooms' scores is the logarithm of the odds that the first one is
nearer to the speaker. They were fitted on simulated rooms, with synthetic voices.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.capture import frame_powers, quantile
from appliance.house.sketch import LONGEST_STEPS, STEP_S
from appliance.records import FULL_SCALE, SAMPLE_RATE, Samples, Transcript, Window

Powers = NDArray[np.float64]

PRE_ROLL_S = 0.25
"""The sketch begins after this part of the silence before speech, which says nothing about it."""
EDGES_HZ = (200, 500, 900, 1400, 2200)
"""Bands of the sketch: a door leaves these of speech."""
SPECTRUM = round(0.12 * SAMPLE_RATE)
"""Samples of a spectrum. There is one per step."""
RISE_STEPS = 2
"""A band rises in a step if it is louder than so many steps before."""
QUIET = 1e-9
"""Power that is added to each band: that of a sound that no microphone hears."""
DECAY_FRAMES = 5
"""The fall of the level is measured over 100 ms."""
DECAY_SHARE = 0.05
"""The steepest falls of a window are those of its speech; reverberation makes them flatter."""
ABOVE_NOISE_DB = 15.0
"""A fall counts if it begins this far above the noise."""

WEIGHTS = {
    "confidence": 2.30,
    "level_db": 0.102,
    "snr_db": 0.142,
    "decay_db": 0.246,
}
"""Weight of each property, per unit."""
UNKNOWN = {"level_db": -40.0, "snr_db": 15.0, "decay_db": 10.0}
"""Value in place of one that is unknown: what a poorly heard sentence has."""
DIGITS = 3


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a window sounds like."""

    sketch: bytes
    decay_db: float | None
    """How steeply the level falls within 100 ms at the ends of sounds. A room with a reverberation
    time of 0.6 s allows 10 dB. None if no sound is loud enough."""


def measure_window(window: Window) -> Measurement:
    """Return the measurement of a window. The sketch ends where its speech does."""
    powers = np.maximum(frame_powers(window.samples), 1e-10)
    begin, end_s = round(PRE_ROLL_S * SAMPLE_RATE), window.speech_end_s - window.start_s
    spoken = window.samples[begin : round(end_s * SAMPLE_RATE)]
    return Measurement(_sketch(spoken), _decay_db(10 * np.log10(powers)))


def _sketch(samples: Samples) -> bytes:
    step = round(STEP_S * SAMPLE_RATE)
    spectra = min((len(samples) - SPECTRUM) // step + 1, LONGEST_STEPS + RISE_STEPS)
    if spectra <= RISE_STEPS:
        return b""
    ends = len(samples) - step * np.arange(spectra)[::-1]
    pieces = samples[ends[:, None] - np.arange(SPECTRUM, 0, -1)] * np.hanning(SPECTRUM)
    powers = np.square(np.abs(np.fft.rfft(pieces / FULL_SCALE)))
    hz = np.fft.rfftfreq(SPECTRUM, 1 / SAMPLE_RATE)
    bands = [
        powers[:, (low <= hz) & (hz < high)].sum(axis=1) + QUIET
        for low, high in itertools.pairwise(EDGES_HZ)
    ]
    rises = np.array([band[RISE_STEPS:] > band[:-RISE_STEPS] for band in bands])
    return bytes(int(step) for step in (1 << np.arange(len(bands))) @ rises)


def _decay_db(decibels: Powers) -> float | None:
    if len(decibels) <= DECAY_FRAMES:
        return None
    noise = quantile(decibels, 0.1)
    begins = decibels[:-DECAY_FRAMES]
    falls = (begins - decibels[DECAY_FRAMES:])[begins > noise + ABOVE_NOISE_DB]
    return quantile(falls, 1 - DECAY_SHARE) if len(falls) else None


def score(transcript: Transcript, decay_db: float | None) -> float:
    """Return how well a sentence was heard; higher is better."""
    found = {
        "confidence": transcript.confidence,
        "level_db": transcript.level_dbfs,
        "snr_db": transcript.snr_db,
        "decay_db": decay_db,
    }
    known = {name: UNKNOWN[name] if value is None else value for name, value in found.items()}
    return round(sum(WEIGHTS[name] * known[name] for name in WEIGHTS), DIGITS)
