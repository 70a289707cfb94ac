"""Where to cut speech that is longer than a window, and how much of it the next window repeats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.capture.floor import ratio_of

Powers = NDArray[np.float64]
"""(n,) float64, the power of each frame."""

CUT_FRAMES = 2
"""Loudness at a cut is taken over so many frames on either side: 120 ms, a pause and no stop."""
LOUD_PERCENTILE = 90
"""Speech is as loud as this share of its frames at most."""
PAUSE_OVER_FLOOR_DB, PAUSE_UNDER_SPEECH_DB = 6.0, 10.0
"""A pause is so close to the noise floor, and so far below the speech..."""
BELOW_FLOOR_DB = 3.0
"""What is further below the floor shows that the floor is none: nobody has drawn breath lately."""
SURELY_UNDER_SPEECH_DB = 25.0
"""... or this far below it, wherever the floor is: for 120 ms, that is between two words."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Numbers of frames: the window has those before `end`, the next one those from `begin` on."""

    end: int
    begin: int


def choose_cut(
    powers: Powers, floor: float, first: int, last: int, overlap: tuple[int, int]
) -> Cut:
    """The quietest place between `first` and `last` frames.

    In a pause nothing is repeated. Else the next window begins at the quietest place that is
    `overlap` (least, most) frames earlier, but never before half of this window.
    """
    end = quietest(powers, first, last)
    least, most = overlap
    if not most or is_pause(powers, end, floor):
        return Cut(end, end)
    earliest = max(end - most, end // 2)
    return Cut(end, quietest(powers, earliest, max(earliest, end - least)))


def quietest(powers: Powers, first: int, last: int) -> int:
    """How many frames to leave before a cut: `first` to `last`, where the sound is softest there.

    Of equal places the latest.
    """
    levels = [_around(powers, place) for place in range(first, last + 1)]
    return last - int(np.argmin(levels[::-1]))


def is_pause(powers: Powers, place: int, floor: float) -> bool:
    """True when nobody speaks around `place`, as far as the level tells."""
    level, speech = _around(powers, place), float(np.percentile(powers, LOUD_PERCENTILE))
    if level * ratio_of(SURELY_UNDER_SPEECH_DB) <= speech:
        return True
    near = ratio_of(-BELOW_FLOOR_DB) <= level / floor <= ratio_of(PAUSE_OVER_FLOOR_DB)
    return near and level * ratio_of(PAUSE_UNDER_SPEECH_DB) <= speech


def _around(powers: Powers, place: int) -> float:
    return float(powers[max(0, place - CUT_FRAMES) : place + CUT_FRAMES].mean())
