"""Distortions of a finished mel that make one voice sound like another: pitch of the formants,
their sharpness, the rhythm; and holes (SpecAugment). All change a mel (T, 80) float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sounds import Generator

Mel = NDArray[np.float32]
WARP_DEVIATION = 0.05
KNOT_FRAMES = 60
KNOT_DEVIATION = 9.0


def warp_frequency(rng: Generator, mel: Mel) -> Mel:
    """`mel` with its bands moved up or down by some percent: another vocal tract, same pitch."""
    bands = mel.shape[1]
    factor = float(np.clip(1 + rng.normal(0, WARP_DEVIATION), 0.86, 1.16))
    source = np.minimum(np.arange(bands) * factor, bands - 1)
    low = np.minimum(source.astype(np.int64), bands - 2)
    share = (source - low).astype(np.float32)
    return mel[:, low] * (1 - share) + mel[:, low + 1] * share


def sharpen(rng: Generator, mel: Mel) -> Mel:
    """`mel` with broader or narrower formants."""
    amount = np.float32(rng.uniform(-0.12, 0.25))
    wide = np.pad(mel, ((0, 0), (1, 1)), mode="edge")
    return mel + amount * (wide[:, 2:] + wide[:, :-2] - 2 * mel)


def mask(rng: Generator, mel: Mel) -> Mel:
    """`mel` with a few bands and moments at its mean."""
    mel = mel.copy()
    mean = float(mel.mean())
    for _ in range(int(rng.integers(0, 3))):
        low = int(rng.integers(0, 74))
        mel[:, low : low + int(rng.integers(1, 9))] = mean
    for _ in range(int(rng.integers(0, 4))):
        at = int(rng.integers(0, max(1, len(mel) - 9)))
        mel[at : at + int(rng.integers(1, 9))] = mean
    return mel


def rhythm(rng: Generator, frames: int) -> NDArray[np.float64]:
    """For each of `frames` new frames the old one that sounds there, rising, (frames,)."""
    knots = np.arange(0, frames + KNOT_FRAMES, KNOT_FRAMES, dtype=np.float64)
    knots[-1] = frames
    moved = knots + rng.normal(0, KNOT_DEVIATION, len(knots))
    moved[0], moved[-1] = 0, frames
    moved = np.maximum.accumulate(np.clip(moved, 0, frames)) + np.arange(len(moved)) * 1e-3
    return np.interp(np.arange(frames), knots, moved)


def follow(mel: Mel, old: NDArray[np.float64]) -> Mel:
    """`mel` in the rhythm `old`."""
    low = np.clip(old.astype(np.int64), 0, len(mel) - 2)
    share = np.clip(old - low, 0, 1).astype(np.float32)[:, None]
    return mel[low] * (1 - share) + mel[low + 1] * share
