"""The log's file with any bits flipped: it heals, or says why not in one clear line; no crash."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import event, given, strategies as st
from rigs.fuzzing import examples, is_one_line
from rigs.publishing import transcript

from appliance.config import StoreSettings
from appliance.errors import StoreError
from appliance.mqtt import events
from appliance.mqtt.outbox import Outbox
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store

COUNT = 60
PLACE = "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    """The file of a log of COUNT transcripts, half of them delivered."""
    folder = tmp_path_factory.mktemp("whole")
    with Store.open(StoreSettings(path=str(folder))) as store:
        for number in range(COUNT):
            store.append(transcript(f"sentence {number} of the kitchen", flags=("clipped",) * 2))
        store.move_cursor(COUNT // 2)
    logging.getLogger("roomscribe").setLevel(logging.CRITICAL)
    yield (folder / FILE_NAME).read_bytes()
    logging.getLogger("roomscribe").setLevel(logging.NOTSET)


@st.composite
def damage(draw: st.DrawFn) -> list[tuple[float, int, int]]:
    """Where, as a share of the file, which bits, and over how many bytes."""
    one = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255), st.sampled_from((1, 9)))
    where = draw(st.lists(one, min_size=1, max_size=6))
    if draw(st.integers(0, 4)) == 0:  # the head of the file says what all the rest means
        where = [(share * 200 / 100_000, bits, length) for share, bits, length in where]
    return where


def use(folder: Path) -> str:
    """Everything that the appliance does with its log; what came of it in a word."""
    settings = StoreSettings(path=str(folder))
    try:
        with Store.open(settings) as store:
            stored = store.append(transcript("after the damage"))
            tell(store)
            store.query(datetime(2020, 1, 1, tzinfo=UTC), "kitchen", 100)
            store.expire(datetime.now(UTC))
            assert stored.seq > 0
            newest = store.read_after(stored.seq - 1)
            assert [one.transcript.text for one in newest] == ["after the damage"]
            assert store.depth() == 0
        return "healed" if list(folder.glob("*.damaged*")) else "as before"
    except StoreError as error:
        assert is_one_line(str(error)), str(error)
        return "refused"


def tell(store: Store) -> None:
    """Delivers all that is due, as the publisher does."""
    outbox = Outbox(store, 3600)
    last = 0
    while found := outbox.next_due():
        assert found.seq > last
        last = found.seq
        events.encode(events.transcript(found, "kitchen", datetime.now(UTC), late=True))
        outbox.mark_sent(0, last)
        outbox.mark_acknowledged(0.0)
    outbox.save_cursor()


@given(damage())
@examples(60)
def test_a_log_with_flipped_bits_goes_on_or_says_why_not(
    whole: bytes, where: list[tuple[float, int, int]]
) -> None:
    changed = bytearray(whole)
    for share, bits, length in where:
        at = int(share * len(changed))
        for index in range(at, min(at + length, len(changed))):
            changed[index] ^= bits
    event(outcome(bytes(changed)))


@given(st.floats(0, 1), st.binary(max_size=3000))
@examples(20, 0.2)
def test_a_log_cut_short_or_lengthened_goes_on_or_says_why_not(
    whole: bytes, share: float, more: bytes
) -> None:
    event(outcome(whole[: int(share * len(whole))] + more))


def outcome(data: bytes) -> str:
    """What comes of a log with this file, twice: the second start finds all in order."""
    folder = Path(tempfile.mkdtemp(prefix="roomscribe-fuzz-", dir=PLACE))
    try:
        (folder / FILE_NAME).write_bytes(data)
        found = use(folder)
        if found != "refused":
            assert use(folder) != "refused"
        return found
    finally:
        shutil.rmtree(folder)


def test_the_file_that_is_damaged_is_whole(whole: bytes) -> None:
    assert outcome(whole) == "as before"
    assert outcome(b"") == "as before"
    assert whole.startswith(b"SQLite format 3\0")
    assert sqlite3.sqlite_version_info >= (3, 34)
