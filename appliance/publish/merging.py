"""A log that stands in for another: what it takes over from it, and how it is put back into it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from appliance.publish import connecting, rows, salvage, schema, store_files
from appliance.publish.rows import Row
from appliance.publish.salvage import Known
from appliance.publish.store_files import beside

TAKEN = 1000
"""So many of the newest transcripts are taken over; older ones that no broker has wait."""
_COPIED = 32 << 20
"""Bytes; a larger file is read in its place, without what its -wal holds."""
_PAGE = 4096
_BUSY_S = 1.0
_RANGE = "CREATE TABLE taken (low INTEGER NOT NULL, high INTEGER NOT NULL)"


@dataclass(slots=True)
class Found:
    """What can be read of a log whose disk refuses to write."""

    highest: int
    """No number above it was ever given."""
    cursor: int = 0
    newest: list[Row] = field(default_factory=list)
    """In order."""
    last: int = 0
    """The highest number that was seen, 0 for none."""


def look(path: Path, scratch: Path) -> Found:
    """What is to be known of the log `path`; `scratch` is the name of a copy, in memory.

    SQLite maps a file of its own beside the log, which ends the process where the disk fails: a
    copy is opened instead. Where nothing can be read the numbers go on from the seconds since
    1970, which are above all others, and so does the cursor: what the log holds that the broker
    does not have is told when the two are merged. Raises PublishError for a log of a newer version.
    """
    try:
        size, more = path.stat().st_size, 0
        with suppress(FileNotFoundError):
            more = beside(path, "-wal").stat().st_size
        if size + more > _COPIED:
            with closing(connecting.unchanging(path, _BUSY_S)) as source:
                return _look(path, source, more // _PAGE)  # a transcript fills a page at least
        store_files.make(scratch)
        store_files.copy(path, scratch)
        with closing(connecting.connect(scratch, write=True, busy_s=_BUSY_S)[0]) as source:
            return _look(path, source, 0)
    except (OSError, sqlite3.Error, UnicodeDecodeError):
        now = int(time.time())
        return Found(now, cursor=now)
    finally:
        store_files.delete(scratch)


def _look(path: Path, source: sqlite3.Connection, unseen: int) -> Found:
    schema.refuse_newer(path, schema.version(source))
    cursor = int(source.execute("SELECT cursor FROM outbox").fetchone()[0])
    sequence = source.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()[0]
    newest = []
    sql = f"SELECT {rows.COLUMNS} FROM transcripts ORDER BY seq DESC LIMIT ?"
    for row in source.execute(sql, (TAKEN,)):
        with suppress(rows.DamagedRowError):
            rows.from_row(row)
            newest.append(row)
    last = max(int(sequence), cursor)
    return Found(last + unseen, cursor, newest[::-1], last)


def take_over(connection: sqlite3.Connection, found: Found, known: Known) -> None:
    """Makes the stand-in, within a transaction, go on where the log is; the first time with its
    newest transcripts, so that the broker is told those that it does not have."""
    there = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'taken'").fetchone()
    if not there and connection.execute("SELECT 1 FROM transcripts LIMIT 1").fetchone() is None:
        connection.execute(_RANGE)
        if found.newest:
            connection.execute("INSERT INTO taken VALUES (?, ?)", (found.newest[0][0], found.last))
        with schema.indexed_at_once(connection):
            connection.executemany(rows.INSERT_NUMBERED, found.newest)
            connection.executemany(rows.INSERT_NUMBERED, known.fresh())
        known.raise_to(cursor=found.cursor)
    known.raise_to(found.highest)
    salvage.number_on(connection, known)


def merge(target: sqlite3.Connection, source: sqlite3.Connection, known: Known, told: int) -> int:
    """Puts the transcripts of the stand-in `source` into the log, within a transaction; how many.

    They keep their numbers. `told` is how far the publisher may have come in the stand-in: what it
    has passed by without having seen it, because it was in the log alone, gets a new number behind
    all others, and so does what could not keep its own: nothing is forgotten. An id that is there
    is not stored again.
    """
    low, high = _taken(source)
    cursor = _number(target, "SELECT cursor FROM outbox")
    own = _number(source, "SELECT cursor FROM outbox")
    last = _number(target, "SELECT coalesce(max(seq), 0) FROM sqlite_sequence")
    again = [
        row
        for row in target.execute(
            f"SELECT {rows.COLUMNS} FROM transcripts WHERE seq > ? AND seq <= ? "
            "AND seq NOT BETWEEN ? AND ? ORDER BY seq",
            (cursor, max(told, own), low, high),
        )
        if not _has(source, "id", row[1])
    ]
    top = _number(source, "SELECT coalesce(max(seq), 0) FROM sqlite_sequence")
    known.raise_to(top, own)
    salvage.number_on(target, known)
    for row in again:
        target.execute("DELETE FROM transcripts WHERE seq = ?", (row[0],))
    count, later = 0, []
    for row in source.execute(f"SELECT {rows.COLUMNS} FROM transcripts ORDER BY seq"):
        seq = row[0]
        if low <= seq <= high and (last >= high or seq <= own):
            continue  # the log's own: where it is not any more, somebody has deleted it
        if _has(target, "id", row[1]):
            continue
        count += 1
        if (seq <= own or seq > cursor) and not _has(target, "seq", seq):
            target.execute(rows.INSERT_NUMBERED, row)
        else:
            later.append(row)
    target.executemany(rows.INSERT, [row[1:] for row in (*again, *later)])
    salvage.number_on(target, known)
    return count


def _taken(source: sqlite3.Connection) -> tuple[int, int]:
    """The first and last number of what was taken over; nothing is between 1 and 0."""
    if source.execute("SELECT 1 FROM sqlite_schema WHERE name = 'taken'").fetchone():
        row = source.execute("SELECT low, high FROM taken").fetchone()
        if row:
            return int(row[0]), int(row[1])
    return 1, 0


def _has(connection: sqlite3.Connection, column: str, value: object) -> bool:
    sql = f"SELECT 1 FROM transcripts WHERE {column} = ?"
    return connection.execute(sql, (value,)).fetchone() is not None


def _number(connection: sqlite3.Connection, sql: str) -> int:
    return int(connection.execute(sql).fetchone()[0])
