"""What can still be read of a damaged file, put into a new one with its numbers."""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from appliance.publish import rows, schema, store_files
from appliance.publish.rows import Row

_BLIND = 100_000
_BLIND_S = 3.0
"""So many numbers are tried one by one, and for so long, where no index knows what there is."""
_LAST_NUMBER = 1 << 53
"""JSON's readers count no further."""
_PAGE = 4096
_THERE = "SELECT 1 FROM sqlite_schema WHERE name = 'transcripts'"
_CARRIED = 1000
_UNTOLD = 200
_CARRIED_FOR = timedelta(days=1)


@dataclass(slots=True)
class Known:
    """How far the numbers and the broker had come."""

    highest: int = 0
    """Of all transcripts, deleted ones included; 0: not known."""
    cursor: int = 0
    untold: deque[Row] = field(default_factory=lambda: deque(maxlen=_UNTOLD))
    """The last transcripts that no broker has, in case the file loses them."""

    def raise_to(self, highest: int = 0, cursor: int = 0) -> None:
        """Notes what is further than what is known."""
        self.highest, self.cursor = max(self.highest, highest), max(self.cursor, cursor)
        while self.untold and self.untold[0][0] <= self.cursor:
            self.untold.popleft()

    def fresh(self) -> list[Row]:
        """Those of `untold` that are not older than what is carried out of a deleted file."""
        earliest = rows.iso(datetime.now(UTC) - _CARRIED_FOR)
        return [row for row in self.untold if row[rows.STORED] >= earliest]


def number_on(connection: sqlite3.Connection, known: Known) -> None:
    """Makes numbers and cursor of the open file go on from what is known, and the other way."""
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'transcripts'")
    row = found.fetchone()
    cursor = connection.execute("SELECT cursor FROM outbox").fetchone()[0]
    highest = max(row[0] if row else 0, cursor)
    if known.highest > highest or known.cursor > cursor:
        if row is None:
            connection.execute("INSERT INTO sqlite_sequence VALUES ('transcripts', 0)")
        connection.execute(
            "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'transcripts'",
            (max(known.highest, known.cursor),),
        )
        connection.execute("UPDATE outbox SET cursor = max(cursor, ?)", (known.cursor,))
    known.raise_to(highest, cursor)


def undelivered(connection: sqlite3.Connection) -> list[Row]:
    """Rows of a deleted file that the broker waits for, in order; of one day, and not very many.

    A person who deletes the file wants all else to be gone.
    """
    earliest = rows.iso(datetime.now(UTC) - _CARRIED_FOR)
    sql = (
        f"SELECT {rows.COLUMNS} FROM transcripts WHERE seq > (SELECT cursor FROM outbox) "
        "AND stored >= ? ORDER BY seq DESC LIMIT ?"
    )
    return list(_rows(connection, sql, earliest, _CARRIED))[::-1]


def salvage(damaged: Path, into: Path, copy: Path, known: Known) -> int:
    """Makes the file `into` with all that SQLite still gives of `damaged`; how many transcripts.

    `copy` is a name for what is needed on the way. Raises OSError and sqlite3.Error (disk full...).
    """
    store_files.make(into)
    count = 0
    with closing(sqlite3.connect(into, isolation_level=None)) as target:
        schema.migrate(target)
        with closing(_source(damaged, into, copy)) as source:
            _learn(source, known)
            target.execute("BEGIN")
            with schema.indexed_at_once(target):
                for row in _readable(source, known.highest or _LAST_NUMBER):
                    known.raise_to(row[0])
                    count += target.execute(rows.INSERT_NUMBERED, row).rowcount
                for row in known.fresh():
                    count += target.execute(rows.INSERT_NUMBERED, row).rowcount
            number_on(target, known)
            target.execute("COMMIT")
    return count


def _learn(source: sqlite3.Connection, known: Known) -> None:
    """The numbering and the cursor of a damaged file.

    Where the highest number is not to be had, the seconds since 1970 are above every number: nobody
    says a sentence each second for ever. A number is never used twice.
    """
    for row in _rows(source, "SELECT cursor FROM outbox"):
        if isinstance(row[0], int) and 0 <= row[0] <= _LAST_NUMBER:
            known.raise_to(cursor=row[0])
    if known.highest:
        return
    for row in _rows(source, "SELECT seq FROM sqlite_sequence WHERE name = 'transcripts'"):
        if isinstance(row[0], int) and 0 < row[0] <= _LAST_NUMBER:
            known.raise_to(row[0])
    if not known.highest:
        known.raise_to(int(time.time()))


def _source(damaged: Path, fresh: Path, copy: Path) -> sqlite3.Connection:
    """The damaged file opened to be read; with the first page of `fresh`, where its own is lost.

    All our files begin with the same tables in the same places.
    """
    source = _reading(damaged)
    if next(_rows(source, _THERE), None):
        return source
    source.close()
    store_files.copy(damaged, copy)
    with copy.open("r+b") as file, fresh.open("rb") as whole:
        page = bytearray(whole.read(_PAGE))
        page[28:40] = bytes(12)  # pages in the file and free ones: as SQLite finds them
        file.write(page)
    return _reading(copy)


def _reading(file: Path) -> sqlite3.Connection:
    source = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
    source.text_factory = lambda text: text.decode("utf-8", "replace")
    return source


def _readable(source: sqlite3.Connection, highest: int) -> Iterator[Row]:
    """Every whole row that can be had: from the front, from the back, and one by one between."""
    select = f"SELECT {rows.COLUMNS} FROM transcripts"
    low, high = 0, highest + 1
    if not next(_rows(source, _THERE), None):
        return
    for row in _rows(source, f"{select} ORDER BY seq"):
        low = row[0] if low < row[0] <= highest else low
        yield from _whole(row, highest)
    for row in _rows(source, f"{select} WHERE seq > ? ORDER BY seq DESC", low):
        high = row[0] if low < row[0] < high else high
        yield from _whole(row, highest)
    indexed = _indexed(source, low, high)
    for seq in sorted(indexed):
        yield from _one(source, seq, highest)
    until_s = time.monotonic() + _BLIND_S
    for seq in range(low + 1, min(high, low + _BLIND)):
        if time.monotonic() > until_s:
            break
        if seq not in indexed:
            yield from _one(source, seq, highest)


def _indexed(source: sqlite3.Connection, low: int, high: int) -> set[int]:
    """The numbers between `low` and `high` that the indexes know."""
    found = set[int]()
    for index, key in (("transcripts_by_end", '"end"'), ("sqlite_autoindex_transcripts_1", "id")):
        for order in ("", "DESC"):
            sql = f"SELECT seq FROM transcripts INDEXED BY {index} ORDER BY {key} {order}"
            found.update(row[0] for row in _rows(source, sql) if low < row[0] < high)
    return found


def _one(source: sqlite3.Connection, seq: int, highest: int) -> Iterator[Row]:
    for row in _rows(source, f"SELECT {rows.COLUMNS} FROM transcripts WHERE seq = ?", seq):
        yield from _whole(row, highest)


def _rows(source: sqlite3.Connection, sql: str, *values: object) -> Iterator[Row]:
    """The rows of a statement up to the first that cannot be read."""
    with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
        yield from source.execute(sql, values)


def _whole(row: Row, highest: int) -> Iterator[Row]:
    """The row, unless it cannot have been stored so."""
    with suppress(rows.DamagedRowError):
        rows.from_row(row)
        if 0 < row[0] <= highest:
            yield row
