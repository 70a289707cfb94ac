"""The fallback: a second log in memory, used while the disk refuses the log's file.

If a card turns read-only, a disk is full or a folder is missing, transcripts are stored in a folder
in memory and published from there. When the disk accepts writes again, the fallback is merged into
the file and deleted. If the process crashes before that, the next start merges it.
"""

from __future__ import annotations

import json
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
from appliance.store.database import AccessMode, Database, Work
from appliance.store.files import UnwritableError, plain_errors, sibling
from appliance.store.folders import MemoryFolder, runtime_folders
from appliance.store.repair import Numbering
from appliance.store.tables import Row

log = logging.getLogger("roomscribe.store")
T = TypeVar("T")

NAME = "log"
_COPIED = 32 << 20
"""Bytes; a larger file is read where it is, without its -wal."""
_PAGE = 4096
_BUSY_S = 1.0
_LONGEST_PAUSE_S = 600.0
_SOON_S = 60.0
"""If the file fails again within this time after a return to it, the pauses double."""


@dataclass(frozen=True, slots=True)
class FallbackLimits:
    """When the fallback is used, and how many transcripts it takes over."""

    refuses_s: float = 10.0
    """Seconds that the file must refuse writes before the fallback is opened."""
    try_every_s: float = 10.0
    """Seconds between two attempts to return to the file."""
    taken: int = 1000
    """Newest transcripts that are copied into the fallback; older unpublished ones wait."""


FALLBACK_LIMITS = FallbackLimits()


def fallback_folders(settings: Settings) -> list[Path]:
    """Return the daemon's folder for the fallback, then others where a reader may find one."""
    return [folder / NAME for folder in runtime_folders(settings)]


@dataclass(slots=True)
class LogSnapshot:
    """What can be read of a log that cannot be written."""

    highest: int
    """No higher number was ever given."""
    cursor: int = 0
    newest: list[Row] = field(default_factory=list)
    """In order."""
    last: int = 0
    """Highest number that was read; 0 for none."""


