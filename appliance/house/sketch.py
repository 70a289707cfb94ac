"""A sketch of a sound: the course of its level, in a few bytes.

Two rooms that hear one sentence have similar sketches, although one of them hears it more softly,
muffled by a door and blurred by reverberation. Two people who talk at once have different ones. So
rooms tell a sentence that both of them heard from two sentences that end together by chance.
"""

from __future__ import annotations

import math

STEP_S = 0.06
"""Seconds of sound per step; a step is a byte from 0 to 15."""
LONGEST_STEPS = 40
"""A sketch describes the last 2.4 s of a window at most."""
LEAST_STEPS = 8
"""Shorter sketches are not compared: they could be of anything."""
LAGS = 9
"""The ends that two rooms find differ by at most this many steps: SAME_END_S of the arbiter."""
SAME = 0.5
"""Correlation from which on two sketches are of one sound."""


def is_same_sound(one: bytes, other: bytes) -> bool:
    """Return False if two sketches are of different sounds; True if one is too short to know."""
    if min(len(one), len(other)) < LEAST_STEPS:
        return True
    return correlation(one, other) >= SAME


def correlation(one: bytes, other: bytes) -> float:
    """Return the highest correlation of two sketches whose ends may be apart, -1 to 1."""
    best = -1.0
    for lag in range(-LAGS, LAGS + 1):
        left = one[: len(one) - lag] if lag > 0 else one
        right = other[: len(other) + lag] if lag < 0 else other
        common = min(len(left), len(right))
        if common >= LEAST_STEPS:
            best = max(best, _pearson(left[-common:], right[-common:]))
    return best


def _pearson(one: bytes, other: bytes) -> float:
    count = len(one)
    mean_one, mean_other = sum(one) / count, sum(other) / count
    product = sum((a - mean_one) * (b - mean_other) for a, b in zip(one, other, strict=True))
    square_one = sum((a - mean_one) ** 2 for a in one)
    square_other = sum((b - mean_other) ** 2 for b in other)
    scale = math.sqrt(square_one * square_other)
    return product / scale if scale else 0.0
