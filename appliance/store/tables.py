"""The tables: layouts and migrations, rows and search.

All functions work on an open connection, most of them within a transaction of the caller.

Deleted text is overwritten: secure_delete makes SQLite overwrite what it frees. The search's index
keeps deleted entries until its parts are merged, so it is merged in the same transaction (FTS5's
own secure-delete needs SQLite 3.42, and older ones cannot read its files).
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from appliance.errors import StoreError
from appliance.records import HEARD_HERE, Phrase, Transcript
from appliance.system import boot_id

SCHEMA = 8
"""Number of the layout, kept in the file's user_version; a higher one is refused."""

_TRANSCRIPTS = (
    """
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
    )""",
    'CREATE INDEX transcripts_by_end ON transcripts ("end")',
    "CREATE TABLE outbox (only INTEGER PRIMARY KEY CHECK (only = 1), cursor INTEGER NOT NULL)",
    "INSERT INTO outbox VALUES (1, 0)",
)
"""Times are UTC with microseconds, so that they sort as text; flags are a JSON list."""

_SEARCH = (
    # which transcripts hold which three letters: finds parts of words, and languages that write
    # no spaces. No positions (detail=none): a third of the size; the text itself has the last word
    """
    CREATE VIRTUAL TABLE search USING fts5(
        text, content = 'transcripts', content_rowid = 'seq', tokenize = 'trigram',
        detail = none, columnsize = 0
    )""",
    """
    CREATE TRIGGER search_added AFTER INSERT ON transcripts BEGIN
        INSERT INTO search (rowid, text) VALUES (new.seq, new.text);
    END""",
    """
    CREATE TRIGGER search_removed AFTER DELETE ON transcripts BEGIN
        INSERT INTO search (search, rowid, text) VALUES ('delete', old.seq, old.text);
    END""",
    """
    CREATE TRIGGER search_changed AFTER UPDATE OF seq, text ON transcripts BEGIN
        INSERT INTO search (search, rowid, text) VALUES ('delete', old.seq, old.text);
        INSERT INTO search (rowid, text) VALUES (new.seq, new.text);
    END""",
    "INSERT INTO search (search) VALUES ('rebuild')",
)

_CONFIDENCE = ("ALTER TABLE transcripts ADD COLUMN confidence REAL",)
"""NULL in older rows, where the probability of the tokens replaces it."""

_ORIGIN = (
    "ALTER TABLE transcripts ADD COLUMN continues TEXT",
    "ALTER TABLE transcripts ADD COLUMN source TEXT",
)
"""NULL in older rows: they continue nothing and came from the microphone."""

_PHRASE = ("ALTER TABLE transcripts ADD COLUMN phrase TEXT",)
"""The fields of Phrase as JSON; NULL without one."""

_LANGUAGE = ("ALTER TABLE transcripts ADD COLUMN language_probability REAL",)
"""NULL if the language was fixed."""

_CORRECTION = ("ALTER TABLE transcripts ADD COLUMN correction TEXT",)
"""NULL without one."""

_ROOMS = tuple(
    f"ALTER TABLE transcripts ADD COLUMN {column}"
    for column in ("level_dbfs REAL", "snr_db REAL", "heard_better_by TEXT", "heard_also TEXT")
)
"""NULL in older rows: not measured, and heard in this room alone; heard_also is a JSON list."""

_STEPS = (_TRANSCRIPTS, _SEARCH, _CONFIDENCE, _ORIGIN, _PHRASE, _LANGUAGE, _CORRECTION, _ROOMS)
MIGRATIONS = dict(enumerate(_STEPS, 1))
"""Statements that turn each layout into the next; a new file goes through all of them."""

TABLES = {
    layout: {"transcripts", "outbox", *(["search"] if layout > 1 else [])} for layout in MIGRATIONS
}
"""Tables that a file of each layout must have."""


