"""A spoken sentence with its text, for the self-tests: synthesised, of no living voice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from appliance.records import SAMPLE_RATE, Frame, Window

FILE = Path(__file__).resolve().parent / "sentence.flac"
TEXT = "turn off the cellar fan"


def spoken_frames(file: Path = FILE) -> Iterator[Frame]:
    """The sentence, or another recording, as frames of 30 ms; raises AudioError."""
    from appliance.capture.recording import Recording

    with Recording(str(file), real_time=False) as recording:
        yield from recording.frames()


def spoken_window(longest_s: float, file: Path = FILE) -> Window:
    """The same as one window, cut off at `longest_s`; raises AudioError."""
    samples = np.concatenate([frame.samples for frame in spoken_frames(file)])
    samples = samples[: int(longest_s * SAMPLE_RATE)]
    length_s = len(samples) / SAMPLE_RATE
    return Window("doctor", 1, True, samples, 0.0, length_s, length_s)


def words(text: str) -> list[str]:
    """Words alone, in lower case, for comparing."""
    return re.findall(r"[\w']+", text.casefold())
