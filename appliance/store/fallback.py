"""The log goes on in memory while the disk of its file refuses.

A card that became read-only, a full disk, a folder that is not there: what is heard is stored in a
second file, the stand-in, in a folder in memory, and published from there; as soon as the disk can
be written again, the stand-in is merged into the log and deleted. A crash between leaves it to the
next start.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from appliance.config import Settings
from appliance.errors import StoreError
from appliance.store import files, repair, tables
from appliance.store.database import Access, Database, Work
from appliance.store.files import UnwritableError, beside, plain_errors
from appliance.store.folders import MemoryFolder, runtime_folders
from appliance.store.repair import Known
from appliance.store.tables import Row

log = logging.getLogger("roomscribe.store")
T = TypeVar("T")

NAME = "log"
_COPIED = 32 << 20
"""Bytes; a larger file is read in its place, without what its -wal holds."""
_PAGE = 4096
_BUSY_S = 1.0
_TRY_AT_LEAST_EVERY_S = 600.0
_SOON_S = 60.0
"""One that refuses again so soon after it could be written is tried half as often."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a file is stood in for, and with how much of it."""

    refuses_s: float = 10.0
    """A file that refuses for so long is stood in for."""
    try_every_s: float = 10.0
    """So often it is tried whether it can be written again."""
    taken: int = 1000
    """So many of the newest transcripts are taken over; older ones that no broker has wait."""


LIMITS = Limits()


def places(settings: Settings) -> list[Path]:
    """Folders of a stand-in: the daemon's, and where else a reader of the log may find it."""
    return [folder / NAME for folder in runtime_folders(settings)]


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


