"""Recordings as the measurements of voice detection hear them: padded, and with noise or babble."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.capture.recording import Recording
from appliance.records import SAMPLE_RATE, Samples

PAD_S = 2.0
STEP = SAMPLE_RATE // 100


def recordings(folder: Path) -> Iterator[tuple[str, str, Samples]]:
    """Path, category and samples of each recording that the manifest names."""
    with (folder / "MANIFEST.tsv").open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE, escapechar="\\")
        for row in rows:
            yield row["path"], row["category"], samples_of(folder / row["path"])


def samples_of(path: Path) -> Samples:
    """A recording, (n,) int16 at 16 kHz."""
    with Recording(str(path), real_time=False) as recording:
        return np.concatenate([frame.samples for frame in recording.frames()])


def noise(seconds: float, rms: float, *, pink: bool = False, seed: int = 0) -> Samples:
    """(n,) int16 of white or pink noise."""
    white = np.random.default_rng(seed).normal(size=int(seconds * SAMPLE_RATE))
    if pink:
        spectrum = np.fft.rfft(white)
        spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
        white = np.fft.irfft(spectrum, len(white))
        white /= white.std()
    return np.clip(np.rint(white * rms), -32768, 32767).astype(np.int16)


def padded(samples: Samples) -> Samples:
    """The recording between two stretches of faint noise."""
    return np.concatenate((noise(PAD_S, 3.3), samples, noise(PAD_S, 3.3, seed=1)))


def loud_steps(samples: Samples) -> NDArray[np.bool_]:
    """Which 10 ms steps of a recording are speech, by their level alone."""
    power = samples.astype(np.float64) ** 2
    steps = power[: len(power) // STEP * STEP].reshape(-1, STEP).mean(axis=1)
    level = 10 * np.log10((steps[:-1] + steps[1:]) / 2 + 1e-2)
    loud = (level > np.percentile(level, 5) + 12) & (level > np.percentile(level, 95) - 35)
    three = loud[:-2] & loud[1:-1] & loud[2:]
    return np.concatenate((three, [False, False])) | np.concatenate(([False], three, [False]))


def babble(voices: list[Samples], seconds: float) -> Samples:
    """(n,) int16 of several readers at once, as loud as each other, RMS 300; each of them begins
    somewhere in the middle, since all recordings begin with silence."""
    length = int(seconds * SAMPLE_RATE)
    mixed = np.zeros(length)
    for number, voice in enumerate(voices, 1):
        begun = np.roll(voice, -len(voice) * number // (len(voices) + 1))
        looped = np.resize(begun.astype(np.float64), length)
        mixed += looped / np.sqrt((looped**2).mean())
    crowd: Samples = np.rint(mixed * 300 / np.sqrt((mixed**2).mean())).astype(np.int16)
    return crowd


def in_noise(samples: Samples, snr_db: float, other: Samples | None = None) -> Samples:
    """The padded recording with pink noise, or `other`, all along."""
    steps = samples[: len(samples) // STEP * STEP].reshape(-1, STEP).astype(np.float64)
    rms = np.sqrt((steps[loud_steps(samples)[: len(steps)].nonzero()[0]] ** 2).mean())
    whole = padded(samples).astype(np.int64)
    rms /= 10 ** (snr_db / 20)
    if other is None:
        added = noise(len(whole) / SAMPLE_RATE + 0.01, rms, pink=True)
    else:
        part = other[: len(whole)].astype(np.float64)
        added = np.rint(part * rms / np.sqrt((part**2).mean())).astype(np.int16)
    heard: Samples = np.clip(whole + added[: len(whole)], -32768, 32767).astype(np.int16)
    return heard
