"""A sound file, however damaged, gives frames of 16-bit sound or one clear line."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import struct
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
ENCODINGS = ((1, 16), (1, 8), (1, 24), (1, 32), (3, 32), (3, 64), (6, 8), (7, 8), (0xFFFE, 16))
"""Format tag and bits of a sample, as they belong together."""
FORMATS = (1, 3, 6, 7, 0x11, 0x55, 0xFFFE)
"""PCM, float, A-law, mu-law, ADPCM, MP3, extensible."""
RATES = (0, 1, 3999, 4000, 8000, 16_000, 44_100, 48_000, 384_000, 384_001, 2**31, 2**32 - 1)
WIDTHS = (0, 1, 8, 12, 16, 20, 24, 32, 48, 64, 255, 65535)
CHANNELS = (0, 1, 2, 3, 8, 255, 1024, 1025, 65535)

u16, u32 = st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)


@st.composite
def formats(draw: st.DrawFn, wrong: set[str]) -> bytes:
    """What a fmt piece holds."""
    kind, width = draw(st.sampled_from(ENCODINGS))
    channels, rate_hz = draw(st.integers(1, 2)), draw(st.sampled_from((16_000, 8000, 44_100)))
    kind = draw(st.one_of(st.sampled_from(FORMATS), u16)) if "kind" in wrong else kind
    channels = draw(st.sampled_from(CHANNELS)) if "channels" in wrong else channels
    rate_hz = draw(st.sampled_from(RATES)) if "rate" in wrong else rate_hz
    width = draw(st.sampled_from(WIDTHS)) if "width" in wrong else width
    align = draw(u16) if "align" in wrong else channels * width // 8 & 0xFFFF
    per_s = draw(u32) if "per_s" in wrong else rate_hz * align & 0xFFFFFFFF
    content = struct.pack("<HHIIHH", kind, channels, rate_hz, per_s, align, width)
    if kind != 0xFFFE and "inner" not in wrong:
        return content
    inner = draw(st.sampled_from(FORMATS)) if "inner" in wrong else 1
    valid = draw(st.sampled_from(WIDTHS)) if "valid" in wrong else width
    guid = struct.pack("<H", inner) + bytes.fromhex("000000001000800000aa00389b71")
    return content + struct.pack("<HHI", 22, valid & 0xFFFF, draw(u32)) + guid


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


def check(data: bytes, *, piped: bool = False) -> str:
    """`read`, or `refused`; `piped`: what fits into a pipe comes through one."""
    with contextlib.ExitStack() as opened:
        file = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "sound.wav"
        file.write_bytes(data)
        if piped:
            read_end, write_end = os.pipe()
            opened.callback(os.close, read_end)
            os.write(write_end, data)
            os.close(write_end)
            file = Path(f"/proc/self/fd/{read_end}")
        begun_s = time.monotonic()
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
        assert time.monotonic() - begun_s < MOST_S
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
