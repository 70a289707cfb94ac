"""The layout's steps: a file of an older version goes on whole, or is as it was."""

from __future__ import annotations

import math
import os
import random
import sqlite3
import string
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from rigs.checkout import ROOT
from rigs.disks import mounted
from rigs.publishing import transcript

from appliance.config import StoreSettings
from appliance.errors import StoreError
from appliance.records import Phrase, Transcript
from appliance.store import tables
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store
from appliance.store.tables import SCHEMA, Wanted

SCHEMA_1 = """
CREATE TABLE transcripts (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    utterance_id TEXT NOT NULL,
    "window" INTEGER NOT NULL,
    windows INTEGER,
    start TEXT NOT NULL,
    "end" TEXT NOT NULL,
    text TEXT NOT NULL,
    language TEXT NOT NULL,
    avg_logprob REAL NOT NULL,
    no_speech_prob REAL NOT NULL,
    compression_ratio REAL NOT NULL,
    duration_s REAL NOT NULL,
    model TEXT NOT NULL,
    encoder TEXT NOT NULL,
    encode_ms REAL NOT NULL,
    decode_ms REAL NOT NULL,
    queue_ms REAL NOT NULL,
    latency_ms REAL NOT NULL,
    flags TEXT NOT NULL,
    stored TEXT NOT NULL,
    boot TEXT NOT NULL,
    boot_s REAL NOT NULL
);
CREATE INDEX transcripts_by_end ON transcripts ("end");
CREATE TABLE outbox (only INTEGER PRIMARY KEY CHECK (only = 1), cursor INTEGER NOT NULL);
INSERT INTO outbox VALUES (1, 0);
PRAGMA user_version = 1;
"""
"""What the first version wrote."""


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    return StoreSettings(path=str(tmp_path))


@pytest.fixture
def heard() -> list[Transcript]:
    return [transcript(f"sentence number {number}") for number in range(30)]


@pytest.fixture
def old(settings: StoreSettings, heard: list[Transcript]) -> Iterator[Path]:
    """A file of layout 1 with 30 transcripts, of which the broker has 12, the third deleted."""
    path = Path(settings.path) / FILE_NAME
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA secure_delete = ON")
        connection.executescript(SCHEMA_1)
        connection.executemany(tables.insert(connection), map(tables.to_row, heard))
        connection.execute("DELETE FROM transcripts WHERE seq = 3")
        connection.execute("UPDATE outbox SET cursor = 12")
        connection.commit()
    yield path


def layout(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_a_file_of_the_first_version_goes_on_with_all_that_it_holds(
    settings: StoreSettings, old: Path, heard: list[Transcript]
) -> None:
    with Store.open(settings) as store:
        assert [(one.seq, one.transcript) for one in store.read_after(0)] == [
            (number, one) for number, one in enumerate(heard, 1) if number != 3
        ]
        assert (store.cursor(), store.depth()) == (12, 18)
        assert [one.seq for one in store.query(grep="NUMBER 21")] == [22]
        assert store.append(transcript("a new one")).seq == 31
        assert [one.seq for one in store.query(grep="new one")] == [31]
    assert layout(old) == SCHEMA == 8


def test_killed_in_the_middle_of_the_step_the_file_is_as_it_was(
    settings: StoreSettings, old: Path, heard: list[Transcript]
) -> None:
    program = (
        "import os, signal, sys\n"
        "from appliance.store import tables as schema\n"
        "from appliance.store.store import Store\n"
        "from appliance.config import StoreSettings\n"
        "class Steps(tuple):\n"
        "    def __iter__(self):\n"
        "        yield from tuple.__iter__(self)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "schema.MIGRATIONS[2] = Steps(schema.MIGRATIONS[2])\n"
        "Store.open(StoreSettings(path=sys.argv[1]))\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, settings.path], cwd=ROOT, check=False)
    assert killed.returncode == -9
    assert layout(old) == 1
    with Store.open(settings, read_only=True) as store:
        assert len(store.read_after(0)) == 29
    with Store.open(settings) as store:
        assert [one.transcript.text for one in store.query(grep="number 29")] == [heard[29].text]


def test_a_failing_step_leaves_the_file_as_it_was_and_can_be_tried_again(
    settings: StoreSettings, old: Path
) -> None:
    obstacle = "TRIGGER search_changed"
    with closing(sqlite3.connect(old, isolation_level=None)) as connection:
        connection.execute(f"CREATE {obstacle} AFTER DELETE ON outbox BEGIN SELECT 1; END")
    with pytest.raises(StoreError, match="search_changed already exists"):
        Store.open(settings)
    assert layout(old) == 1
    assert list(old.parent.glob("*.damaged-*")) == []
    with closing(sqlite3.connect(old, isolation_level=None)) as connection:
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        assert not found & {"search", "search_added"}, "the steps before it are taken back"
        connection.execute(f"DROP {obstacle}")
    with Store.open(settings) as store:
        assert len(store.read_after(0)) == 29


def test_on_a_full_disk_the_daemon_starts_with_the_older_layout(tmp_path: Path) -> None:
    dice = random.Random(0)
    with mounted(tmp_path / "disk", "1m") as disk:
        path = disk / FILE_NAME
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(SCHEMA_1)
            for _ in range(40):
                text = "lamp " + "".join(dice.choices(string.ascii_lowercase, k=3000))
                connection.execute(tables.insert(connection), tables.to_row(transcript(text)))
            connection.commit()
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)) == 4096:
                pass
        os.truncate(filler, filler.stat().st_size - 96 * 1024)  # room for the -shm file
        with Store.open(StoreSettings(path=str(disk))) as store:
            assert layout(path) == 1
            assert len(store.query(grep="LAMP")) == 40
        filler.unlink()
        with Store.open(StoreSettings(path=str(disk))) as store:
            assert layout(path) == SCHEMA
            assert len(store.query(grep="LAMP")) == 40
            assert store.append(transcript("light")).seq == 41


