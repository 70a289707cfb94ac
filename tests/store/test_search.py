"""Search: contains this text, in any script, whatever is typed."""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st
from rigs.publishing import transcript
from rigs.stores import connection_of

from appliance.config import StoreSettings
from appliance.store import tables
from appliance.store.store import Store
from appliance.store.tables import Wanted, contains, where

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def store() -> Iterator[Store]:
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(dir=shared) as folder,
        Store.open(StoreSettings(path=folder)) as opened,
    ):
        yield opened


def found(
    store: Store,
    *grep: str,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = -1,
) -> list[str]:
    chosen = store.query(Wanted(since, until, grep), limit)
    return [stored.transcript.text for stored in chosen]


def test_the_log_is_searched_by_time_and_plain_text(store: Store) -> None:
    for minute, text in enumerate(["Lights on", "100% sure", "100 percent", "lights off"]):
        store.append(transcript(text, end=NOON + timedelta(minutes=minute)))
    assert found(store, "lights") == ["Lights on", "lights off"]
    assert found(store, "0%") == ["100% sure"]
    assert found(store, since=NOON + timedelta(minutes=2)) == ["100 percent", "lights off"]
    assert found(store, until=NOON + timedelta(minutes=2)) == ["Lights on", "100% sure"]
    assert found(store, "100", since=NOON + timedelta(minutes=2)) == ["100 percent"]
    assert found(store, limit=2) == ["100 percent", "lights off"]
    assert found(store, "ights o", limit=1) == ["lights off"]
    assert len(found(store)) == 4


def test_parts_of_words_and_languages_without_spaces_are_found(store: Store) -> None:
    texts = ["台所の電気をつけてください", "Überraschung in Ångström", "Привет, КУХНЯ", "ok"]
    for text in texts:
        store.append(transcript(text))
    assert found(store, "電気") == found(store, "電気をつけて") == texts[:1]
    assert found(store, "ÜBERRASCH") == found(store, "STRÖM") == found(store, "å") == texts[1:2]
    assert found(store, "кухня") == found(store, "ПРИВ") == texts[2:3]
    assert found(store, "ström ") == found(store, "電気  ") == []
    assert found(store, "k") == ["ok"]


def test_all_of_several_texts_must_be_there(store: Store) -> None:
    for text in ("kitchen light on", "kitchen light off", "hall light on"):
        store.append(transcript(text))
    assert found(store, "kitchen", "on") == ["kitchen light on"]
    assert found(store, "light", "", "hall") == ["hall light on"]
    assert found(store, "kitchen", "hall") == []


@pytest.mark.parametrize(
    "typed",
    ['"', '""', "a\"b'c", "NEAR(a, b)", "text:x", "light* OR x", "^light", "-light", "%", "_",
     "'; DROP TABLE transcripts; --", "(((", "NOT", "\\", "\udcff bytes", "x" * 5000],
)  # fmt: skip
def test_whatever_is_typed_is_plain_text(store: Store, typed: str) -> None:
    store.append(transcript("turn on the light"))
    assert found(store, typed) == []
    store.append(transcript(f"he said {typed} twice"))
    assert len(found(store, typed)) == 1
    assert len(found(store)) == 2


def test_the_index_follows_what_is_deleted_and_changed(store: Store) -> None:
    first, second = (store.append(transcript(f"the {word} door")) for word in ("green", "blue"))
    connection = connection_of(store)
    connection.execute("UPDATE transcripts SET text = 'the red door' WHERE seq = ?", (first.seq,))
    assert (found(store, "green"), found(store, "the red")) == ([], ["the red door"])
    assert store.delete(Wanted(grep=("red",))).count == 1
    assert found(store, "the") == [second.transcript.text]
    connection.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")


LETTERS = st.sampled_from("aAbsS電気éÉ \"'*-:%_")


@hypothesis_settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(st.text(LETTERS, max_size=12), max_size=8),
    needles=st.lists(st.text(LETTERS, max_size=5), max_size=2),
)
def test_the_search_finds_what_a_plain_comparison_finds(
    texts: list[str], needles: list[str]
) -> None:
    texts = [*texts, f"x{' '.join(needles)}y", "".join(needles).upper()]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("contains", 2, contains)
        tables.create(connection)
        connection.executemany(tables.INSERT, (tables.to_row(transcript(text)) for text in texts))
        condition, values = where(Wanted(grep=needles))
        sql = f"SELECT text FROM transcripts WHERE {condition} ORDER BY seq"
        given_texts = [text for (text,) in connection.execute(sql, values)]
        assert given_texts == [
            text for text in texts if all(needle.lower() in text.lower() for needle in needles)
        ]


def test_whole_words_of_sentences_that_were_not_corrected_are_counted(store: Store) -> None:
    for text in ("Turn on the LIGHT", "lights", "the light\u00e9", "on  the light.", "\u706f"):
        store.append(transcript(text))

    def count(words: str) -> int:
        return store.count(Wanted(uncorrected=words))

    counts = [count(words) for words in ("light", "the light", "on the light", "t", "\u706f")]
    assert counts == [2, 2, 2, 0, 1]
    store.correct(store.query(Wanted(grep=("LIGHT",)))[0].transcript.id, "turn on the night")
    assert count("light") == 1


def test_the_index_leaves_few_transcripts_to_be_compared(store: Store) -> None:
    for number in range(50):
        store.append(transcript(f"the lamp of room {number} is on"))
    store.append(transcript("turn off the cellar fan"))
    compared: list[str] = []

    def counting(text: str, needle: str) -> bool:
        compared.append(text)
        return contains(text, needle)

    condition, values = where(Wanted(grep=("cellar",)))
    connection = connection_of(store)
    connection.create_function("contains", 2, counting, deterministic=True)
    rows = connection.execute(f"SELECT text FROM transcripts WHERE {condition}", values)
    assert [text for (text,) in rows] == ["turn off the cellar fan"]
    assert compared == ["turn off the cellar fan"]
