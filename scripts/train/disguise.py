"""Distortions of a finished mel that make one voice sound like another: its resonances and its
harmonics apart from one another, their sharpness, the rhythm; and holes (SpecAugment). All change a
mel (T, 80) float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct, idct
from train.sounds import Generator

from appliance.infer.mel import at_bands, warp

Mel = NDArray[np.float32]
WARP_DEVIATION = 0.06
KNOTS = ((12, 2.4), (25, 4.5), (60, 9.0))
"""Rhythms: frames between two knots, and by how many frames a knot moves (standard deviation)."""
THROAT_BANDS = (0, 14, 30, 46, 62, 79)
"""Where `revoice` moves the resonances, each place a little on its own."""
SILENT = 0.01
"""A frame that rises by less than this above the mel's floor is silence, and stays so."""


def warp_frequency(rng: Generator, mel: Mel) -> Mel:
    """`mel` with its bands moved up or down by some percent: another vocal tract, same pitch."""
    return warp(mel, float(np.clip(1 + rng.normal(0, WARP_DEVIATION), 0.86, 1.16)))


def revoice(rng: Generator, mel: Mel) -> Mel:
    """`mel` with its envelope (the throat) bent and its fine structure (the pitch) moved apart.

    The envelope is the mel's cepstrum up to a random order; the harmonics on top of it become
    denser or wider, stronger or fainter down to a whisper, and the whole gets another colour.
    """
    bands = mel.shape[1]
    cepstrum = dct(mel, axis=1, norm="ortho")
    cepstrum[:, int(rng.integers(12, 20)) :] = 0
    envelope = idct(cepstrum, axis=1, norm="ortho")
    fine = mel - envelope
    moves = rng.normal(0, 1.4) + rng.normal(0, 1.1, len(THROAT_BANDS))
    place = np.arange(bands)
    throat = at_bands(envelope, place + np.interp(place, THROAT_BANDS, moves))
    pitch = at_bands(fine, place * rng.uniform(0.85, 1.2)) * np.float32(rng.uniform(0.0, 1.25))
    colour = np.interp(place, THROAT_BANDS, rng.normal(0, 0.07, len(THROAT_BANDS)))
    floor = mel.min()
    heard: Mel = np.maximum(throat + pitch + colour.astype(np.float32), floor)
    heard[mel.max(axis=1) < floor + SILENT] = floor
    return heard


def smear(rng: Generator, mel: Mel) -> Mel:
    """`mel` with softer or harder transitions, and louder or fainter weak sounds."""
    amount = np.float32(rng.uniform(-0.1, 0.25))
    long = np.pad(mel, ((1, 1), (0, 0)), mode="edge")
    mel = np.asarray(mel + amount * (long[2:] + long[:-2] - 2 * mel), np.float32)
    top = mel.max()
    smeared: Mel = top - (top - mel) * np.float32(rng.uniform(0.85, 1.15))
    return smeared


def sharpen(rng: Generator, mel: Mel) -> Mel:
    """`mel` with broader or narrower formants."""
    amount = np.float32(rng.uniform(-0.12, 0.25))
    wide = np.pad(mel, ((0, 0), (1, 1)), mode="edge")
    return np.asarray(mel + amount * (wide[:, 2:] + wide[:, :-2] - 2 * mel), np.float32)


def mask(rng: Generator, mel: Mel) -> Mel:
    """`mel` with a few bands and moments at its mean."""
    mel = mel.copy()
    mean = float(mel.mean())
    for _ in range(int(rng.integers(0, 4))):
        low = int(rng.integers(0, 74))
        mel[:, low : low + int(rng.integers(1, 11))] = mean
    for _ in range(int(rng.integers(0, 3 + len(mel) // 100))):
        at = int(rng.integers(0, max(1, len(mel) - 11)))
        mel[at : at + int(rng.integers(1, 11))] = mean
    return mel


def rhythm(rng: Generator, frames: int) -> NDArray[np.float64]:
    """For each of `frames` new frames the old one that sounds there, rising, (frames,)."""
    apart, deviation = KNOTS[int(rng.integers(len(KNOTS)))]
    knots = np.arange(0, frames + apart, apart, dtype=np.float64)
    knots[-1] = frames
    moved = knots + rng.normal(0, deviation, len(knots))
    moved[0], moved[-1] = 0, frames
    moved = np.maximum.accumulate(np.clip(moved, 0, frames)) + np.arange(len(moved)) * 1e-3
    old: NDArray[np.float64] = np.interp(np.arange(frames), knots, moved)
    return old


def follow(mel: Mel, old: NDArray[np.float64]) -> Mel:
    """`mel` in the rhythm `old`."""
    low = np.clip(old.astype(np.int64), 0, len(mel) - 2)
    share = np.clip(old - low, 0, 1).astype(np.float32)[:, None]
    return mel[low] * (1 - share) + mel[low + 1] * share
