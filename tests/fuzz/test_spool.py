"""A file of the spool, whatever is in it, is a window or deleted with one clear line."""

from __future__ import annotations

import json
import logging
import shutil
import struct
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, strategies as st
from rigs.fuzzing import ODD_TEXTS, damaged, examples, is_one_line

from appliance.config import Settings, SpoolSettings
from appliance.daemon.health import Health
from appliance.daemon.spool import Moment, Spool, pack, parse
from appliance.records import Window, new_id

PLACE = "/dev/shm" if Path("/dev/shm").is_dir() else None
HERE = Moment("a boot", 100.0, 1.7e9)
WINDOW = Window(
    utterance_id=new_id(),
    index=1,
    last=True,
    samples=np.arange(-400, 400, dtype=np.int16),
    start_s=90.0,
    speech_end_s=92.5,
    voiced_s=2.0,
    flags=("clipped",),
)
WHOLE = pack(WINDOW, HERE)
FRONT = struct.Struct("<6sBBII")
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 10**400, 0.5, 1e300, float("nan"), float("-inf"), "", "x", "\0", "../x",
    [], [[]], {}, [1], "7" * 26, "0" * 26, -1e11, *ODD_TEXTS,
)  # fmt: skip


@st.composite
def vouched(draw: st.DrawFn) -> bytes:
    """A file whose checksum is right and whose header is odd."""
    length = FRONT.unpack_from(WHOLE)[3]
    header = json.loads(WHOLE[FRONT.size : FRONT.size + length])
    sound = WHOLE[FRONT.size + length :]
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(header)))
        if draw(st.integers(0, 5)):
            header[name] = draw(st.sampled_from(ODD_VALUES))
        else:
            header.pop(name)
            if not header:
                break
    text = json.dumps(header).encode("ascii")
    if draw(st.integers(0, 5)) == 0:
        text = draw(damaged(text))
    body = text + sound[: draw(st.one_of(st.just(len(sound)), st.integers(0, len(sound))))]
    return FRONT.pack(b"rswind", 1, draw(st.integers(0, 255)), len(text), zlib.crc32(body)) + body


def read(data: bytes) -> str:
    """`refused`, or `read`."""
    try:
        found = parse(data, HERE)
    except ValueError as error:
        assert is_one_line(str(error)), str(error)
        return "refused"
    window = found.window
    assert window.samples.dtype == np.int16
    assert len(window.samples) > 0
    assert np.isfinite([window.start_s, window.speech_end_s, window.voiced_s]).all()
    return "read"


@given(damaged(WHOLE))
@examples(300)
def test_damaged_bytes_are_a_window_or_refused(data: bytes) -> None:
    event(read(data))


@given(vouched())
@examples(300)
def test_an_odd_header_is_a_window_or_refused(data: bytes) -> None:
    event(read(data))


@given(st.lists(st.one_of(damaged(WHOLE), vouched()), min_size=1, max_size=4))
@examples(50, 0.1)
def test_a_spool_takes_up_what_can_be_used_and_deletes_the_rest(found: list[bytes]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="roomscribe-fuzz-", dir=PLACE))
    logging.getLogger("roomscribe").setLevel(logging.CRITICAL)
    try:
        for number, data in enumerate(found, 1):
            (folder / f"{number:08}-{WINDOW.id}.window").write_bytes(data)
        settings = replace(Settings(), spool=SpoolSettings(path=str(folder)))
        health = Health()
        with Spool.open(settings, health) as spool:
            for kept in spool.windows():
                window = spool.load(kept.id)
                assert isinstance(window, Window)
                spool.begin(kept.id)
                spool.delete(kept.id)
            new = replace(WINDOW, id=new_id())
            assert spool.put(new) == (spool.folder is not None)
            assert [kept.id for kept in spool.windows()] in ([new.id], [])
    finally:
        logging.getLogger("roomscribe").setLevel(logging.NOTSET)
        shutil.rmtree(folder)


def test_what_is_damaged_can_be_read() -> None:
    assert read(WHOLE) == "read"
    assert parse(WHOLE, HERE).window.id == WINDOW.id
    with pytest.raises(ValueError, match="checksum"):
        parse(WHOLE[:-1], HERE)
