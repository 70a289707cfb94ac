"""Rows: what is stored comes back, and damage is found; another layout is refused."""

import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rigs.publishing import transcript

from appliance.config import StoreSettings
from appliance.errors import StoreError
from appliance.records import Phrase, Word
from appliance.store import tables
from appliance.store.database import AccessMode, Database
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store
from appliance.store.tables import SCHEMA


def test_a_file_of_another_version_is_refused_and_left_alone(settings: StoreSettings) -> None:
    with Store.open(settings) as store:
        store.append(transcript("kept"))
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    before = store.path.read_bytes()
    for options in ({}, {"read_only": True}, {"beside_daemon": True}):
        with pytest.raises(StoreError, match=f"schema {SCHEMA}, found {SCHEMA + 1}"):
            Store.open(settings, **options)
    assert store.path.read_bytes() == before
    assert [path.name for path in store.path.parent.iterdir()] == [FILE_NAME]


def test_the_daemon_brings_the_log_of_an_older_version_up_to_date(settings: StoreSettings) -> None:
    said = [transcript("first", id="01A"), transcript("second", id="01B")]
    with Store.open(settings) as store:
        numbers = [store.append(one).seq for one in said]
    steps = (
        *tables.STEPS,
        ("ALTER TABLE transcripts ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'",),
        ("UPDATE transcripts SET mood = 'glad' WHERE id = '01B'", "CREATE TABLE more (a)"),
    )
    for access in (AccessMode.READER, AccessMode.GUEST):
        with pytest.raises(StoreError, match=r"of an older version; start the daemon"):
            Database(store.path, access, steps=steps)
    for _ in range(2):  # the second time there is nothing left to do
        database = Database(store.path, AccessMode.OWNER, steps=steps)
        rows = database.read("read", lambda found: found.execute(tables.SELECT).fetchall())
        moods = database.read(
            "read", lambda found: [*found.execute("SELECT mood FROM transcripts")]
        )
        assert database.read("read", tables.version) == SCHEMA + 2
        database.close()
        assert [tables.from_row(row).transcript for row in rows] == said
        assert [row[0] for row in rows] == numbers and moods == [("calm",), ("glad",)]


def test_a_step_that_fails_leaves_the_log_as_it_was(settings: StoreSettings) -> None:
    said = transcript("kept", id="01A")
    with Store.open(settings) as store:
        store.append(said)
    steps = (*tables.STEPS, ("DELETE FROM transcripts", "ALTER TABLE missing ADD COLUMN a"))
    with pytest.raises(StoreError, match="no such table: missing"):
        Database(store.path, AccessMode.OWNER, steps=steps)
    with Store.open(settings) as store:
        assert [one.transcript for one in store.read_after(0)] == [said]


@pytest.mark.parametrize(
    ("column", "broken"),
    [
        *(("phrase", value) for value in ("[]", "{}", "5", "x")),
        *(("heard_also", value) for value in ("[", "5")),
        ("language_probability", "x"),
        ("correction", b"\0"),
    ],
)
def test_every_field_is_stored_and_its_damage_is_found(
    settings: StoreSettings, column: str, broken: str | bytes
) -> None:
    full: dict[str, Any] = {
        "phrase": Phrase("dim the hall to 5 percent", "light", {"area": "hall", "level": 5}, 0.75),
        "words": (Word("new", 0.2, 0.75),), "heard_better_by": "hall", "heard_also": ("office",),
        "level_dbfs": -30.5, "snr_db": 20.1, "language_probability": 0.75, "windows": None,
        "flags": ("repetition", "clipped"),
    }  # fmt: skip
    said = [transcript("old", id="01A"), transcript("Grüße 🎤", id="01B", **full)]
    with Store.open(settings) as store:
        assert [store.append(one).seq for one in said] == [1, 2]
        assert [one.transcript for one in store.read_after(0)] == said
    with closing(sqlite3.connect(Path(settings.path) / FILE_NAME)) as connection:
        connection.execute(f"UPDATE transcripts SET {column} = ? WHERE seq = 2", (broken,))
        row = connection.execute(f"{tables.SELECT} WHERE seq = 2").fetchone()
        with pytest.raises(tables.DamagedError):
            tables.from_row(row)


def test_a_correction_is_stored_beside_the_text(settings: StoreSettings) -> None:
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


def test_a_field_that_no_table_can_hold_is_stored_as_near_as_may_be(
    settings: StoreSettings,
) -> None:
    odd = transcript("broken \udcff letter", avg_logprob=float("nan"))
    with Store.open(settings) as store:
        stored = store.append(odd).transcript
    assert stored == replace(odd, text="broken ? letter", avg_logprob=math.inf)
