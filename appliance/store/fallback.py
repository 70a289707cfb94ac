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
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
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
"""Bytes; of a larger file that cannot be written, nothing is read."""
TAKEN = 1000
"""Newest transcripts that are copied into the fallback; older unpublished ones wait."""
TRY_EVERY_S = 10.0
"""Seconds between two attempts to return to the file."""
_BUSY_S = 1.0
_LONGEST_PAUSE_S = 600.0
_SOON_S = 60.0
"""If the file fails again within this time after a return to it, the pauses double."""


def fallback_folders(settings: Settings) -> list[Path]:
    """Return the daemon's folder for the fallback, then others where a reader may find one."""
    return [folder / NAME for folder in runtime_folders(settings)]


def read_log(path: Path, scratch: Path) -> tuple[Numbering, list[Row]]:
    """Return the numbers of a log that cannot be written, and its newest transcripts in order.

    `scratch` names a temporary copy in memory. SQLite maps a file beside the log, and the process
    would die if the disk failed under it, so the copy is opened instead. If nothing can be read,
    the numbers continue from the Unix time, which is above all others; unpublished transcripts of
    the file are then published after the merge. Raises StoreError for the file of another version.
    """
    try:
        if path.stat().st_size > _COPIED:
            raise OSError
        files.make(scratch)
        files.copy(path, scratch)
        with closing(files.connect(scratch, write=True, busy_s=_BUSY_S)[0]) as source:
            tables.refuse_other(path, tables.version(source))
            cursor = tables.number(source, tables.CURSOR)
            highest = max(tables.number(source, tables.HIGHEST), cursor)
            rows = []
            for row in source.execute(f"{tables.SELECT} ORDER BY seq DESC LIMIT ?", (TAKEN,)):
                with suppress(tables.DamagedRowError):
                    tables.from_row(row)
                    rows.append(row)
            return Numbering(highest, cursor), rows[::-1]
    except (OSError, sqlite3.Error, UnicodeDecodeError):
        return Numbering(int(time.time()), int(time.time())), []
    finally:
        files.delete(scratch)


def fill_fallback(
    connection: sqlite3.Connection, rows: Sequence[Row], numbering: Numbering
) -> None:
    """Make the fallback continue the log's numbers, within a transaction.

    A new one gets `rows`, the log's newest transcripts, so that unpublished ones are published. The
    table `copied` records their ids for the merge.
    """
    if not _has_table(connection):
        rows = [*rows, *numbering.fresh()]
        connection.execute("CREATE TABLE copied (id TEXT PRIMARY KEY)")
        insert = "INSERT OR IGNORE INTO copied VALUES (?)"
        connection.executemany(insert, ((row[1],) for row in rows))
        with tables.indexed_at_once(connection):
            connection.executemany(tables.INSERT_NUMBERED, rows)
    repair.continue_numbering(connection, numbering)


def merge(
    target: sqlite3.Connection, source: sqlite3.Connection, numbering: Numbering, published: int
) -> tuple[int, int]:
    """Put the transcripts of the fallback `source` into the log, within a transaction.

    Return how many were stored, and how many deleted in the log because they were deleted in
    memory. `published` is the highest number that the publisher may have
    reached in the fallback. Transcripts keep their numbers if possible; the others get new ones
    after all others. An id that the log has is not stored again.
    """
    cursor, own = tables.number(target, tables.CURSOR), tables.number(source, tables.CURSOR)
    last = tables.number(target, tables.HIGHEST)
    copied = _copied(source)
    kept = {id for (id,) in source.execute("SELECT id FROM transcripts")}
    # The publisher's cursor moved on in the fallback, past numbers that only the file had. The
    # broker never got them: store them again under new numbers, which the cursor has not passed.
    beyond = f"{tables.SELECT} WHERE seq > ? AND seq <= ? ORDER BY seq"
    passed = target.execute(beyond, (cursor, max(published, own))).fetchall()
    unseen = [row for row in passed if row[1] not in kept | copied]
    numbering.raise_to(tables.number(source, tables.HIGHEST), own)
    repair.continue_numbering(target, numbering)
    for row in unseen:
        target.execute("DELETE FROM transcripts WHERE seq = ?", (row[0],))
    count = 0
    for row in source.execute(f"{tables.SELECT} ORDER BY seq"):
        seq, id = row[:2]
        # Copied from the file when the fallback was opened: if the file lacks it now, somebody
        # deleted it there, unless the file lost its newest and the broker does not have this one.
        deleted = id in copied and (seq <= last or seq <= own)
        if deleted or _has(target, "id", id):
            continue
        count += 1
        # keep the number if it is free, unless this is unpublished and the cursor has passed it
        if (seq <= own or seq > cursor) and not _has(target, "seq", seq):
            target.execute(tables.INSERT_NUMBERED, row)
        else:
            unseen.append(row)
    target.executemany(tables.INSERT, [row[1:] for row in unseen])
    repair.continue_numbering(target, numbering)
    corrected = "SELECT id, correction FROM transcripts WHERE correction IS NOT NULL"
    for id, text in source.execute(corrected).fetchall():
        tables.correct(target, id, text)
    condition = "id IN (SELECT value FROM json_each(?))"
    return count, tables.forget(target, condition, (json.dumps([*copied - kept]),))


def _copied(source: sqlite3.Connection) -> set[str]:
    """Return the ids that the fallback got from the file."""
    if not _has_table(source):
        return set()
    return {id for (id,) in source.execute("SELECT id FROM copied")}


def _has_table(source: sqlite3.Connection) -> bool:
    named = "SELECT 1 FROM sqlite_schema WHERE name = 'copied'"
    return source.execute(named).fetchone() is not None


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
        try_every_s: float = TRY_EVERY_S,
    ) -> None:
        """Open the file and merge a fallback that is left over; else open a fallback.

        `report` is called with the problem when the fallback is opened, and with None when the file
        is back. Raises StoreError if another attempt would not help, or without memory.
        """
        self.path = path
        self._memory, self._report = memory, report
        self._lock = threading.RLock()
        self._has_subscriber = False
        self._has_folder = False
        self._back_s = -_SOON_S
        self._least_s = self._every_s = try_every_s
        self._try_s = 0.0
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
        """Return the result of `work` after its commit; in the fallback if the file refuses."""
        with self._lock:
            try:
                return self._current.write(doing, work)
            except UnwritableError as error:
                if self.uses_fallback:
                    raise
                fallback = self._open_fallback(error, self._current.numbering)
                self._current.close()
                self._current = fallback
                return fallback.write(doing, work)

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
        found, rows = read_log(self.path, sibling(self._fallback_path, ".copy"))
        if numbering.highest and not rows:
            found = numbering  # our own count is better than the Unix time
        try:
            fallback = Database(self._fallback_path, AccessMode.OWNER)
            fallback.numbering.undelivered = numbering.undelivered
            fallback.numbering.raise_to(numbering.highest, numbering.cursor)
            fallback.numbering.raise_to(found.highest, found.cursor)
            fallback.write(
                "begin a log in memory",
                lambda connection: fill_fallback(connection, rows, fallback.numbering),
            )
        except StoreError as error:
            log.warning("no log in memory: %s", error)
            self._leave_folder()
            raise why from error
        fallback.has_subscriber = self._has_subscriber
        now_s = time.monotonic()
        if now_s - self._back_s < _SOON_S:
            self._every_s = min(self._every_s * 2, _LONGEST_PAUSE_S)
        else:
            self._every_s = self._least_s
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
                lambda target: merge(target, source, real.numbering, published),
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