def test_a_reader_beside_an_older_daemon_searches_without_the_index(
    settings: StoreSettings, old: Path
) -> None:
    with Store.open(settings, read_only=True) as store:
        assert [one.seq for one in store.query(grep="NUMBER 2", limit=3)] == [28, 29, 30]
        assert store.count(Wanted(grep=("number", "28"))) == 1
    assert layout(old) == 1


def test_deleting_beside_an_older_daemon_leaves_its_layout(
    settings: StoreSettings, old: Path
) -> None:
    with Store.open(settings, beside_daemon=True) as store:
        assert store.delete(Wanted(grep=("number 7",))).count == 1
    assert layout(old) == 1
    assert b"sentence number 7" not in old.read_bytes()


def test_a_file_of_a_newer_version_is_refused_and_left_alone(settings: StoreSettings) -> None:
    with Store.open(settings) as store:
        store.append(transcript("kept"))
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    before = store.path.read_bytes()
    for options in ({}, {"read_only": True}, {"beside_daemon": True}):
        with pytest.raises(StoreError, match=f"schema {SCHEMA} or older, found {SCHEMA + 1}"):
            Store.open(settings, **options)
    assert store.path.read_bytes() == before
    assert [path.name for path in store.path.parent.iterdir()] == [FILE_NAME]


def test_confidence_is_stored_beside_what_an_older_version_stored_without_it(
    settings: StoreSettings,
) -> None:
    """Read, and written on a full disk, in the older layout; afterwards in the new one."""
    path = Path(settings.path) / FILE_NAME
    with closing(sqlite3.connect(path)) as connection:
        for step in (1, 2):
            for statement in tables.MIGRATIONS[step]:
                connection.execute(statement)
        connection.execute("PRAGMA user_version = 2")
        old = tables.to_row(transcript("old", confidence=0.3))
        connection.execute(tables.insert(connection), old)
        connection.commit()
    with Store.open(settings, read_only=True) as store:
        assert store.read_after(0)[0].transcript.confidence == pytest.approx(math.exp(-0.21))
    with Store.open(settings) as store:
        assert store.append(transcript("new", confidence=0.3)).transcript.confidence == 0.3
        found = [one.transcript.confidence for one in store.read_after(0)]
        assert found == pytest.approx([math.exp(-0.21), 0.3])


