"""Repair of a damaged log: it is set aside, and a new file gets what can still be read of it.

If `heal` is interrupted, `finish` completes it at the next start: the new file is complete under
another name before the damaged one is moved away.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from appliance.store import files, tables
from appliance.store.files import delete, sibling
from appliance.store.tables import Row
from appliance.system import sync_folder

log = logging.getLogger("roomscribe.store")

CHECKED_MB = 64
"""A larger file (some 120,000 transcripts) is not checked completely at every start, which would
take more than 0.1 s; damage in it is found when it is read."""
MOST_ASIDE = 3
"""Most set-aside files, because they contain what people said."""
_STAMP = "%Y%m%dT%H%M%SZ"
_BLIND = 100_000
_BLIND_S = 3.0
"""Numbers that are tried one by one, and the time limit, if no index knows which ones exist."""
_LAST_NUMBER = 1 << 53
"""Largest whole number that readers of JSON agree on."""
_PAGE = 4096
_THERE = "SELECT 1 FROM sqlite_schema WHERE name = 'transcripts'"
_CARRIED, _CARRIED_FOR = 1000, timedelta(days=1)
"""Number and age of unpublished transcripts that go from a deleted file into the new one."""
_UNDELIVERED = 200


@dataclass(slots=True)
class Numbering:
    """The highest number, the cursor and unpublished rows, in case the file loses them."""

    highest: int = 0
    """Of all transcripts, including deleted ones; 0: unknown."""
    cursor: int = 0
    undelivered: deque[Row] = field(default_factory=lambda: deque(maxlen=_UNDELIVERED))
    """The last transcripts that the broker does not have."""

    def raise_to(self, highest: int = 0, cursor: int = 0) -> None:
        """Raise the numbers, never lower them; drop rows that the cursor has passed."""
        self.highest, self.cursor = max(self.highest, highest), max(self.cursor, cursor)
        while self.undelivered and self.undelivered[0][0] <= self.cursor:
            self.undelivered.popleft()

    def fresh(self) -> list[Row]:
        """Return those of `undelivered` that are not too old to be carried over."""
        earliest = tables.iso(datetime.now(UTC) - _CARRIED_FOR)
        return [row for row in self.undelivered if row[tables.STORED] >= earliest]


def check(connection: sqlite3.Connection) -> str:
    """Return what is wrong with the file, in SQLite's words; "" if it is whole."""
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    missing = tables.TABLES - found
    if missing:
        return f"the table {min(missing)} is missing"
    try:
        connection.execute(f"{tables.SELECT} LIMIT 0")
        if connection.execute("SELECT cursor FROM outbox").fetchone() is None:
            return "the cursor is missing"
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_ERROR":
            raise
        return str(error)  # a column of another name
    small = tables.number(connection, "PRAGMA page_count") * _PAGE <= CHECKED_MB * 1_000_000
    return quick_check(connection, "1" if small else "'outbox'")


def quick_check(connection: sqlite3.Connection, of: str = "1") -> str:
    """Return SQLite's first complaint about the file, or about the table `of`; "" without one."""
    answer = str(connection.execute(f"PRAGMA quick_check({of})").fetchone()[0])
    return "" if answer == "ok" else answer.replace("\n", " ")


def heal(path: Path, numbering: Numbering, why: object) -> None:
    """Replace the damaged file by a whole one; nobody may have it open.

    Raises OSError and sqlite3.Error (disk full...); the damaged file stays in place then.
    """
    part, saved = sibling(path, ".part"), sibling(path, ".saved")
    delete(part)
    delete(saved)
    count = salvage(path, part, sibling(path, ".copy"), numbering)
    delete(sibling(path, ".copy"))
    part.rename(saved)
    aside = _aside(path)
    _move_away(path, aside)
    saved.rename(path)
    sync_folder(path.parent)
    log.error(
        "%s is damaged (%s): set aside as %s; %d transcripts were saved from it, "
        "and the log goes on with number %d",
        path,
        why,
        aside.name,
        count,
        numbering.highest + 1,
    )
    prune(path, 0, datetime.now(UTC))


def finish(path: Path) -> None:
    """Complete or undo a `heal` that a crash interrupted."""
    saved = sibling(path, ".saved")
    for ending in (".part", ".copy"):
        delete(sibling(path, ending))
    if not saved.exists():
        return
    if path.exists():
        delete(saved)
        return
    _move_away(path, next(iter(set_aside_files(path)), _aside(path)))
    saved.rename(path)
    sync_folder(path.parent)
    log.error("%s was damaged. The new file has what could be saved", path)


def set_aside_files(path: Path) -> list[Path]:
    """Return the damaged copies of the log `path`, the newest first; they may hold deleted text."""
    found = path.parent.glob(f"{path.name}.damaged-*Z")
    return sorted(found, reverse=True)


def prune(path: Path, days: int, now: datetime) -> int:
    """Delete set-aside files beyond MOST_ASIDE or `days` (0: any age); return how many."""
    earliest = (now - timedelta(days=days)).astimezone(UTC).strftime(_STAMP) if days else ""
    old = [
        file
        for number, file in enumerate(set_aside_files(path))
        if number >= MOST_ASIDE or file.name.rpartition("-")[2] < earliest
    ]
    for file in old:
        delete(file)
    return len(old)


def delete_set_aside_files(path: Path) -> None:
    """Delete every set-aside file."""
    for file in set_aside_files(path):
        delete(file)


def _aside(path: Path) -> Path:
    moment = datetime.now(UTC)
    while (name := sibling(path, moment.strftime(f".damaged-{_STAMP}"))).exists():
        moment += timedelta(seconds=1)
    return name


