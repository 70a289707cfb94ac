"""Windows and noise made up for tests."""

import time

import numpy as np

from appliance.records import SAMPLE_RATE, Samples, Window, new_id

NO_FOLDER = "/proc/none"
"""A spool.path that cannot be made: windows are in the process only."""


def a_window(utterance_id: str = "", seconds: float = 0.1, **fields: object) -> Window:
    """A window that ends now, with a sound of its own."""
    now_s = time.monotonic()
    utterance_id = utterance_id or new_id()
    sound = np.random.default_rng(len(utterance_id)).integers(
        -3000, 3000, int(seconds * SAMPLE_RATE), np.int16
    )
    values: dict[str, object] = {
        "samples": sound,
        "index": 1,
        "last": True,
        "start_s": now_s - seconds,
        "speech_end_s": now_s,
        "voiced_s": seconds / 2,
    }
    return Window(utterance_id=utterance_id, **(values | fields))  # type: ignore[arg-type]


def noise(level: float, seconds: float) -> Samples:
    """White noise of that RMS as a share of full scale, the same each time."""
    rng = np.random.default_rng(3)
    sound = rng.normal(0, level * 32768, int(seconds * SAMPLE_RATE))
    return np.clip(sound, -32768, 32767).astype(np.int16)
