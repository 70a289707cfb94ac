"""A sketch of a sound: the course of its level, in a few bytes.

Two rooms that hear one sentence have similar sketches, although one of them hears it more softly,
muffled by a door and blurred by reverberation. Two people who talk at once have different ones. So
rooms tell a sentence that both of them heard from two sentences that end together by chance. Steps
of two sketches belong together by their time, which the claims have.
"""

from __future__ import annotations

import math

STEP_S = 0.06
"""Seconds of sound per step; a step is a byte from 0 to 15."""
LONGEST_STEPS = 40
"""A sketch describes the last 2.4 s of the speech at most."""
LEAST_STEPS = 8
"""Shorter sketches are not compared: they could be of anything."""
LOUD = 8
"""A step of this level is less than 24 dB softer than the loudest."""
SAME = 0.55
"""Correlation from which on two sketches are of one sound."""


def is_same_sound(one: bytes, other: bytes, apart_s: float) -> bool:
    """Return False if two sketches are of different sounds; True if one is too short to know.

    `other` ends `apart_s` later than `one`.
    """
    found = correlation(one, other, apart_s)
    return found is None or found >= SAME


def correlation(one: bytes, other: bytes, apart_s: float) -> float | None:
    """Return the correlation of two sketches where both have heard the same moments, -1 to 1.

    None if too few steps are common.
    """
    lag, found = apart_s / STEP_S, list[float]()
    for shift in {math.floor(lag), math.ceil(lag)}:
        left = one[: len(one) + shift] if shift < 0 else one
        right = other[: len(other) - shift] if shift > 0 else other
        common = min(len(left), len(right))
        left, right = left[len(left) - common :], right[len(right) - common :]
        first = max(_first_loud(left), _first_loud(right))
        last = common - max(_first_loud(left[::-1]), _first_loud(right[::-1]))
        if last - first >= LEAST_STEPS:
            found.append(_pearson(left[first:last], right[first:last]))
    return max(found, default=None)


def _first_loud(steps: bytes) -> int:
    """Return the index of the first step of speech. The silence around it is alike in all."""
    return next((at for at, level in enumerate(steps) if level >= LOUD), len(steps))


def _pearson(one: bytes, other: bytes) -> float:
    count = len(one)
    mean_one, mean_other = sum(one) / count, sum(other) / count
    product = sum((a - mean_one) * (b - mean_other) for a, b in zip(one, other, strict=True))
    square_one = sum((a - mean_one) ** 2 for a in one)
    square_other = sum((b - mean_other) ** 2 for b in other)
    scale = math.sqrt(square_one * square_other)
    return product / scale if scale else 0.0
