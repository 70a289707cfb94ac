"""What the measurements on the simulated Hailo share: windows of speech, a transcriber, a table."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile

from appliance.config import EncoderSettings, Settings
from appliance.infer.transcriber import Transcriber, open_transcriber
from appliance.model.bundle import Bundle
from appliance.records import SAMPLE_RATE, Window

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

SEED = 11
LATENCY_MS = 31.0


def open_for(bundle: Bundle, threads: int = 2) -> Transcriber:
    """The transcriber of a bundle, encoding on the chip."""
    settings = replace(
        Settings(), model=replace(Settings().model, bundle=str(bundle.folder)),
        encoder=EncoderSettings(backend="hailo"),
        decoder=replace(Settings().decoder, threads=threads),
    )  # fmt: skip
    return open_transcriber(settings)


def make_windows(bundle: Bundle, count: int) -> list[Window]:
    """Sentences, each window another one or at another place and volume."""
    rng = np.random.Generator(np.random.PCG64(SEED))
    sounds = [
        soundfile.read(file, dtype="int16")[0] for file in sorted(ROOT.glob("tests/speech/*.flac"))
    ]
    windows = []
    for number in range(count):
        sound = sounds[number % len(sounds)]
        before = int(rng.integers(0, SAMPLE_RATE))
        sound = (np.pad(sound, (before, 4000)) * rng.uniform(0.3, 1.0)).astype(np.int16)
        sound = sound[: round(bundle.window_s * SAMPLE_RATE)]
        windows.append(Window(f"{number:04}", 1, True, sound, 0.0, 0.0, 0.0))
    return windows


def spread(values: list[float]) -> str:
    """Half of the values, 95 of 100, the largest."""
    if not values:
        return "none"
    p50, p95 = np.percentile(values, [50, 95])
    return f"p50 {p50:.2f}, p95 {p95:.2f}, most {max(values):.2f}"


def row(name: str, value: str) -> None:
    """Prints a line of the table."""
    print(f"{name:52} {value}", flush=True)