@contextmanager
def indexed_at_once(connection: sqlite3.Connection) -> Iterator[None]:
    """Within the open transaction, index everything inserted in the block at its end.

    Row by row takes ten times as long, because FTS5 writes its index with every statement.
    """
    named = "SELECT sql FROM sqlite_schema WHERE name = 'search_added'"
    trigger = connection.execute(named).fetchone()[0]
    connection.execute("DROP TRIGGER search_added")
    yield
    connection.execute(trigger)
    connection.execute("INSERT INTO search (search) VALUES ('rebuild')")


def number(connection: sqlite3.Connection, sql: str, values: Sequence[object] = ()) -> int:
    """Return the whole number in a statement's first row."""
    return int(connection.execute(sql, values).fetchone()[0])


def version(connection: sqlite3.Connection) -> int:
    """Return the layout's number; 0 for a new file."""
    return number(connection, "PRAGMA user_version")


def refuse_newer(where: object, found: int) -> None:
    """Raise StoreError if `found` is a layout that this version does not know."""
    if found > SCHEMA:
        raise StoreError(
            f"{where}: expected schema {SCHEMA} or older, found {found}, which a newer Roomscribe "
            "wrote; install that version again, or move the file away to start a new one"
        )


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run the block as one transaction: all of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite rolls back by itself if the disk is full
            connection.execute("ROLLBACK")
        raise


def migrate(connection: sqlite3.Connection) -> int:
    """Update the file to the present layout, all steps or none; return the layout that it had."""
    if version(connection) >= SCHEMA:
        return SCHEMA
    with transaction(connection):
        found = version(connection)  # another process may have done it
        for step in range(found + 1, SCHEMA + 1):
            for statement in MIGRATIONS[step]:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {max(SCHEMA, found)}")
    return found


Row = tuple[Any, ...]
"""A row of `select` and for `insert_numbered`: the number, then the values of to_row."""
_RECORD = tuple(entry.name for entry in fields(Transcript))
_FLOATS = tuple(entry.name for entry in fields(Transcript) if entry.type == "float")
_TEXTS = tuple(entry.name for entry in fields(Transcript) if entry.type == "str")
_NAMES = (*_RECORD, "stored", "boot", "boot_s")
_MEASURED = ("language_probability", "level_dbfs", "snr_db")
"""Numbers that may be NULL."""
_ADDED = {
    "confidence": 3, "continues": 4, "source": 4, "phrase": 5, "language_probability": 6,
    "correction": 7, "level_dbfs": 8, "snr_db": 8, "heard_better_by": 8, "heard_also": 8,
}  # fmt: skip
"""The layout that added a column; the others are in the first."""
CURSOR = "SELECT cursor FROM outbox"
HIGHEST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence"
"""The highest number ever given, 0 at first."""
STORED = 1 + _NAMES.index("stored")
"""Index of the storing time in a Row."""
BEHIND = """AND seq > coalesce(
    (SELECT seq FROM transcripts WHERE id = ?),
    (SELECT max(seq) FROM transcripts WHERE id < ?), 0)"""
"""Condition for those after an id, given twice. Ids begin with the time when they were made."""


class DamagedRowError(ValueError):
    """A row that SQLite can read, with impossible values."""


@dataclass(frozen=True, slots=True)
class StoredTranscript:
    """A transcript that is safe on the disk."""

    seq: int
    """Counts up from 1; never used twice; deleted ones leave a gap."""
    transcript: Transcript
    stored: datetime
    """UTC, by the clock at that moment."""
    boot: str
    """Id of the machine's boot in which it was stored."""
    boot_s: float
    """Seconds from that boot until it was stored."""

    def age_s(self) -> float:
        """Return the seconds since it was stored, at least 0.

        Within one boot, a step of the clock does not matter: a Pi has no clock of its own, and its
        time may jump by weeks once it is online.
        """
        if self.boot and self.boot == boot_id():
            return max(0.0, boot_clock_s() - self.boot_s)
        return max(0.0, (datetime.now(UTC) - self.stored).total_seconds())


