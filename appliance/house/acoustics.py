"""Measures a window of sound, to compare it with what other rooms heard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.capture import frame_powers
from appliance.house.sketch import LONGEST_STEPS
from appliance.records import SAMPLE_RATE, Window

Powers = NDArray[np.float64]

PRE_ROLL_S = 0.25
"""The silence before speech is left out of the sketch: it is the same for all sentences."""
FRAMES_PER_STEP = 3
"""Frames of 20 ms in a step of the sketch."""
STEP_DB = 3.0
LEVELS = 16
"""A sketch tells LEVELS levels apart, STEP_DB each, from the loudest down."""
DECAY_FRAMES = 5
"""The fall of the level is measured over 100 ms."""
DECAY_SHARE = 0.05
"""The steepest falls of a window are those of its speech; reverberation makes them flatter."""
ABOVE_NOISE_DB = 15.0
"""A fall counts if it begins this far above the noise."""


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
    spoken = np.maximum(frame_powers(window.samples[begin : round(end_s * SAMPLE_RATE)]), 1e-10)
    return Measurement(_sketch(spoken), _decay_db(10 * np.log10(powers)))


def _sketch(powers: Powers) -> bytes:
    whole = len(powers) // FRAMES_PER_STEP
    if not whole:
        return b""
    steps = powers[len(powers) - whole * FRAMES_PER_STEP :].reshape(whole, FRAMES_PER_STEP)
    decibels = 10 * np.log10(steps.mean(axis=1))[-LONGEST_STEPS:]
    levels = (decibels - decibels.max()) / STEP_DB + LEVELS - 1
    return bytes(np.clip(np.round(levels), 0, LEVELS - 1).astype(np.uint8))


def _decay_db(decibels: Powers) -> float | None:
    if len(decibels) <= DECAY_FRAMES:
        return None
    noise = float(np.quantile(decibels, 0.1))
    begins = decibels[:-DECAY_FRAMES]
    falls = (begins - decibels[DECAY_FRAMES:])[begins > noise + ABOVE_NOISE_DB]
    return float(np.quantile(falls, 1 - DECAY_SHARE)) if len(falls) else None