def look(path: Path, scratch: Path, most: int) -> Found:
    """What is to be known of the log `path`, with its newest `most` transcripts; `scratch` is the
    name of a copy, in memory.

    SQLite maps a file of its own beside the log, which ends the process where the disk fails: a
    copy is opened instead. Where nothing can be read the numbers go on from the seconds since
    1970, which are above all others, and so does the cursor: what the log holds that the broker
    does not have is published when the two are merged. Raises StoreError for a newer version's.
    """
    try:
        size, more = path.stat().st_size, 0
        with suppress(FileNotFoundError):
            more = beside(path, "-wal").stat().st_size
        if size + more > _COPIED:
            with closing(files.unchanging(path, _BUSY_S)) as source:
                # a transcript fills a page at least
                return _look(path, source, most, more // _PAGE)
        files.make(scratch)
        files.copy(path, scratch)
        with closing(files.connect(scratch, write=True, busy_s=_BUSY_S)[0]) as source:
            return _look(path, source, most, 0)
    except (OSError, sqlite3.Error, UnicodeDecodeError):
        now = int(time.time())
        return Found(now, cursor=now)
    finally:
        files.delete(scratch)


def _look(path: Path, source: sqlite3.Connection, most: int, unseen: int) -> Found:
    tables.refuse_newer(path, tables.version(source))
    cursor = tables.number(source, tables.CURSOR)
    newest = []
    for row in source.execute(f"{tables.select(source)} ORDER BY seq DESC LIMIT ?", (most,)):
        with suppress(tables.DamagedRowError):
            tables.from_row(row)
            newest.append(row)
    last = max(tables.number(source, tables.HIGHEST), cursor)
    return Found(last + unseen, cursor, newest[::-1], last)


def take_over(connection: sqlite3.Connection, found: Found, known: Known) -> None:
    """Makes the stand-in, within a transaction, go on where the log is; the first time with its
    newest transcripts, so that those which the broker does not have are published."""
    there = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'taken'").fetchone()
    if not there and connection.execute("SELECT 1 FROM transcripts LIMIT 1").fetchone() is None:
        connection.execute("CREATE TABLE taken (low INTEGER NOT NULL, high INTEGER NOT NULL)")
        if found.newest:
            connection.execute("INSERT INTO taken VALUES (?, ?)", (found.newest[0][0], found.last))
        with tables.indexed_at_once(connection):
            connection.executemany(tables.insert_numbered(connection), found.newest)
            connection.executemany(tables.insert_numbered(connection), known.fresh())
        known.raise_to(cursor=found.cursor)
    known.raise_to(found.highest)
    repair.number_on(connection, known)


def merge(
    target: sqlite3.Connection, source: sqlite3.Connection, known: Known, published: int
) -> int:
    """Puts the transcripts of the stand-in `source` into the log, within a transaction; how many.

    They keep their numbers. `published` is how far the publisher may have come in the stand-in:
    what it has passed by without having seen it, because it was in the log alone, gets a new number
    behind all others, and so does what could not keep its own: nothing is forgotten. An id that is
    there is not stored again.
    """
    low, high = _taken(source)
    cursor, own = tables.number(target, tables.CURSOR), tables.number(source, tables.CURSOR)
    last = tables.number(target, tables.HIGHEST)
    again = [
        row
        for row in target.execute(
            f"{tables.select(target)} "
            "WHERE seq > ? AND seq <= ? AND seq NOT BETWEEN ? AND ? ORDER BY seq",
            (cursor, max(published, own), low, high),
        )
        if not _has(source, "id", row[1])
    ]
    known.raise_to(tables.number(source, tables.HIGHEST), own)
    repair.number_on(target, known)
    for row in again:
        target.execute("DELETE FROM transcripts WHERE seq = ?", (row[0],))
    count, later = 0, []
    for row in source.execute(f"{tables.select(source)} ORDER BY seq"):
        seq = row[0]
        if low <= seq <= high and (last >= high or seq <= own):
            continue  # the log's own: where it is not any more, somebody has deleted it
        if _has(target, "id", row[1]):
            continue
        count += 1
        if (seq <= own or seq > cursor) and not _has(target, "seq", seq):
            target.execute(tables.insert_numbered(target), row)
        else:
            later.append(row)
    target.executemany(tables.insert(target), [row[1:] for row in (*again, *later)])
    repair.number_on(target, known)
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


class LastingDatabase:
    """A Database that is now the file, now its stand-in. Any thread may call any method."""

    def __init__(
        self,
        path: Path,
        memory: MemoryFolder,
        report: Callable[[str | None], object],
        limits: Limits = LIMITS,
    ) -> None:
        """Opens the file, with what a stand-in has kept for it, or a stand-in.

        `report` is given what is wrong while one is used, None when it is well again. Raises
        StoreError for a file that another try does not open, and where there is no memory.
        """
        self.path = path
        self._memory, self._report, self._limits = memory, report, limits
        self._lock = threading.RLock()
        self._awaited = False
        self._taken = False
        self._refusing: dict[str, float] = {}
        """What is refused, and since when."""
        self._back_s = -_SOON_S
        self._every_s, self._try_s = limits.try_every_s, 0.0
        try:
            self._present = self._opened(None)
        except UnwritableError as error:
            self._present = self._standing(error, Known())

    @property
    def known(self) -> Known:
        """How far the numbers and the broker have come."""
        return self._present.known

    @property
    def awaited(self) -> bool:
        """True when transcripts are published."""
        return self._awaited

    @awaited.setter
    def awaited(self, value: bool) -> None:
        with self._lock:
            self._awaited = self._present.awaited = value

    @property
    def standing_in(self) -> bool:
        """True while what is heard is kept in memory only."""
        return self._present.path != self.path

    def read(self, doing: str, work: Work[T]) -> T:
        """What `work` makes of the file."""
        with self._lock:
            return self._present.read(doing, work)

    def write(self, doing: str, work: Work[T]) -> T:
        """What `work` returns, once what it did is safe; goes on in memory where that is refused
        for too long."""
        with self._lock:
            try:
                result = self._present.write(doing, work)
            except UnwritableError as error:
                since_s = self._refusing.setdefault(doing, time.monotonic())
                if self.standing_in or time.monotonic() - since_s < self._limits.refuses_s:
                    raise
                standing = self._standing(error, self._present.known)
                self._present.close()
                self._present = standing
                result = standing.write(doing, work)
            self._refusing.pop(doing, None)
            return result

    def scrub(self, wait_s: float = 0.0, *, rewrite: bool = False) -> bool:
        """Empties file and -wal file of what was deleted; False when a reader is in the way."""
        with self._lock:
            return self._present.scrub(wait_s, rewrite=rewrite)

    def is_current(self) -> bool:
        """True while the file that is open is the one of its name."""
        return self._present.is_current()

    def look_after(self) -> None:
        """Goes back to the file once it can be written again. Seldom does anything; raises
        nothing."""
        with self._lock:
            if self.standing_in and time.monotonic() >= self._try_s:
                self._go_back()

    def close(self) -> None:
        """Closes it for good; the stand-in stays for the next start if it must."""
        with self._lock:
            if self.standing_in:
                self._go_back()
            if self.standing_in:
                log.error("%s: left to the next start, while this machine is on", self._place)
            self._present.close()
            self._leave()

    @property
    def _place(self) -> Path:
        return self._memory.path / self.path.name

    def _take(self) -> bool:
        """True when the folder in memory is ours; another daemon's stand-in is its own affair."""
        try:
            if not self._taken:
                self._memory.take()
        except OSError as error:
            log.warning("%s: no log in memory: %s", self._memory.path, error.strerror or error)
            return False
        self._taken = True
        return True

    def _leave(self) -> None:
        if self._taken:
            self._taken = False
            self._memory.leave()

    def _standing(self, why: UnwritableError, known: Known) -> Database:
        """A file in memory to go on in. Raises `why` where that cannot be."""
        if not self._take():
            raise why
        found = look(self.path, beside(self._place, ".copy"), self._limits.taken)
        if known.highest and not found.last:
            found.highest = found.cursor = 0  # what we have given ourselves is known better
        try:
            standing = Database(self._place, Access.OWNER)
            standing.known.undelivered = known.undelivered
            standing.known.raise_to(known.highest, known.cursor)
            standing.write(
                "begin a log in memory",
                lambda connection: take_over(connection, found, standing.known),
            )
        except StoreError as error:
            log.warning("no log in memory: %s", error)
            self._leave()
            raise why from error
        standing.awaited = self._awaited
        self._refusing.clear()
        now_s = time.monotonic()
        if now_s - self._back_s < _SOON_S:
            self._every_s = min(self._every_s * 2, _TRY_AT_LEAST_EVERY_S)
        else:
            self._every_s = self._limits.try_every_s
        self._try_s = now_s + self._every_s
        trouble = (
            f"{self.path} cannot be written: {why.found}: what is heard is kept in memory only, "
            f"and lost with the power, until it can be; {why.cure}"
        )
        log.error("%s", trouble)
        self._report(trouble)
        return standing

    def _opened(self, standing: Database | None) -> Database:
        """The file, if it can be written, with all that its stand-in has. Raises StoreError."""
        with plain_errors(self.path, "open the log"):
            files.make_folder(self.path)
            files.probe(self.path)
        real = Database(self.path, Access.OWNER)
        try:
            if standing:
                self._put_back(standing, real)
            elif self._place.exists() and self._take():
                self._put_back(Database(self._place, Access.OWNER), real)
        except BaseException:
            real.close()
            raise
        return real

    def _put_back(self, standing: Database, real: Database) -> None:
        """Puts the stand-in into the file, then deletes it. Raises StoreError."""
        published = standing.known.highest if self._awaited else 0
        count = standing.read(
            "read the log in memory",
            lambda source: real.write(
                "store what was kept in memory",
                lambda target: merge(target, source, real.known, published),
            ),
        )
        standing.close()
        try:
            repair.delete_asides(self._place)
            files.delete(self._place)
        except OSError as error:
            log.warning("%s: %s: it is put into the log again", self._place, error.strerror)
        self._leave()
        log.info("%s: %d transcripts that were kept in memory are in it now", self.path, count)

    def _go_back(self) -> None:
        try:
            real = self._opened(self._present)
        except StoreError:
            self._try_s = time.monotonic() + self._every_s
            return
        real.awaited = self._awaited
        self._present, self._back_s = real, time.monotonic()
        self._report(None)