def _move_away(path: Path, aside: Path) -> None:
    """Rename the file and its -wal; delete the useless -shm."""
    for ending in ("", "-wal"):
        with suppress(FileNotFoundError):
            sibling(path, ending).rename(sibling(aside, ending))
    sibling(path, "-shm").unlink(missing_ok=True)
    sync_folder(path.parent)


def continue_numbering(connection: sqlite3.Connection, numbering: Numbering) -> None:
    """Raise the numbers and the cursor of the open file to `numbering`, and the other way round."""
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'transcripts'")
    row = found.fetchone()
    cursor = connection.execute("SELECT cursor FROM outbox").fetchone()[0]
    highest = max(row[0] if row else 0, cursor)
    if numbering.highest > highest or numbering.cursor > cursor:
        if row is None:
            connection.execute("INSERT INTO sqlite_sequence VALUES ('transcripts', 0)")
        connection.execute(
            "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'transcripts'",
            (max(numbering.highest, numbering.cursor),),
        )
        connection.execute("UPDATE outbox SET cursor = max(cursor, ?)", (numbering.cursor,))
    numbering.raise_to(highest, cursor)


def read_undelivered(connection: sqlite3.Connection) -> list[Row]:
    """Return unpublished rows of a deleted file, in order; of one day, and not very many.

    Who deletes the file wants everything else to be gone.
    """
    earliest = tables.iso(datetime.now(UTC) - _CARRIED_FOR)
    sql = (
        f"{tables.SELECT} WHERE seq > (SELECT cursor FROM outbox) AND stored >= ? "
        "ORDER BY seq DESC LIMIT ?"
    )
    return list(_rows(connection, sql, earliest, _CARRIED))[::-1]


def salvage(damaged: Path, into: Path, copy: Path, numbering: Numbering) -> int:
    """Create the file `into` with all that SQLite can read of `damaged`; return how many.

    `copy` names a temporary file. Raises OSError and sqlite3.Error (disk full...).
    """
    files.make(into)
    count = 0
    with closing(sqlite3.connect(into, isolation_level=None)) as target:
        tables.create(target)
        with closing(_source(damaged, into, copy)) as source:
            _learn(source, numbering)
            with tables.transaction(target):
                with tables.indexed_at_once(target):
                    insert = tables.INSERT_NUMBERED
                    for row in _readable(source, numbering.highest or _LAST_NUMBER):
                        numbering.raise_to(row[0])
                        count += target.execute(insert, row).rowcount
                    for row in numbering.fresh():
                        count += target.execute(insert, row).rowcount
                continue_numbering(target, numbering)
    return count


def _learn(source: sqlite3.Connection, numbering: Numbering) -> None:
    """Read the highest number and the cursor of a damaged file.

    If the highest number cannot be read, the Unix time takes its place: it is above every number,
    since nobody says a sentence every second. A number is never used twice.
    """
    for row in _rows(source, "SELECT cursor FROM outbox"):
        if isinstance(row[0], int) and 0 <= row[0] <= _LAST_NUMBER:
            numbering.raise_to(cursor=row[0])
    if numbering.highest:
        return
    for row in _rows(source, "SELECT seq FROM sqlite_sequence WHERE name = 'transcripts'"):
        if isinstance(row[0], int) and 0 < row[0] <= _LAST_NUMBER:
            numbering.raise_to(row[0])
    if not numbering.highest:
        numbering.raise_to(int(time.time()))


def _source(damaged: Path, fresh: Path, copy: Path) -> sqlite3.Connection:
    """Open the damaged file for reading; if its first page is lost, with that of `fresh`.

    All our files begin with the same tables at the same positions.
    """
    source = _reading(damaged)
    if next(_rows(source, _THERE), None):
        return source
    source.close()
    files.copy(damaged, copy)
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
    """Yield every whole row that can be read, some of them twice."""
    if not next(_rows(source, _THERE), None):
        return
    for row in _found(source, highest):
        with suppress(tables.DamagedRowError):
            tables.from_row(row)
            if 0 < row[0] <= highest:
                yield row


def _found(source: sqlite3.Connection, highest: int) -> Iterator[Row]:
    """Yield rows from the front, from the back, and one by one between; whole or not."""
    low, high, select = 0, highest + 1, tables.SELECT
    for row in _rows(source, f"{select} ORDER BY seq"):
        low = row[0] if low < row[0] <= highest else low
        yield row
    for row in _rows(source, f"{select} WHERE seq > ? ORDER BY seq DESC", low):
        high = row[0] if low < row[0] < high else high
        yield row
    one = f"{select} WHERE seq = ?"
    indexed = _indexed(source, low, high)
    for seq in sorted(indexed):
        yield from _rows(source, one, seq)
    until_s = time.monotonic() + _BLIND_S
    for seq in range(low + 1, min(high, low + _BLIND)):
        if time.monotonic() > until_s:
            break
        if seq not in indexed:
            yield from _rows(source, one, seq)


def _indexed(source: sqlite3.Connection, low: int, high: int) -> set[int]:
    """Return the numbers between `low` and `high` that the indexes have."""
    found = set[int]()
    for index, key in (("transcripts_by_end", '"end"'), ("sqlite_autoindex_transcripts_1", "id")):
        for order in ("", "DESC"):
            sql = f"SELECT seq FROM transcripts INDEXED BY {index} ORDER BY {key} {order}"
            found.update(row[0] for row in _rows(source, sql) if low < row[0] < high)
    return found


def _rows(source: sqlite3.Connection, sql: str, *values: object) -> Iterator[Row]:
    with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
        yield from source.execute(sql, values)