def boot_clock_s() -> float:
    """Return the seconds since the machine started, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def iso(moment: datetime) -> str:
    """Return `moment` (with a time zone) in UTC, as the tables store it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def select(connection: sqlite3.Connection) -> str:
    """Return the statement whose rows from_row reads; conditions may follow.

    In a file of an older layout (read-only, or on a full disk), missing columns are NULL.
    """
    there = _there(connection)
    listed = (f'"{name}"' if name in there else f'NULL AS "{name}"' for name in _NAMES)
    return f"SELECT seq, {', '.join(listed)} FROM transcripts"


def insert(connection: sqlite3.Connection) -> str:
    """Return the statement that stores the values of to_row, unless the id exists."""
    return f"INSERT INTO transcripts {_into(connection, 1)} ON CONFLICT (id) DO NOTHING"


def insert_numbered(connection: sqlite3.Connection) -> str:
    """Return the statement that stores a Row unchanged, unless its number or id exists."""
    return f"INSERT OR IGNORE INTO transcripts {_into(connection, 0)}"


def _into(connection: sqlite3.Connection, first: int) -> str:
    """Return the columns of a Row from `first` on and the placeholders of their values, without
    those that the layout does not have."""
    there = _there(connection)
    columns = list(enumerate(("seq", *_NAMES)[first:], 1))
    kept = [(at, name) for at, name in columns if name in there]
    names = ", ".join(f'"{name}"' for _, name in kept)
    return f"({names}) VALUES ({', '.join(f'?{at}' for at, _ in kept)})"


def _there(connection: sqlite3.Connection) -> set[str]:
    """Return the columns of the file's layout; of the present one if the file is damaged."""
    try:
        found = version(connection)
    except sqlite3.DatabaseError:
        found = SCHEMA
    return {"seq", *(name for name in _NAMES if _ADDED.get(name, 1) <= found)}


def to_row(transcript: Transcript) -> tuple[Any, ...]:
    """Return the values for `insert`, with the present time."""
    values = {name: getattr(transcript, name) for name in _RECORD}
    values["start"] = iso(transcript.start)
    values["end"] = iso(transcript.end)
    values["flags"] = json.dumps(transcript.flags)
    values["heard_also"] = json.dumps(transcript.heard_also)
    values["phrase"] = json.dumps(asdict(transcript.phrase)) if transcript.phrase else None
    for name in _FLOATS:  # SQLite stores NaN as NULL, which the tables refuse
        values[name] = math.inf if math.isnan(values[name]) else float(values[name])
    text = transcript.text.replace(
        "\0", "\N{REPLACEMENT CHARACTER}"
    )  # would end the text for the index
    values["text"] = text.encode("utf-8", "replace").decode("utf-8")
    return (*values.values(), iso(datetime.now(UTC)), boot_id(), boot_clock_s())


def from_row(row: Row) -> StoredTranscript:
    """Return the transcript in a row of `select`. Raises DamagedRowError."""
    seq, *values = row
    *record, stored, boot, boot_s = values
    named = dict(zip(_RECORD, record, strict=True))
    try:
        named["start"] = datetime.fromisoformat(named["start"])
        named["end"] = datetime.fromisoformat(named["end"])
        named["flags"] = tuple(json.loads(named["flags"]))
        if named["phrase"] is not None:
            named["phrase"] = Phrase(**json.loads(named["phrase"]))
        moment = datetime.fromisoformat(stored)
        if named["confidence"] is None:
            named["confidence"] = math.exp(min(0.0, named["avg_logprob"]))
        named["continues"] = "" if named["continues"] is None else named["continues"]
        named["source"] = HEARD_HERE if named["source"] is None else named["source"]
        named["heard_better_by"] = named["heard_better_by"] or ""
        named["heard_also"] = tuple(json.loads(named["heard_also"] or "[]"))
        for name in _MEASURED:
            named[name] = None if named[name] is None else float(named[name])
        for name in _FLOATS:
            named[name] = float(named[name])
        if not isinstance(named["correction"], str | None):
            raise TypeError
        if not all(isinstance(named[name], str) for name in _TEXTS):
            raise TypeError
    except (TypeError, ValueError) as error:
        raise DamagedRowError(f"transcript {seq} has a field that cannot be read") from error
    return StoredTranscript(seq, Transcript(**named), moment, boot, boot_s)