def test_an_expected_sentence_is_stored_and_its_damage_is_found(settings: StoreSettings) -> None:
    phrase = Phrase("dim the hall to 5 percent", "light", {"area": "hall", "level": 5}, 0.75)
    said = [transcript("old", id="01A"), transcript("new", id="01B", phrase=phrase)]
    path = Path(settings.path) / FILE_NAME
    with Store.open(settings) as store:
        assert [store.append(one).transcript for one in said] == said
        assert [one.transcript.phrase for one in store.read_after(0)] == [None, phrase]
    for broken in ("[]", "{}", "5", "x"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE transcripts SET phrase = ? WHERE seq = 2", (broken,))
            row = connection.execute(f"{tables.select(connection)} WHERE seq = 2").fetchone()
            with pytest.raises(tables.DamagedRowError):
                tables.from_row(row)


def test_how_sure_the_language_is_is_stored_and_its_damage_is_found(
    settings: StoreSettings,
) -> None:
    said = [transcript("old", id="01A"), transcript("new", id="01B", language_probability=0.75)]
    with Store.open(settings) as store:
        assert [store.append(one).transcript for one in said] == said
        assert [one.transcript.language_probability for one in store.read_after(0)] == [None, 0.75]
    with closing(sqlite3.connect(Path(settings.path) / FILE_NAME)) as connection:
        connection.execute("UPDATE transcripts SET language_probability = 'x' WHERE seq = 2")
        row = connection.execute(f"{tables.select(connection)} WHERE seq = 2").fetchone()
        with pytest.raises(tables.DamagedRowError):
            tables.from_row(row)


def test_a_correction_is_stored_beside_the_text_and_its_damage_is_found(
    settings: StoreSettings,
) -> None:
    said = transcript("turn on the light", id="01A")
    with Store.open(settings) as store:
        store.append(said)
        found = store.correct("01A", "turn off the light")
        assert found
        assert found.transcript == replace(said, correction="turn off the light")
        assert store.read_after(0) == [found]
        assert store.correct("01B", "x") is None
        cleared = store.correct("01A", None)
        assert cleared
        assert cleared.transcript == said
    with closing(sqlite3.connect(Path(settings.path) / FILE_NAME)) as connection:
        connection.execute("UPDATE transcripts SET correction = x'00'")
        row = connection.execute(tables.select(connection)).fetchone()
        with pytest.raises(tables.DamagedRowError):
            tables.from_row(row)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_where_a_transcript_comes_from_is_stored_beside_what_older_versions_stored_without_it(
    settings: StoreSettings, steps: int
) -> None:
    path = Path(settings.path) / FILE_NAME
    with closing(sqlite3.connect(path)) as connection:
        for step in range(1, steps + 1):
            for statement in tables.MIGRATIONS[step]:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {steps}")
        odd = transcript("old", continues="01J1", source="wyoming")
        connection.execute(tables.insert(connection), tables.to_row(odd))
        connection.commit()
        older = connection.execute(tables.select(connection)).fetchall()
    new = transcript("new", continues="01J1", source="wyoming")
    with Store.open(settings, read_only=True) as store:
        assert [
            (one.transcript.continues, one.transcript.source) for one in store.read_after(0)
        ] == [("", "microphone")]
    with Store.open(settings) as store:
        assert store.append(new).transcript == new
    with closing(sqlite3.connect(":memory:")) as connection:  # as a repair and a stand-in do
        connection.create_function("contains", 2, tables.contains)
        tables.migrate(connection)
        connection.executemany(tables.insert_numbered(connection), older)
        row = connection.execute(tables.select(connection)).fetchone()
        assert tables.from_row(row).transcript.source == "microphone"


def test_a_field_that_no_table_can_hold_is_stored_as_near_as_may_be(
    settings: StoreSettings,
) -> None:
    odd = transcript("broken \udcff letter", avg_logprob=float("nan"))
    with Store.open(settings) as store:
        stored = store.append(odd).transcript
    assert stored == replace(odd, text="broken ? letter", avg_logprob=math.inf)


def test_level_and_rooms_are_stored_and_an_older_file_knows_none(settings: StoreSettings) -> None:
    rooms = {"heard_better_by": "hall", "heard_also": ("office",)}
    heard = [
        transcript("old", id="01A"),
        transcript("new", id="01B", level_dbfs=-30.5, snr_db=20.1, **rooms),
    ]
    path = Path(settings.path) / FILE_NAME
    with Store.open(settings) as store:
        assert [store.append(one).transcript for one in heard] == heard
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE transcripts SET heard_also = NULL, heard_better_by = NULL")
        connection.commit()
    with Store.open(settings) as store:
        assert [one.transcript.heard_also for one in store.read_after(0)] == [(), ()]
    for broken in ("[", "5"):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE transcripts SET heard_also = ? WHERE seq = 2", (broken,))
            row = connection.execute(f"{tables.select(connection)} WHERE seq = 2").fetchone()
            with pytest.raises(tables.DamagedRowError):
                tables.from_row(row)