def read_snapshot(path: Path, scratch: Path, most: int) -> LogSnapshot:
    """Return the numbers of the log `path` and its newest `most` transcripts.

    `scratch` names a temporary copy in memory. SQLite maps a file beside the log, and the process
    would die if the disk failed under it, so the copy is opened instead. If nothing can be read,
    numbers and cursor continue from the Unix time, which is above all others; unpublished
    transcripts of the file are then published after the merge. Raises StoreError for the file of a
    newer version.
    """
    try:
        size, wal_size = path.stat().st_size, 0
        with suppress(FileNotFoundError):
            wal_size = sibling(path, "-wal").stat().st_size
        if size + wal_size > _COPIED:
            with closing(files.unchanging(path, _BUSY_S)) as source:
                # the -wal is not read; each transcript in it fills at least a page
                return _read_snapshot(path, source, most, wal_size // _PAGE)
        files.make(scratch)
        files.copy(path, scratch)
        with closing(files.connect(scratch, write=True, busy_s=_BUSY_S)[0]) as source:
            return _read_snapshot(path, source, most, 0)
    except (OSError, sqlite3.Error, UnicodeDecodeError):
        now = int(time.time())
        return LogSnapshot(now, cursor=now)
    finally:
        files.delete(scratch)


def _read_snapshot(path: Path, source: sqlite3.Connection, most: int, unseen: int) -> LogSnapshot:
    tables.refuse_other(path, tables.version(source))
    cursor = tables.number(source, tables.CURSOR)
    newest = []
    for row in source.execute(f"{tables.SELECT} ORDER BY seq DESC LIMIT ?", (most,)):
        with suppress(tables.DamagedRowError):
            tables.from_row(row)
            newest.append(row)
    last = max(tables.number(source, tables.HIGHEST), cursor)
    return LogSnapshot(last + unseen, cursor, newest[::-1], last)


def fill_fallback(
    connection: sqlite3.Connection, snapshot: LogSnapshot, numbering: Numbering
) -> None:
    """Make the fallback continue the log's numbers, within a transaction.

    A new fallback also gets the log's newest transcripts, so that unpublished ones are published.
    The table `taken` records their numbers for the merge, and `taken_ids` their ids.
    """
    has_table = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'taken'").fetchone()
    if not has_table and connection.execute("SELECT 1 FROM transcripts LIMIT 1").fetchone() is None:
        connection.execute("CREATE TABLE taken (low INTEGER NOT NULL, high INTEGER NOT NULL)")
        connection.execute("CREATE TABLE taken_ids (id TEXT PRIMARY KEY)")
        if snapshot.newest:
            ids = ((row[1],) for row in snapshot.newest)
            connection.executemany("INSERT OR IGNORE INTO taken_ids VALUES (?)", ids)
            taken = (snapshot.newest[0][0], snapshot.last)
            connection.execute("INSERT INTO taken VALUES (?, ?)", taken)
        with tables.indexed_at_once(connection):
            connection.executemany(tables.INSERT_NUMBERED, snapshot.newest)
            connection.executemany(tables.INSERT_NUMBERED, numbering.fresh())
        numbering.raise_to(cursor=snapshot.cursor)
    numbering.raise_to(snapshot.highest)
    repair.continue_numbering(connection, numbering)


def merge(
    target: sqlite3.Connection, source: sqlite3.Connection, numbering: Numbering, published: int
) -> int:
    """Put the transcripts of the fallback `source` into the log, within a transaction.

    Return how many were stored. `published` is the highest number that the publisher may have
    reached in the fallback. Transcripts keep their numbers if possible; the others get new ones
    after all others. An id that the log has is not stored again.
    """
    low, high = _read_taken(source)
    cursor, own = tables.number(target, tables.CURSOR), tables.number(source, tables.CURSOR)
    last = tables.number(target, tables.HIGHEST)
    # The publisher's cursor moved on in the fallback, past numbers that only the file had (those
    # that were not taken over). The broker never got them: store them again under new numbers,
    # which the cursor has not passed.
    unseen = [
        row
        for row in target.execute(
            f"{tables.SELECT} WHERE seq > ? AND seq <= ? AND seq NOT BETWEEN ? AND ? ORDER BY seq",
            (cursor, max(published, own), low, high),
        )
        if not _has(source, "id", row[1])
    ]
    numbering.raise_to(tables.number(source, tables.HIGHEST), own)
    repair.continue_numbering(target, numbering)
    for row in unseen:
        target.execute("DELETE FROM transcripts WHERE seq = ?", (row[0],))
    _merge_corrections(target, source)
    count, later = 0, []
    for row in source.execute(f"{tables.SELECT} ORDER BY seq"):
        seq = row[0]
        # Copied from the file when the fallback was opened: if the file lacks it now, somebody
        # deleted it there. Exception: the file lost its newest transcripts (last < high) and the
        # broker does not have this one.
        if low <= seq <= high and (last >= high or seq <= own):
            continue
        if _has(target, "id", row[1]):
            continue
        count += 1
        # Keep the number if it is free, unless this is unpublished and the cursor has passed it.
        if (seq <= own or seq > cursor) and not _has(target, "seq", seq):
            target.execute(tables.INSERT_NUMBERED, row)
        else:
            later.append(row)
    target.executemany(tables.INSERT, [row[1:] for row in (*unseen, *later)])
    repair.continue_numbering(target, numbering)
    return count


def _merge_corrections(target: sqlite3.Connection, source: sqlite3.Connection) -> None:
    """Copy the corrections of transcripts that both logs have."""
    corrected = "SELECT id, correction FROM transcripts WHERE correction IS NOT NULL"
    for id, text in source.execute(corrected).fetchall():
        tables.correct(target, id, text)


def forget_deleted(target: sqlite3.Connection, source: sqlite3.Connection) -> int:
    """Delete from the log what was deleted from the fallback after it had taken that over.

    Return how many transcripts.
    """
    gone = source.execute(
        "SELECT id FROM taken_ids WHERE id NOT IN (SELECT id FROM transcripts)"
    ).fetchall()
    condition = "id IN (SELECT value FROM json_each(?))"
    return tables.forget(target, condition, (json.dumps([row[0] for row in gone]),)) if gone else 0


def _read_taken(source: sqlite3.Connection) -> tuple[int, int]:
    """Return the first and last number that the fallback took over; (1, 0) for none."""
    if source.execute("SELECT 1 FROM sqlite_schema WHERE name = 'taken'").fetchone():
        row = source.execute("SELECT low, high FROM taken").fetchone()
        if row:
            return int(row[0]), int(row[1])
    return 1, 0


def _has(connection: sqlite3.Connection, column: str, value: object) -> bool:
    sql = f"SELECT 1 FROM transcripts WHERE {column} = ?"
    return connection.execute(sql, (value,)).fetchone() is not None


class DatabaseWithFallback:
    """A Database that uses its file or, while that cannot be written, the fallback. Any thread."""

    def __init__(
        self,
        path: Path,
        memory: MemoryFolder,
        report: Callable[[str | None], object],
        limits: FallbackLimits = FALLBACK_LIMITS,
    ) -> None:
        """Open the file and merge a fallback that is left over; else open a fallback.

        `report` is called with the problem when the fallback is opened, and with None when the file
        is back. Raises StoreError if another attempt would not help, or without memory.
        """
        self.path = path
        self._memory, self._report, self._limits = memory, report, limits
        self._lock = threading.RLock()
        self._has_subscriber = False
        self._has_folder = False
        self._refused_s: dict[str, float] = {}
        """Since when each kind of write has been refused."""
        self._back_s = -_SOON_S
        self._every_s, self._try_s = limits.try_every_s, 0.0
        try:
            self._current = self._open_file(None)
        except UnwritableError as error:
            self._current = self._open_fallback(error, Numbering())

    @property
    def numbering(self) -> Numbering:
        """The numbers of the current database."""
        return self._current.numbering

    @property
    def has_subscriber(self) -> bool:
        """True if transcripts are published."""
        return self._has_subscriber

    @has_subscriber.setter
    def has_subscriber(self, value: bool) -> None:
        with self._lock:
            self._has_subscriber = self._current.has_subscriber = value

    @property
    def uses_fallback(self) -> bool:
        """True while transcripts are stored in memory only."""
        return self._current.path != self.path

    def read(self, doing: str, work: Work[T]) -> T:
        """Return the result of `work`, which gets the connection."""
        with self._lock:
            return self._current.read(doing, work)

    def write(self, doing: str, work: Work[T]) -> T:
        """Return the result of `work` after its commit; open the fallback if the file has refused
        for too long."""
        with self._lock:
            try:
                result = self._current.write(doing, work)
            except UnwritableError as error:
                since_s = self._refused_s.setdefault(doing, time.monotonic())
                if self.uses_fallback or time.monotonic() - since_s < self._limits.refuses_s:
                    raise
                fallback = self._open_fallback(error, self._current.numbering)
                self._current.close()
                self._current = fallback
                result = fallback.write(doing, work)
            self._refused_s.pop(doing, None)
            return result

    def vacuum(self, wait_s: float = 0.0, *, rewrite: bool = False) -> bool:
        """Remove deleted text from the files; see Database.vacuum."""
        with self._lock:
            return self._current.vacuum(wait_s, rewrite=rewrite)

    def is_current(self) -> bool:
        """Return True while the open file is the one with its name."""
        return self._current.is_current()

    def poll(self) -> None:
        """Return to the file if it is time for an attempt and the file can be written."""
        with self._lock:
            if self.uses_fallback and time.monotonic() >= self._try_s:
                self._return_to_file()

    def close(self) -> None:
        """Close the database; a fallback that cannot be merged stays for the next start."""
        with self._lock:
            if self.uses_fallback:
                self._return_to_file()
            if self.uses_fallback:
                log.error(
                    "%s: transcripts stay in memory. The next start of the daemon stores them, "
                    "unless the machine is switched off before",
                    self._fallback_path,
                )
            self._current.close()
            self._leave_folder()

    @property
    def _fallback_path(self) -> Path:
        return self._memory.path / self.path.name

    def _take_folder(self) -> bool:
        """Lock the folder in memory; return False if another daemon has it, or it cannot be."""
        try:
            if not self._has_folder:
                self._memory.take()
        except OSError as error:
            log.warning("%s: no log in memory: %s", self._memory.path, error.strerror or error)
            return False
        self._has_folder = True
        return True

    def _leave_folder(self) -> None:
        if self._has_folder:
            self._has_folder = False
            self._memory.leave()

    def _open_fallback(self, why: UnwritableError, numbering: Numbering) -> Database:
        """Open and return the fallback. Raises `why` if that is impossible."""
        if not self._take_folder():
            raise why
        scratch = sibling(self._fallback_path, ".copy")
        snapshot = read_snapshot(self.path, scratch, self._limits.taken)
        if numbering.highest and not snapshot.last:
            snapshot.highest = snapshot.cursor = 0  # our own count is better than the Unix time
        try:
            fallback = Database(self._fallback_path, AccessMode.OWNER)
            fallback.numbering.undelivered = numbering.undelivered
            fallback.numbering.raise_to(numbering.highest, numbering.cursor)
            fallback.write(
                "begin a log in memory",
                lambda connection: fill_fallback(connection, snapshot, fallback.numbering),
            )
        except StoreError as error:
            log.warning("no log in memory: %s", error)
            self._leave_folder()
            raise why from error
        fallback.has_subscriber = self._has_subscriber
        self._refused_s.clear()
        now_s = time.monotonic()
        if now_s - self._back_s < _SOON_S:
            self._every_s = min(self._every_s * 2, _LONGEST_PAUSE_S)
        else:
            self._every_s = self._limits.try_every_s
        self._try_s = now_s + self._every_s
        trouble = (
            f"{self.path} cannot be written: {why.found}. Until it can, transcripts are kept in "
            f"memory only and a power cut loses them; {why.fix}"
        )
        log.error("%s", trouble)
        self._report(trouble)
        return fallback

    def _open_file(self, fallback: Database | None) -> Database:
        """Open the file if it can be written, and merge the fallback. Raises StoreError."""
        with plain_errors(self.path, "open the log"):
            files.make_folder(self.path)
            files.probe(self.path)
        real = Database(self.path, AccessMode.OWNER)
        try:
            if fallback:
                self._merge_back(fallback, real)
            elif self._fallback_path.exists() and self._take_folder():
                self._merge_back(Database(self._fallback_path, AccessMode.OWNER), real)
        except BaseException:
            real.close()
            raise
        return real

    def _merge_back(self, fallback: Database, real: Database) -> None:
        """Merge the fallback into the file, then delete it. Raises StoreError."""
        published = fallback.numbering.highest if self._has_subscriber else 0
        count, deleted = fallback.read(
            "read the log in memory",
            lambda source: real.write(
                "store what was kept in memory",
                lambda target: (
                    merge(target, source, real.numbering, published),
                    forget_deleted(target, source),
                ),
            ),
        )
        if deleted:
            real.vacuum(rewrite=True)
        fallback.close()
        try:
            repair.delete_set_aside_files(self._fallback_path)
            files.delete(self._fallback_path)
        except OSError as error:
            log.warning(
                "%s: %s: it cannot be deleted and will be merged again",
                self._fallback_path,
                error.strerror,
            )
        self._leave_folder()
        log.info("%s: stored %d transcripts that were kept in memory", self.path, count)

    def _return_to_file(self) -> None:
        try:
            real = self._open_file(self._current)
        except StoreError:
            self._try_s = time.monotonic() + self._every_s
            return
        real.has_subscriber = self._has_subscriber
        self._current, self._back_s = real, time.monotonic()
        self._report(None)
