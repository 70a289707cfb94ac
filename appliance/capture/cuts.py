"""Where sound that is longer than a window is cut: at its quietest point.

The next window repeats a little of what stands before the cut, unless that is in a pause.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from appliance.capture.endpoint import LOUD_DB, NEAR_DB, NOISE_DB
from appliance.capture.frames import FRAME_SAMPLES
from appliance.capture.loudness import decibels, power_of, quantile
from appliance.records import Samples

Powers = NDArray[np.float64]
"""(n,) float64, the power of each frame."""

CUT_FRAMES = 2
"""Frames on either side of a cut whose mean level counts: 120 ms, longer than a stop consonant."""
LOUD_SHARE = 0.9
"""The level of speech is the power that this share of its frames does not reach."""
SURELY_BELOW_DB = 25.0
"""Sound this far below speech is a pause, whatever the floor: for 120 ms, that is between words."""


class Cut(NamedTuple):
    """Indices of frames: the window has those before `end`, the next one those from `begin` on."""

    end: int
    begin: int


def choose_cut(
    powers: Powers, floor: float, first: int, last: int, overlap: tuple[int, int]
) -> Cut:
    """Return the quietest cut that leaves `first` to `last` frames.

    In a pause, nothing is repeated. Otherwise the next window begins at the quietest point that is
    `overlap` (least, most) frames earlier, but not in the first half of this window.
    """
    end = quietest(powers, first, last)
    least, most = overlap
    if not most or is_pause(powers, end, floor):
        return Cut(end, end)
    earliest = max(end - most, end // 2)
    return Cut(end, quietest(powers, earliest, max(earliest, end - least)))


def quietest(powers: Powers, first: int, last: int) -> int:
    """Return the index from `first` to `last` around which the sound is softest, the latest of
    equal ones."""
    levels = [_around(powers, index) for index in range(first, last + 1)]
    return last - int(np.argmin(levels[::-1]))


def split_sound(samples: Samples, longest: int) -> list[Samples]:
    """Return (n,) int16 in parts of at most `longest` samples, cut where their second half is
    softest."""
    parts = []
    while len(samples) > longest:
        frames = samples[: longest // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
        powers = np.array([power_of(frame) for frame in frames])
        cut = quietest(powers, len(powers) // 2, len(powers) - 1) * FRAME_SAMPLES
        parts.append(samples[:cut])
        samples = samples[cut:]
    return [*parts, samples]


def is_pause(powers: Powers, index: int, floor: float) -> bool:
    """Return True if the level around a frame is that of a pause. A level further below the floor
    than noise varies says that the floor is too high, after long speech without a pause."""
    level_db = decibels(_around(powers, index))
    speech_db = decibels(quantile(powers, LOUD_SHARE))
    is_at_floor = -NOISE_DB <= level_db - decibels(floor) <= NEAR_DB
    return level_db <= speech_db - (LOUD_DB if is_at_floor else SURELY_BELOW_DB)


def _around(powers: Powers, index: int) -> float:
    return float(powers[max(0, index - CUT_FRAMES) : index + CUT_FRAMES].mean())
