"""Repair of a damaged log: it is set aside, and a new file gets what can still be read of it.

If `heal` is interrupted, `finish` completes it at the next start: the new file is complete under
another name before the damaged one is moved away.
"""

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

from appliance.store import files, tables
from appliance.store.files import delete, sibling
from appliance.store.tables import Row
from appliance.system import sync_folder

log = logging.getLogger("roomscribe.store")

CHECKED_BYTES = 64_000_000
"""A larger file (some 120,000 transcripts) is not checked completely at every start, which would
take more than 0.1 s; damage in it is found when it is read."""
MOST_ASIDE = 3
"""Most set-aside files, because they contain what people said."""
_STAMP = "%Y%m%dT%H%M%S.%fZ"
_LAST_NUMBER = 1 << 53
"""Largest whole number that readers of JSON agree on."""
_CARRIED_FOR = timedelta(days=1)
"""Unpublished transcripts that are not older go from a deleted file into the new one."""
_UNDELIVERED = 200
"""Unpublished transcripts, the last ones, that are also in memory."""


@dataclass(slots=True)
class Numbering:
    """The highest number, the cursor and unpublished rows, in case the file loses them."""

    highest: int = 0
    """Of all transcripts, including deleted ones; 0: unknown."""
    cursor: int = 0
    undelivered: dict[int, Row] = field(default_factory=dict)
    """The last rows that the broker does not have, by number. Any thread may add and remove."""

    def raise_to(self, highest: int = 0, cursor: int = 0) -> None:
        """Raise the numbers, never lower them; drop rows that need not be in memory now."""
        self.highest, self.cursor = max(self.highest, highest), max(self.cursor, cursor)
        for seq in [*self.undelivered]:
            if seq <= max(self.cursor, self.highest - _UNDELIVERED):
                self.undelivered.pop(seq, None)


def check(connection: sqlite3.Connection) -> str:
    """Return what is wrong with the file, in SQLite's words; "" if it is whole."""
    try:
        connection.execute(f"{tables.SELECT} LIMIT 0")
        connection.execute("SELECT 1 FROM search LIMIT 0")
        if connection.execute(tables.CURSOR).fetchone() is None:
            return "the cursor is missing"
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_ERROR":
            raise
        return str(error)  # a missing table or column
    pages, size = (
        tables.number(connection, f"PRAGMA {name}") for name in ("page_count", "page_size")
    )
    return quick_check(connection, "1" if pages * size <= CHECKED_BYTES else "'outbox'")


def quick_check(connection: sqlite3.Connection, of: str = "1") -> str:
    """Return SQLite's first complaint about the file, or about the table `of`; "" without one."""
    answer = str(connection.execute(f"PRAGMA quick_check({of})").fetchone()[0])
    return "" if answer == "ok" else answer.replace("\n", " ")


def heal(path: Path, numbering: Numbering, why: object) -> None:
    """Replace the damaged file by a whole one; nobody may have it open.

    Raises OSError and sqlite3.Error (disk full...); the damaged file stays in place then.
    """
    part, now = sibling(path, ".part"), datetime.now(UTC)
    delete(part)
    count = salvage(path, part, numbering)
    aside = sibling(path, now.strftime(f".damaged-{_STAMP}"))
    _replace(path, part, aside)
    log.error(
        "%s is damaged (%s): set aside as %s; %d transcripts were saved from it, "
        "and the log goes on with number %d",
        *(path, why, aside.name, count, numbering.highest + 1),
    )
    prune(path, 0, now)


def finish(path: Path) -> None:
    """Complete or undo a `heal` that a crash interrupted."""
    part, asides = sibling(path, ".part"), set_aside_files(path)
    if part.exists() and asides and not path.exists():
        _replace(path, part, asides[0])
        log.error("%s was damaged. The new file has what could be saved", path)
    delete(part)


def _replace(path: Path, part: Path, aside: Path) -> None:
    """Rename the damaged file and its -wal to `aside`, then the new one to `path`."""
    for ending in ("", "-wal"):
        with suppress(FileNotFoundError):
            sibling(path, ending).rename(sibling(aside, ending))
    sibling(path, "-shm").unlink(missing_ok=True)
    sync_folder(path.parent)
    part.rename(path)
    sync_folder(path.parent)


