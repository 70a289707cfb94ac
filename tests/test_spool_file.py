"""The file of a window: what comes back, on whose clock, and what damage does."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_folder import a_window

from appliance.daemon.spool import ATTEMPTS_AT, Moment, pack, parse
from appliance.records import Window

NOW = Moment("boot-1", 1000.0, 5000.0)


def as_values(window: Window) -> dict[str, Any]:
    values = {entry.name: getattr(window, entry.name) for entry in fields(Window)}
    return values | {"samples": window.samples.tolist()}


def with_header(**changes: Any) -> bytes:
    """A file whose header was changed, and whose checksum is right."""
    data = pack(a_window(), NOW)
    length = struct.unpack_from("<I", data, 8)[0]
    header = json.loads(data[16 : 16 + length]) | changes
    text = json.dumps(header).encode()
    body = text + data[16 + length :]
    return data[:8] + struct.pack("<II", len(text), zlib.crc32(body)) + body


def test_a_window_comes_back_with_every_field() -> None:
    window = a_window(index=3, last=False, flags=("gap", "clipped"), overlap_s=0.5)
    found = parse(pack(window, NOW), NOW)
    assert as_values(found.window) == as_values(window)
    assert found.window.samples.dtype == np.int16
    assert found.attempts == 0


def test_attempts_are_counted_in_place() -> None:
    data = bytearray(pack(a_window(), NOW))
    data[ATTEMPTS_AT] = 2
    assert parse(bytes(data), NOW).attempts == 2


def test_times_are_kept_within_a_boot_and_moved_to_the_next_ones_clock() -> None:
    data = pack(a_window(start_s=990.0, speech_end_s=995.0), NOW)
    same = parse(data, replace(NOW, monotonic_s=1100.0, wall_s=77.0)).window
    assert (same.start_s, same.speech_end_s) == (990.0, 995.0)
    rebooted = parse(data, Moment("boot-2", 50.0, 5060.0)).window
    assert rebooted.start_s == pytest.approx(50.0 - 60.0 - 10.0)
    assert rebooted.speech_end_s - rebooted.start_s == 5.0


def test_a_clock_that_went_back_makes_no_speech_of_the_future() -> None:
    data = pack(a_window(start_s=990.0, speech_end_s=995.0), NOW)
    assert parse(data, Moment("boot-2", 50.0, 10.0)).window.speech_end_s == 45.0


def test_a_file_that_was_cut_anywhere_is_refused() -> None:
    data = pack(a_window(seconds=0.01), NOW)
    for length in range(len(data)):
        with pytest.raises(ValueError, match="expected"):
            parse(data[:length], NOW)


def test_a_bit_that_flipped_is_found_wherever_it_is() -> None:
    data = pack(a_window(seconds=0.01), NOW)
    for place in range(len(data)):
        if place != ATTEMPTS_AT:
            flipped = bytearray(data)
            flipped[place] ^= 1 << place % 8
            with pytest.raises(ValueError, match="expected"):
                parse(bytes(flipped), NOW)


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": 7},
        {"samples": 0},
        {"id": "../../etc/passwd"},
        {"start_s": float("nan")},
        {"speech_end_s": None},
        {"index": True},
        {"last": 1},
        {"flags": ["x" * 100]},
        {"boot_id": 5},
        {"boot_id": "another", "wall_s": "today"},
    ],
)
def test_a_header_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|header"):
        parse(with_header(**changes), NOW)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_no_bytes_make_it_crash(noise: bytes, fitting: bool) -> None:
    if fitting:  # past the checksum, into the header
        front = b"rswind\x01\x00" + struct.pack("<II", len(noise), zlib.crc32(noise))
        noise = front + noise
    with pytest.raises(ValueError, match="expected"):
        parse(noise, NOW)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["id", "utterance_id", "index", "samples", "flags", "start_s", "wall_s"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=4,
        ),
    )
)
def test_no_header_makes_it_crash(changes: dict[str, Any]) -> None:
    try:
        found = parse(with_header(**changes, boot_id="another"), NOW).window
    except ValueError:
        return
    assert isinstance(found, Window)
    assert len(found.samples) == 1600
