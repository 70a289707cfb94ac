"""A sound file, however damaged, gives frames of 16-bit sound or one clear line."""

import contextlib
import gc
import io
import logging
import tempfile
import time
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import event, given, strategies as st
from rigs.fuzzing import damaged, examples, is_one_line

from appliance.capture.frames import FRAME_SAMPLES
from appliance.capture.recording import LOWEST_HZ, Recording
from appliance.errors import AudioError
from appliance.records import SAMPLE_RATE

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True)
def left_by_others() -> None:
    """What other tests left open is told of before these, to which a warning is an error."""
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


MOST_BYTES = 64 << 20
"""Of memory for a file of some kilobytes."""
MOST_S = 20.0
"""A generous limit for one file; a hang takes longer."""


def encoded(kind: str, subtype: str, rate_hz: int, channels: int) -> bytes:
    """A third of a second of noise as a file."""
    noise = np.random.default_rng(1).normal(size=(rate_hz // 3, channels)) / 9
    file = io.BytesIO()
    soundfile.write(file, noise, rate_hz, subtype, format=kind)
    return file.getvalue()


def others() -> st.SearchStrategy[bytes]:
    """Damaged files of what else libsndfile reads."""
    wanted = [
        ("WAV", "PCM_24", 48_000, 2), ("WAV", "FLOAT", 16_000, 1), ("WAVEX", "PCM_32", 44_100, 2),
        ("WAV", "IMA_ADPCM", 16_000, 1), ("FLAC", "PCM_16", 16_000, 1),
        ("FLAC", "PCM_24", 44_100, 2), ("OGG", "VORBIS", 44_100, 2), ("AIFF", "PCM_16", 22_050, 1),
        ("CAF", "PCM_16", 16_000, 1), ("W64", "PCM_16", 16_000, 1), ("AU", "ULAW", 8000, 1),
    ]  # fmt: skip
    formats = soundfile.available_formats()
    known = [encoded(*each) for each in wanted if each[0] in formats]
    return st.sampled_from(known).flatmap(damaged)


def check(data: bytes) -> str:
    """`read`, or `refused`."""
    with contextlib.ExitStack() as opened:
        file = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "sound.wav"
        file.write_bytes(data)
        begun_s = time.process_time()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        heard = 0
        outcome = "read"
        try:
            with Recording(str(file), real_time=False) as recording:
                for frame in recording.frames():
                    assert frame.samples.dtype == np.int16
                    assert frame.samples.shape == (FRAME_SAMPLES,)
                    heard += FRAME_SAMPLES
            for warning in recording.warnings:
                assert is_one_line(warning), warning
        except AudioError as error:
            assert is_one_line(str(error)), str(error)
            outcome = "refused"
        _, most = tracemalloc.get_traced_memory()
        assert most - before < MOST_BYTES, f"{most >> 20} MiB for {len(data)} bytes"
        assert time.process_time() - begun_s < MOST_S
    # silence compresses well, but a byte of sound is no more than some samples in any other case
    if data[:4] in (b"RIFF", b"RIFX", b"RF64"):
        assert heard <= 4 * len(data) * SAMPLE_RATE / LOWEST_HZ + 2 * FRAME_SAMPLES
    return outcome


@pytest.fixture(autouse=True)
def memory() -> object:
    logging.getLogger("roomscribe").setLevel(logging.ERROR)
    tracemalloc.start()
    yield
    tracemalloc.stop()
    logging.getLogger("roomscribe").setLevel(logging.NOTSET)


@given(others())
@examples(150, 0.5)
def test_a_damaged_sound_file_of_any_kind_is_heard_or_refused(data: bytes) -> None:
    event(check(data))


def test_what_is_damaged_can_be_heard() -> None:
    whole = encoded("WAV", "PCM_16", 16_000, 1)
    assert check(whole) == "read"
    assert check(whole[:30]) == "refused"
