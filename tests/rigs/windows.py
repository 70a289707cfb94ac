"""A folder in memory for the spool, and windows to put into it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from appliance.records import SAMPLE_RATE, Window, new_id
from appliance.store.folders import SHARED_MEMORY, is_in_memory

needs_memory = pytest.mark.skipif(
    not is_in_memory(SHARED_MEMORY) or not os.access(SHARED_MEMORY, os.W_OK),
    reason="no shared memory to keep a spool in",
)


@pytest.fixture
def memory() -> Iterator[Path]:
    """An empty folder in memory, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="roomscribe-test-", dir=SHARED_MEMORY))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


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
