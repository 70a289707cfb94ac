"""What was said is counted, within bounds, and forgotten with the log."""

import tracemalloc
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from rigs.publishing import transcript

from appliance.config import StoreSettings
from appliance.records import Transcript, new_id
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store
from appliance.store.tables import Wanted
from appliance.store.utterance_history import LONGEST, NEWEST, Sentence, UtteranceHistory

_IDS = count()


def sentence(text: str, continues: str = "", window: int = 1, windows: int | None = 1) -> Sentence:
    return Sentence(f"utterance {next(_IDS)}", window, windows, text, continues)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("turn off the water", (2, 1)),
        ("Turn off the water!", (2, 1)),
        ("turn off the wat", (0, 0)),
        ("turn off the", (0, 3)),
        ("turn", (0, 4)),
        ("stop", (1, 1)),
        ("turn off the water heater", (1, 0)),
        ("turn it up", (1, 0)),
        ("stop it", (0, 0)),
        ("", (0, 0)),
        ("...", (0, 0)),
        ("電気を", (0, 1)),
        ("電気をつけて", (1, 0)),
    ],
)
def test_whole_sentences_and_beginnings_are_distinguished(
    text: str, expected: tuple[int, int]
) -> None:
    history = UtteranceHistory(
        map(
            sentence,
            (
                *("Turn off the water.", "turn off the water", "turn off the water heater"),
                *("turn it up", "stop", "stopwatch", "電気をつけて"),
            ),
        )
    )
    assert history.count(text) == expected


def test_what_was_gone_on_with_was_no_whole_sentence() -> None:
    first = sentence("turn off the water")
    second = sentence("heater", continues=first.utterance_id)
    third = sentence("in the cellar", continues=second.utterance_id)
    lost = sentence("and the lamp", continues="of a sentence that nobody knows")
    history = UtteranceHistory((first, second, third, lost))
    assert history.count("turn off the water") == (0, 1)
    assert history.count("turn off the water heater in the cellar") == (1, 0)
    assert history.count("heater") == history.count("and the lamp") == (0, 0)


def test_the_same_transcript_twice_counts_once() -> None:
    one = sentence("stop")
    assert UtteranceHistory((one, one)).count("stop") == (1, 0)


def test_long_speech_is_not_kept() -> None:
    history = UtteranceHistory(
        (
            sentence("one of two", windows=2),
            sentence("two of two", window=2, windows=2),
            sentence("goes on", windows=None),
            sentence("a" * (LONGEST + 1)),
        )
    )
    assert [history.count(text) for text in ("one of two", "two of two", "goes on", "a")] == [
        (0, 0)
    ] * 4


def test_the_memory_is_bounded() -> None:
    tracemalloc.start()
    try:
        history = UtteranceHistory(
            sentence(f"{number} " + "x" * (LONGEST - 9)) for number in range(3 * NEWEST)
        )
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert size < 1_000_000
    assert len(history._words) == len(history._sorted) == NEWEST
    assert history.count(f"{2 * NEWEST - 1} ") == (0, 0), "the oldest go"
    assert history.count(f"{2 * NEWEST} ") == history.count(f"{3 * NEWEST - 1} ") == (0, 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(StoreSettings(path=str(tmp_path))) as opened:
        yield opened


def heard(text: str, **fields: object) -> Transcript:
    return transcript(text, utterance_id=new_id(), **fields)


def test_the_log_counts_what_it_holds_and_what_is_added(store: Store) -> None:
    store.append(heard("turn it up"))
    assert store.history.count("Turn it up.") == (1, 0)
    first = store.append(heard("turn it up"))
    assert store.history.count("turn it up") == (2, 0)
    store.append(heard("please", continues=first.transcript.utterance_id))
    assert store.history.count("turn it up") == (1, 1)


def test_what_is_deleted_by_anybody_counts_no_more(store: Store, tmp_path: Path) -> None:
    for text in ("one", "two", "three"):
        store.append(heard(text))
    assert store.history.count("one") == (1, 0)
    with Store.open(StoreSettings(path=str(tmp_path)), beside_daemon=True) as other:
        other.delete(Wanted(grep=("one",)))
    store.poll()
    assert store.history.utterances._words and "one" not in store.history.utterances._sorted
    assert [store.history.count(text) for text in ("one", "two")] == [(0, 0), (1, 0)]
    store.delete(Wanted(grep=("two",)))
    assert not store.history.utterances._words, "forgotten at once"
    assert [store.history.count(text) for text in ("two", "three")] == [(0, 0), (1, 0)]


def test_what_the_retention_deletes_counts_no_more(tmp_path: Path) -> None:
    with Store.open(StoreSettings(path=str(tmp_path), retention_days=1)) as store:
        stored = store.append(heard("one")).stored
        assert store.history.count("one") == (1, 0)
        store.move_cursor(1)
        store.expire(stored + timedelta(days=2))
        assert store.history.count("one") == (0, 0)


def test_a_file_that_is_replaced_is_read_again(store: Store, tmp_path: Path) -> None:
    store.move_cursor(store.append(heard("one")).seq)
    assert store.history.count("one") == (1, 0)
    (tmp_path / FILE_NAME).unlink()
    store.append(heard("two"))
    assert [store.history.count(text) for text in ("one", "two")] == [(0, 0), (1, 0)]