GRAM = 3
"""Letters in an entry of the index; a shorter text is searched in every transcript."""
_MOST_GRAMS = 32
"""Entries that narrow a search down far enough; the text itself decides."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A selection of transcripts; by default all of them."""

    since: datetime | None = None
    """Ended then or later."""
    until: datetime | None = None
    """Ended before."""
    grep: Sequence[str] = ()
    """Contains all of these, as plain text, whatever their case."""
    ids: Sequence[str] | None = None
    """Has one of these ids; None: any id."""
    uncorrected: str = ""
    """Contains these words as whole words, and was not corrected."""

    @property
    def everything(self) -> bool:
        """True if nothing is left out."""
        chosen = self.since or self.until or any(self.grep) or self.uncorrected
        return self.ids is None and not chosen


def where(wanted: Wanted, indexed: bool) -> tuple[str, tuple[object, ...]]:
    """Return the SQL condition and its values; `indexed`: the file has the search's index."""
    conditions, values = ["1"], list[object]()
    if wanted.since:
        conditions.append('"end" >= ?')
        values.append(iso(wanted.since))
    if wanted.until:
        conditions.append('"end" < ?')
        values.append(iso(wanted.until))
    if wanted.ids is not None:
        conditions.append(f"id IN ({','.join('?' * len(wanted.ids))})")
        values.extend(wanted.ids)
    # without what UTF-8 cannot encode: bytes of another encoding on the command line
    needles = [needle.encode("utf-8", "replace").decode() for needle in wanted.grep if needle]
    grams = _grams([*needles, *wanted.uncorrected.split()]) if indexed else []
    if grams:
        conditions.append("seq IN (SELECT rowid FROM search WHERE search MATCH ?)")
        values.append(" AND ".join(grams))
    for needle in needles:
        conditions.append("contains(text, ?)")
        values.append(needle)
    if wanted.uncorrected:
        conditions.append("correction IS NULL AND has_words(text, ?)")
        values.append(wanted.uncorrected)
    return " AND ".join(conditions), tuple(values)


def contains(text: str, needle: str) -> bool:
    """Return True if `needle` is part of `text`, in any script and case."""
    return needle.casefold() in text.casefold()


def has_words(text: str, words: str) -> bool:
    """Return True if `text` has these words in a row, as whole words and in any case: then
    `vocabulary.replace` would replace them."""
    return _in_a_row(words).search(text) is not None


@lru_cache(maxsize=16)
def _in_a_row(words: str) -> re.Pattern[str]:
    wanted = r"\s+".join(map(re.escape, words.split()))
    return re.compile(rf"(?<!\w){wanted}(?!\w)", re.IGNORECASE)


def _grams(needles: Sequence[str]) -> list[str]:
    """Return entries of the index that a transcript with all `needles` has, quoted for FTS5.

    Entries with a letter whose other case is longer (the German sharp s, ligatures) are left out:
    the index distinguishes them, `contains` does not.
    """
    found = dict[str, None]()
    for needle in needles:
        for at in range(len(needle) - GRAM + 1):
            gram = needle[at : at + GRAM]
            if len(gram.casefold()) == GRAM and "\0" not in gram:
                found[gram] = None
    return ['"' + gram.replace('"', '""') + '"' for gram in list(found)[:_MOST_GRAMS]]


def correct(connection: sqlite3.Connection, id: str, text: str | None) -> None:
    """Store what was really said in a transcript; None removes it."""
    connection.execute("UPDATE transcripts SET correction = ? WHERE id = ?", (text, id))


def forget(connection: sqlite3.Connection, condition: str, values: tuple[object, ...]) -> int:
    """Delete the transcripts that match a condition; return how many."""
    count = connection.execute(f"DELETE FROM transcripts WHERE {condition}", values).rowcount
    if count and version(connection) > 1:
        connection.execute("INSERT INTO search (search) VALUES ('optimize')")
    return count
