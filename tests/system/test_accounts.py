"""The torture's accounting: what was lost, doubled, swapped or made up does not slip by."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import pytest
from resilience.accounts import Sentences, Waiting, compare, first_times, spooled, stored
from resilience.kill import Outcome
from rigs.publishing import transcript

from appliance.config import StoreSettings
from appliance.store.store import Store

SAID = random.Random(7).choices(range(40), k=300)


def test_what_was_heard_as_it_was_said_has_no_faults() -> None:
    assert not compare(SAID, list(SAID)).broken
    assert not compare([], []).broken


@pytest.mark.parametrize("place", [0, 1, 150, 299])
def test_a_lost_sentence_is_noticed_wherever_it_was(place: int) -> None:
    verdict = compare(SAID, SAID[:place] + SAID[place + 1 :])
    assert (verdict.lost, verdict.doubled, verdict.out_of_order, verdict.wrong) == (1, 0, 0, 0)


@pytest.mark.parametrize("place", [0, 1, 150, 299])
def test_a_doubled_sentence_is_noticed_wherever_it_was(place: int) -> None:
    verdict = compare(SAID, SAID[: place + 1] + SAID[place:])
    assert (verdict.lost, verdict.doubled, verdict.out_of_order, verdict.wrong) == (0, 1, 0, 0)


def test_two_sentences_that_changed_places_are_out_of_order() -> None:
    heard = list(range(40))
    heard[20], heard[21] = heard[21], heard[20]
    verdict = compare(range(40), heard)
    assert (verdict.lost, verdict.doubled, verdict.out_of_order, verdict.wrong) == (0, 0, 1, 0)


def test_a_sentence_that_came_much_too_late_is_out_of_order() -> None:
    heard = [*range(3), *range(4, 40), 3]
    verdict = compare(range(40), heard)
    assert (verdict.lost, verdict.doubled, verdict.out_of_order, verdict.wrong) == (0, 0, 1, 0)


def test_a_text_that_no_sentence_has_is_wrong() -> None:
    known = Sentences({0: {"lights on"}, 1: {"lights off", "light off"}})
    heard = known.of(["lights on", "light off", "thank you for watching"])
    assert heard == [0, 1, -1]
    assert compare([0, 1, 0], heard).wrong == 1


def test_many_faults_together_are_all_counted() -> None:
    heard = list(SAID)
    for place in (250, 100, 30):
        del heard[place]
    heard.insert(60, -1)
    verdict = compare(SAID, heard)
    assert (verdict.lost, verdict.doubled) == (3, 1)


def test_sentences_that_read_alike_are_refused() -> None:
    with pytest.raises(ValueError, match="read the same"):
        Sentences({0: {"yes"}, 1: {"yes"}})


def test_a_message_that_came_again_counts_once_and_where_it_came_first() -> None:
    assert first_times(["a", "b", "a", "c", "b"]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "fault",
    [
        {"lost_at_kills": 1},
        {"ids_equal": False},
        {"seq_rises": False},
        {"left_over": 1},
        {"status": 70},
        {"status": None},
        {"trouble": "it ended by itself"},
        {"store": compare([1], [])},
        {"subscriber": compare([1], [1, 1])},
    ],
)
def test_each_fault_of_a_killing_breaks_the_promise(fault: dict[str, object]) -> None:
    whole = {"spoken": [1], "ids_equal": True, "seq_rises": True, "status": 0}
    assert not Outcome(**whole).broken  # type: ignore[arg-type]
    assert Outcome(**whole | fault).broken  # type: ignore[arg-type]


def test_what_is_stored_is_read_without_touching_the_store(tmp_path: Path) -> None:
    assert stored(tmp_path) == []
    with Store.open(StoreSettings(path=str(tmp_path / "state"))) as store:
        ids = [store.append(transcript(text)).transcript.id for text in ("one", "two")]
        files = {path: path.read_bytes() for path in (tmp_path / "state").glob("roomscribe.db*")}
        assert stored(tmp_path / "state") == [(1, ids[0], "one"), (2, ids[1], "two")]
        assert files == {path: path.read_bytes() for path in files}


def test_a_torn_file_in_the_spool_is_no_window_and_an_unrenamed_whole_one_is(
    tmp_path: Path,
) -> None:
    def write(name: str, attempts: int, body: bytes, checksum: int) -> None:
        front = struct.pack("<6sBBII", b"rswind", 1, attempts, 2, checksum)
        (tmp_path / name).write_bytes(front + body)

    ids = [letter * 26 for letter in "ABC"]
    write(f"00000001-{ids[0]}.window", 1, b"{}sound", zlib.crc32(b"{}sound"))
    write(f"00000002-{ids[1]}.window", 0, b"{}sou", zlib.crc32(b"{}sound"))
    write(f"00000003-{ids[2]}.window.new", 0, b"{}sound", zlib.crc32(b"{}sound"))
    (tmp_path / f"00000004-{ids[2]}.window.new").write_bytes(b"rsw")
    assert spooled(tmp_path) == [Waiting(ids[0], 1), Waiting(ids[2], 0)]
