"""The tables: layout, rows and search.

All functions work on an open connection, most of them within a transaction of the caller.

Deleted text is overwritten: secure_delete makes SQLite overwrite what it frees. The search's index
keeps deleted entries until its parts are merged, so it is merged in the same transaction (FTS5's
own secure-delete needs SQLite 3.42, and older ones cannot read its files).
"""

import json
import math
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from typing import Any

from appliance.errors import StoreError
from appliance.records import Phrase, Transcript, Word
from appliance.system import boot_clock_s, boot_id

Steps = tuple[tuple[str, ...], ...]
FIRST_SCHEMA = 2
"""The oldest layout that can be read."""
STEPS: Steps = ()
"""The statements that turn each layout from the oldest on into the next; none is ever removed."""
SCHEMA = FIRST_SCHEMA + len(STEPS)
"""Number of the layout, kept in the file's user_version. A change of _LAYOUT adds a step."""

_LAYOUT = (
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
        language_probability REAL,
        avg_logprob REAL NOT NULL,
        no_speech_prob REAL NOT NULL,
        compression_ratio REAL NOT NULL,
        confidence REAL NOT NULL,
        duration_s REAL NOT NULL,
        level_dbfs REAL,
        snr_db REAL,
        model TEXT NOT NULL,
        encoder TEXT NOT NULL,
        encode_ms REAL NOT NULL,
        decode_ms REAL NOT NULL,
        queue_ms REAL NOT NULL,
        latency_ms REAL NOT NULL,
        flags TEXT NOT NULL,
        phrase TEXT,
        correction TEXT,
        continues TEXT NOT NULL,
        source TEXT NOT NULL,
        heard_better_by TEXT NOT NULL,
        heard_also TEXT NOT NULL,
        words TEXT NOT NULL,
        stored TEXT NOT NULL,
        boot TEXT NOT NULL,
        boot_s REAL NOT NULL
    )""",
    'CREATE INDEX transcripts_by_end ON transcripts ("end")',
    "CREATE TABLE outbox (only INTEGER PRIMARY KEY CHECK (only = 1), cursor INTEGER NOT NULL)",
    "INSERT INTO outbox VALUES (1, 0)",
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
    f"PRAGMA user_version = {SCHEMA}",
)
"""Times are UTC with microseconds, so that they sort as text; flags, heard_also and words are JSON
lists, phrase is an object. Unknown measurements are NULL."""


def number(connection: sqlite3.Connection, sql: str, values: Sequence[object] = ()) -> int:
    """Return the whole number in a statement's first row."""
    return int(connection.execute(sql, values).fetchone()[0])


def version(connection: sqlite3.Connection) -> int:
    """Return the layout's number; 0 for a new file."""
    return number(connection, "PRAGMA user_version")


