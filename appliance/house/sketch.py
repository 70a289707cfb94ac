"""A sketch of a sound: when its frequency bands become louder, in a few bytes.

Two rooms that hear one sentence have similar sketches, although one of them hears it more softly,
muffled by a door and blurred by reverberation: these change how loud a band is, but hardly when it
rises. Two people who talk at once have different ones. So rooms tell a sentence that both of them
heard from two sentences that overlap by chance. Steps of two sketches belong together by their
time, which the claims have.
"""

import functools
import math

STEP_S = 0.05
"""Seconds of sound per step; a step has a bit for each of BANDS bands, 1 if it rises."""
BANDS = 4
LONGEST_STEPS = 42
"""A sketch describes the last 2.1 s of the speech at most."""
LEAST_STEPS = 8
"""Shorter sketches are not compared: they could be of anything."""


@functools.lru_cache(maxsize=64)
def agreement(one: bytes, other: bytes, apart_s: float, unsure_s: float) -> float | None:
    """Return how much two sketches agree where both have heard the same moments.

    It is the share of equal bits above that of unequal ones, times the square root of the steps, so
    that sketches of different sounds have values around 0, however long they are; the best of some
    shifts is mostly below 2. `other` ends `apart_s` later than `one`, give or take `unsure_s`. None
    if too few steps are common.
    """
    first, last = (apart_s - unsure_s) / STEP_S, (apart_s + unsure_s) / STEP_S
    found = list[float]()
    for shift in range(math.floor(first), math.ceil(last) + 1):
        left = one[: len(one) + shift] if shift < 0 else one
        right = other[: len(other) - shift] if shift > 0 else other
        steps = min(len(left), len(right))
        if steps >= LEAST_STEPS:
            pairs = zip(left[-steps:], right[-steps:], strict=True)
            unequal = sum((a ^ b).bit_count() for a, b in pairs)
            found.append((1 - 2 * unequal / (BANDS * steps)) * math.sqrt(steps))
    return max(found, default=None)