def set_aside_files(path: Path) -> list[Path]:
    """Return the damaged copies of the log `path`, the newest first; they may hold deleted text."""
    found = path.parent.glob(f"{path.name}.damaged-*Z")
    return sorted(found, reverse=True)


def prune(path: Path, days: int, now: datetime, most: int = MOST_ASIDE) -> int:
    """Delete set-aside files beyond the newest `most` or `days` (0: any age); return how many."""
    earliest = (now - timedelta(days=days)).astimezone(UTC).strftime(_STAMP) if days else ""
    found = set_aside_files(path)
    old = [*found[most:], *(one for one in found[:most] if one.name.split("-")[-1] < earliest)]
    for file in old:
        delete(file)
    return len(old)


def delete_set_aside_files(path: Path) -> None:
    """Delete every set-aside file."""
    prune(path, 0, datetime.now(UTC), most=0)


def continue_numbering(connection: sqlite3.Connection, numbering: Numbering) -> None:
    """Raise the numbers and the cursor of the open file to `numbering`, and the other way round."""
    cursor = tables.number(connection, tables.CURSOR)
    found = max(tables.number(connection, tables.HIGHEST), cursor), cursor
    numbering.raise_to(*found)
    if found != (numbering.highest, numbering.cursor):
        last = max(numbering.highest, numbering.cursor)
        connection.execute("DELETE FROM sqlite_sequence")
        connection.execute("INSERT INTO sqlite_sequence VALUES ('transcripts', ?)", (last,))
        connection.execute("UPDATE outbox SET cursor = ?", (numbering.cursor,))


def read_undelivered(connection: sqlite3.Connection) -> list[Row]:
    """Return unpublished rows of a deleted file, in order, of one day.

    Who deletes the file wants everything else to be gone.
    """
    earliest = tables.iso(datetime.now(UTC) - _CARRIED_FOR)
    sql = f"{tables.SELECT} WHERE seq > ({tables.CURSOR}) AND stored >= ? ORDER BY seq"
    return list(_rows(connection, sql, earliest))


def salvage(damaged: Path, into: Path, numbering: Numbering) -> int:
    """Create the file `into` with all that SQLite can read of `damaged`, and the unpublished rows
    in memory; return how many.

    Raises OSError and sqlite3.Error (disk full...).
    """
    files.make(into)
    count = 0
    with (
        closing(sqlite3.connect(into, isolation_level=None)) as target,
        closing(files.connect(damaged, "ro")) as source,
    ):
        source.text_factory = lambda text: text.decode("utf-8", "replace")
        tables.create(target)
        _learn(source, numbering)
        with tables.transaction(target):
            in_memory = [*numbering.undelivered.values()]
            for row in chain(_readable(source, numbering.highest), in_memory):
                count += target.execute(tables.INSERT_NUMBERED, row).rowcount
            continue_numbering(target, numbering)
    return count


def _learn(source: sqlite3.Connection, numbering: Numbering) -> None:
    """Read the highest number and the cursor of a damaged file.

    If the highest number cannot be read, the Unix time takes its place: it is above every number,
    since nobody says a sentence every second. A number is never used twice.
    """
    found = [[one for (one,) in _rows(source, sql)] for sql in (tables.HIGHEST, tables.CURSOR)]
    highest, cursor = (
        next((one for one in values if isinstance(one, int) and 0 <= one <= _LAST_NUMBER), 0)
        for values in found
    )
    numbering.raise_to(numbering.highest or highest or int(time.time()), cursor)


def _readable(source: sqlite3.Connection, highest: int) -> Iterator[Row]:
    """Yield the whole rows up to the damage, then those from the end down to it."""
    last = 0
    for order in ("ASC", "DESC"):
        for row in _rows(source, f"{tables.SELECT} WHERE seq > ? ORDER BY seq {order}", last):
            with suppress(tables.DamagedError):
                tables.from_row(row)
                if 0 < row[0] <= highest:
                    last = row[0]
                    yield row


def _rows(source: sqlite3.Connection, sql: str, *values: object) -> Iterator[Row]:
    """Yield the rows of a statement, up to where the file cannot be read."""
    with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
        yield from source.execute(sql, values)