def refuse_other(where: object, found: int, steps: Steps, *, migrates: bool) -> None:
    """Raise StoreError if `found` is a layout that cannot be used; 0, a file without one, can.

    An older one can if the caller `migrates` it, as the daemon does.
    """
    newest = FIRST_SCHEMA + len(steps)
    if found in (0, newest):
        return
    if not FIRST_SCHEMA <= found < newest:
        raise StoreError(
            f"{where}: expected schema {newest}, found {found}, which another version of "
            "Roomscribe wrote; install that version again, or move the file away to start a new one"
        )
    if not migrates:
        raise StoreError(
            f"{where}: expected schema {newest}, found {found} of an older version; start the "
            "daemon, which brings it up to date: `sudo systemctl restart roomscribe`"
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


def create(connection: sqlite3.Connection) -> None:
    """Create the tables in a new file, all or none."""
    if version(connection):
        return
    with transaction(connection):
        if not version(connection):  # another process may have done it
            for statement in _LAYOUT:
                connection.execute(statement)


def migrate(connection: sqlite3.Connection, steps: Steps) -> None:
    """Bring the tables of an older version up to date. Each step is taken wholly or not at all."""
    for number, statements in enumerate(steps, FIRST_SCHEMA + 1):
        with transaction(connection):
            if version(connection) < number:
                for statement in statements:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")


Row = tuple[Any, ...]
"""A row of SELECT and for INSERT_NUMBERED: the number, then the values of to_row."""
_RECORD = tuple(entry.name for entry in fields(Transcript))
_FLOATS = tuple(entry.name for entry in fields(Transcript) if entry.type == "float")
_TEXTS = tuple(entry.name for entry in fields(Transcript) if entry.type == "str")
_NAMES = (*_RECORD, "stored", "boot", "boot_s")
_QUOTED = [f'"{name}"' for name in _NAMES]
SELECT = f"SELECT seq, {', '.join(_QUOTED)} FROM transcripts"
"""The statement whose rows from_row reads; conditions may follow."""
INSERT = (
    f"INSERT INTO transcripts ({', '.join(_QUOTED)}) VALUES ({', '.join('?' * len(_NAMES))}) "
    "ON CONFLICT (id) DO NOTHING"
)
"""Stores the values of to_row, unless the id exists."""
INSERT_NUMBERED = (
    f"INSERT OR IGNORE INTO transcripts (seq, {', '.join(_QUOTED)}) "
    f"VALUES (?, {', '.join('?' * len(_NAMES))})"
)
"""Stores a Row unchanged, unless its number or id exists."""
_MEASURED = ("language_probability", "level_dbfs", "snr_db")
"""Numbers that may be NULL."""
CURSOR = "SELECT cursor FROM outbox"
HIGHEST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence"
"""The highest number ever given, 0 at first."""


class DamagedError(ValueError):
    """What SQLite can read, with impossible content."""


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


def iso(moment: datetime) -> str:
    """Return `moment` (with a time zone) in UTC, as the tables store it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def to_row(transcript: Transcript) -> tuple[Any, ...]:
    """Return the values for INSERT, with the present time."""
    values = {name: getattr(transcript, name) for name in _RECORD}
    values |= {name: iso(values[name]) for name in ("start", "end")}
    values |= {name: json.dumps(values[name]) for name in ("flags", "heard_also")}
    values["words"] = json.dumps([astuple(word) for word in transcript.words])
    values["phrase"] = json.dumps(asdict(transcript.phrase)) if transcript.phrase else None
    for name in _FLOATS:  # SQLite stores NaN as NULL, which the tables refuse
        values[name] = math.inf if math.isnan(values[name]) else float(values[name])
    text = transcript.text.replace("\0", "\ufffd")  # it would end the text for the index
    values["text"] = text.encode("utf-8", "replace").decode("utf-8")
    return (*values.values(), iso(datetime.now(UTC)), boot_id(), boot_clock_s())


def from_row(row: Row) -> StoredTranscript:
    """Return the transcript in a row of SELECT. Raises DamagedError."""
    seq, *values = row
    *record, stored, boot, boot_s = values
    named = dict(zip(_RECORD, record, strict=True))
    try:
        moment = datetime.fromisoformat(stored)
        for name in ("start", "end"):
            named[name] = datetime.fromisoformat(named[name])
        for name in ("flags", "heard_also"):
            named[name] = tuple(json.loads(named[name]))
        if named["phrase"] is not None:
            named["phrase"] = Phrase(**json.loads(named["phrase"]))
        named["words"] = tuple(Word(*word) for word in json.loads(named["words"]))
        for name in _MEASURED:
            named[name] = None if named[name] is None else float(named[name])
        for name in _FLOATS:
            named[name] = float(named[name])
        texts = [named[name] for name in _TEXTS]
        if not all(isinstance(text, str) for text in [*texts, named["correction"] or ""]):
            raise TypeError
    except (TypeError, ValueError) as error:
        raise DamagedError(f"transcript {seq} has a field that cannot be read") from error
    return StoredTranscript(seq, Transcript(**named), moment, boot, boot_s)


GRAM = 3
"""Letters in an entry of the index; a shorter text is searched in every transcript."""
_PAGES = 500
"""Pages of the index that are merged at a time: some 2 MB."""
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


def where(wanted: Wanted) -> tuple[str, tuple[object, ...]]:
    """Return the SQL condition and its values."""
    found: list[tuple[str, Sequence[object]]] = [("1", ())]
    if wanted.since:
        found.append(('"end" >= ?', (iso(wanted.since),)))
    if wanted.until:
        found.append(('"end" < ?', (iso(wanted.until),)))
    if wanted.ids is not None:
        found.append((f"id IN ({','.join('?' * len(wanted.ids))})", wanted.ids))
    # without what UTF-8 cannot encode: bytes of another encoding on the command line
    needles = [needle.encode("utf-8", "replace").decode() for needle in wanted.grep if needle]
    if grams := _grams([*needles, *wanted.uncorrected.split()]):
        matches = "seq IN (SELECT rowid FROM search WHERE search MATCH ?)"
        found.append((matches, (" AND ".join(grams),)))
    found += [("contains(text, ?)", (needle,)) for needle in needles]
    if wanted.uncorrected:
        found.append(("correction IS NULL AND has_words(text, ?)", (wanted.uncorrected,)))
    conditions, values = zip(*found, strict=True)
    return " AND ".join(conditions), tuple(chain.from_iterable(values))


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


def find(connection: sqlite3.Connection, id: str) -> StoredTranscript | None:
    """Return a transcript; None if there is none with this id. Raises DamagedError."""
    row = connection.execute(f"{SELECT} WHERE id = ?", (id,)).fetchone()
    return from_row(row) if row else None


def correct(connection: sqlite3.Connection, id: str, text: str | None) -> None:
    """Store what was really said in a transcript; None removes it."""
    connection.execute("UPDATE transcripts SET correction = ? WHERE id = ?", (text, id))


def merge_search(connection: sqlite3.Connection, *, begin: bool) -> bool:
    """Merge the next part of the search's index; return False once all is merged, as `forget` does
    it at once. The first call has `begin` (FTS5, "The 'merge' Command")."""
    before = connection.total_changes
    connection.execute(
        "INSERT INTO search (search, rank) VALUES ('merge', ?)", (-_PAGES if begin else _PAGES,)
    )
    return connection.total_changes - before >= 2


def forget(connection: sqlite3.Connection, condition: str, values: tuple[object, ...]) -> int:
    """Delete the transcripts that match a condition; return how many."""
    count = connection.execute(f"DELETE FROM transcripts WHERE {condition}", values).rowcount
    if count:
        connection.execute("INSERT INTO search (search) VALUES ('optimize')")
    return count
