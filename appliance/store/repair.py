"""A damaged file is set aside, and what can still be read of it goes on in a new one.

A crash at any point of `heal` is made good by `finish` at the next start: the new file is complete
under another name before the damaged one is moved away.
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
"""A larger file, of some 120,000 transcripts, is not read through at every start, which takes 0.1 s
for that many: damage in it is found where it is met."""
MOST_ASIDE = 3
"""Set-aside files hold what people said; no more of them are kept."""
_STAMP = "%Y%m%dT%H%M%SZ"
_BLIND = 100_000
_BLIND_S = 3.0
"""So many numbers are tried one by one, and for so long, where no index knows what there is."""
_LAST_NUMBER = 1 << 53
"""JSON's readers count no further."""
_PAGE = 4096
_THERE = "SELECT 1 FROM sqlite_schema WHERE name = 'transcripts'"
_CARRIED, _CARRIED_FOR = 1000, timedelta(days=1)
"""So many transcripts, and none older, go from a file that was deleted into the new one."""
_UNDELIVERED = 200


@dataclass(slots=True)
class Numbering:
    """How far the numbers and the broker had come."""

    highest: int = 0
    """Of all transcripts, deleted ones included; 0: not known."""
    cursor: int = 0
    undelivered: deque[Row] = field(default_factory=lambda: deque(maxlen=_UNDELIVERED))
    """The last transcripts that no broker has, in case the file loses them."""

    def raise_to(self, highest: int = 0, cursor: int = 0) -> None:
        """Notes what is further than what is known."""
        self.highest, self.cursor = max(self.highest, highest), max(self.cursor, cursor)
        while self.undelivered and self.undelivered[0][0] <= self.cursor:
            self.undelivered.popleft()

    def fresh(self) -> list[Row]:
        """Those of `undelivered` that are not older than what is carried out of a deleted file."""
        earliest = tables.iso(datetime.now(UTC) - _CARRIED_FOR)
        return [row for row in self.undelivered if row[tables.STORED] >= earliest]


def check(connection: sqlite3.Connection) -> str:
    """What is wrong with the file, in SQLite's words; empty when it is whole."""
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    missing = tables.TABLES.get(tables.version(connection), set()) - found
    if missing:
        return f"the table {min(missing)} is not there"
    try:
        connection.execute(f"{tables.select(connection)} LIMIT 0")
        if connection.execute("SELECT cursor FROM outbox").fetchone() is None:
            return "the cursor is not there"
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_ERROR":
            raise
        return str(error)  # a column of another name
    small = tables.number(connection, "PRAGMA page_count") * _PAGE <= CHECKED_MB * 1_000_000
    return quick_check(connection, "1" if small else "'outbox'")


def quick_check(connection: sqlite3.Connection, of: str = "1") -> str:
    """SQLite's first complaint of the whole file, or of the table `of`; empty when it is whole."""
    answer = str(connection.execute(f"PRAGMA quick_check({of})").fetchone()[0])
    return "" if answer == "ok" else answer.replace("\n", " ")


def heal(path: Path, numbering: Numbering, why: object) -> None:
    """Puts a whole file in the place of the damaged one, which nobody may have open any more.

    Raises OSError and sqlite3.Error (disk full...); the damaged file is where it was then.
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
    """Completes, or takes back, a `heal` that a crash ended."""
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
    log.error("%s was damaged: what was saved from it is in place now", path)


def set_aside_files(path: Path) -> list[Path]:
    """The set-aside files, the newest first."""
    found = path.parent.glob(f"{path.name}.damaged-*Z")
    return sorted(found, reverse=True)


def prune(path: Path, days: int, now: datetime) -> int:
    """Deletes set-aside files that are too many or older than `days` (0: any age); how many."""
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
    """Deletes every set-aside file."""
    for file in set_aside_files(path):
        delete(file)


def _aside(path: Path) -> Path:
    """A name for the damaged file that is not taken."""
    moment = datetime.now(UTC)
    while (name := sibling(path, moment.strftime(f".damaged-{_STAMP}"))).exists():
        moment += timedelta(seconds=1)
    return name


def _move_away(path: Path, aside: Path) -> None:
    """Renames the file and its -wal; the -shm is of no use to anyone."""
    for ending in ("", "-wal"):
        with suppress(FileNotFoundError):
            sibling(path, ending).rename(sibling(aside, ending))
    sibling(path, "-shm").unlink(missing_ok=True)
    sync_folder(path.parent)


def continue_numbering(connection: sqlite3.Connection, numbering: Numbering) -> None:
    """Makes numbers and cursor of the open file go on from what is known, and the other way."""
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
    """Rows of a deleted file that the broker waits for, in order; of one day, and not very many.

    A person who deletes the file wants all else to be gone.
    """
    earliest = tables.iso(datetime.now(UTC) - _CARRIED_FOR)
    sql = (
        f"{tables.select(connection)} WHERE seq > (SELECT cursor FROM outbox) AND stored >= ? "
        "ORDER BY seq DESC LIMIT ?"
    )
    return list(_rows(connection, sql, earliest, _CARRIED))[::-1]


def salvage(damaged: Path, into: Path, copy: Path, numbering: Numbering) -> int:
    """Makes the file `into` with all that SQLite still gives of `damaged`; how many transcripts.

    `copy` is a name for what is needed on the way. Raises OSError and sqlite3.Error (disk full...).
    """
    files.make(into)
    count = 0
    with closing(sqlite3.connect(into, isolation_level=None)) as target:
        tables.migrate(target)
        with closing(_source(damaged, into, copy)) as source:
            _learn(source, numbering)
            with tables.transaction(target):
                with tables.indexed_at_once(target):
                    insert = tables.insert_numbered(target)
                    for row in _readable(source, numbering.highest or _LAST_NUMBER):
                        numbering.raise_to(row[0])
                        count += target.execute(insert, row).rowcount
                    for row in numbering.fresh():
                        count += target.execute(insert, row).rowcount
                continue_numbering(target, numbering)
    return count


def _learn(source: sqlite3.Connection, numbering: Numbering) -> None:
    """The numbering and the cursor of a damaged file.

    Where the highest number is not to be had, the seconds since 1970 are above every number: nobody
    says a sentence each second for ever. A number is never used twice.
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
    """The damaged file opened to be read; with the first page of `fresh`, where its own is lost.

    All our files begin with the same tables in the same places.
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
    """Every whole row that can be had, some of them twice."""
    if not next(_rows(source, _THERE), None):
        return
    for row in _found(source, highest):
        with suppress(tables.DamagedRowError):
            tables.from_row(row)
            if 0 < row[0] <= highest:
                yield row


def _found(source: sqlite3.Connection, highest: int) -> Iterator[Row]:
    """Rows from the front, from the back, and one by one between, whole or not."""
    low, high, select = 0, highest + 1, tables.select(source)
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
    """The numbers between `low` and `high` that the indexes know."""
    found = set[int]()
    for index, key in (("transcripts_by_end", '"end"'), ("sqlite_autoindex_transcripts_1", "id")):
        for order in ("", "DESC"):
            sql = f"SELECT seq FROM transcripts INDEXED BY {index} ORDER BY {key} {order}"
            found.update(row[0] for row in _rows(source, sql) if low < row[0] < high)
    return found


def _rows(source: sqlite3.Connection, sql: str, *values: object) -> Iterator[Row]:
    """The rows of a statement up to the first that cannot be read."""
    with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
        yield from source.execute(sql, values)
