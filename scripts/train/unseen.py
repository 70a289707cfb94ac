"""Voices that training never hears: svox pico and mbrola, only for testing a model.

Both are non-free in Debian (libttspico-utils, mbrola-us1, -us2, -us3, -en1); nothing shipped is
made from them. They tell no phone times.
"""

import random
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soxr
from train.phones import Segment

VOICES = [
    "pico:en-US",
    "pico:en-GB",
    "mbrola:us1",
    "mbrola:us2",
    "mbrola:us3",
    "mbrola:en1",
]


def say(voice: str, text: str, rng: random.Random) -> tuple[npt.NDArray[np.int16], list[Segment]]:
    """Give the samples, shape (n,) int16 16 kHz, and no phones; the rate of mbrola is drawn."""
    engine, name = voice.split(":")
    rate = str(rng.randint(130, 175))
    with tempfile.TemporaryDirectory(prefix="unseen-") as folder:
        path = str(Path(folder, "a.wav"))
        commands = {
            "pico": ["pico2wave", "-l", name, "-w", path, text],
            "mbrola": ["espeak-ng", "-v", f"mb-{name}", "-s", rate, "-w", path, text],
        }
        subprocess.run(commands[engine], check=True, capture_output=True)
        with wave.open(path) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32)
            samples = soxr.resample(samples, file.getframerate(), 16_000, "HQ")
    return np.clip(np.rint(samples), -32768, 32767).astype(np.int16), []
