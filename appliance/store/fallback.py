"""The fallback: a log in memory that holds what is new while the disk refuses the log's file.

If a card turns read-only, a disk is full, a folder is missing or another program keeps the file
locked, transcripts are stored in a folder in memory and published from there. When the file can be
written again, they are appended to it and the fallback is deleted. If the process crashes before
that, the next start appends them. What the file had is not in the fallback, except what this
process has not published yet.
"""

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from appliance.config import Settings
from appliance.errors import StoreError
from appliance.store import files, repair, tables
from appliance.store.database import AccessMode, Database, Work
from appliance.store.files import UnwritableError, plain_errors
from appliance.store.folders import MemoryFolder, runtime_folders
from appliance.store.repair import Numbering
from appliance.store.tables import Row

log = logging.getLogger("roomscribe.store")
T = TypeVar("T")

NAME = "log"
TRY_EVERY_S = 10.0
"""Seconds between two attempts to return to the file."""
_COPIES = "CREATE TABLE IF NOT EXISTS copied (id TEXT PRIMARY KEY)"
"""Ids of the unpublished transcripts that the fallback got from the file."""


def fallback_folders(settings: Settings) -> list[Path]:
    """Return the daemon's folder for the fallback, then others where a reader may find one."""
    return [folder / NAME for folder in runtime_folders(settings)]


def fill_fallback(
    connection: sqlite3.Connection, numbering: Numbering, unpublished: Sequence[Row]
) -> None:
    """Make the fallback continue the log's numbers, within a transaction.

    It gets what is not published yet, so that the publisher finds that in order.
    """
    connection.execute(_COPIES)
    for row in unpublished:
        connection.execute("INSERT OR IGNORE INTO copied VALUES (?)", (row[1],))
        connection.execute(tables.INSERT_NUMBERED, row)
    repair.continue_numbering(connection, numbering)


def append_back(
    target: sqlite3.Connection, source: sqlite3.Connection, numbering: Numbering, published: int
) -> tuple[int, int]:
    """Append the transcripts of the fallback `source` to the log, within a transaction.

    Return how many were new, and how many were deleted in the log because they were deleted in
    memory. `published` is the highest number that the publisher may have reached in the fallback.
    Transcripts keep their numbers if possible; the others get new ones after all others. An id that
    the log has is not stored again.
    """
    source.execute(_COPIES)
    copied = {id for (id,) in source.execute("SELECT id FROM copied")}
    kept = {id for (id,) in source.execute("SELECT id FROM transcripts")}
    cursor, own = tables.number(target, tables.CURSOR), tables.number(source, tables.CURSOR)
    last = tables.number(target, tables.HIGHEST)
    # The publisher went on in the fallback, past numbers that only the file had. The broker never
    # got them: store them again under new numbers, which the cursor has not passed.
    beyond = f"{tables.SELECT} WHERE seq > ? AND seq <= ? ORDER BY seq"
    passed = target.execute(beyond, (cursor, max(published, own))).fetchall()
    again = [row for row in passed if row[1] not in kept | copied]
    target.executemany("DELETE FROM transcripts WHERE seq = ?", [row[:1] for row in again])
    numbering.raise_to(tables.number(source, tables.HIGHEST), own)
    repair.continue_numbering(target, numbering)
    for row in source.execute(f"{tables.SELECT} ORDER BY seq"):
        seq, id = row[:2]
        if id in copied and seq <= last:
            continue  # the file has it, unless somebody deleted it there
        # keep the number if it is free, unless this is unpublished and the cursor has passed it
        may_keep = seq <= own or seq > cursor
        if not may_keep or not target.execute(tables.INSERT_NUMBERED, row).rowcount:
            again.append(row)
    target.executemany(tables.INSERT, [row[1:] for row in again])
    repair.continue_numbering(target, numbering)
    corrected = "SELECT id, correction FROM transcripts WHERE correction IS NOT NULL"
    for id, text in source.execute(corrected).fetchall():
        tables.correct(target, id, text)
    condition = "id IN (SELECT value FROM json_each(?))"
    gone = tables.forget(target, condition, (json.dumps([*copied - kept]),))
    return len(kept - copied), gone


class DatabaseWithFallback:
    """A Database that uses its file or, while that cannot be written, the fallback. Any thread."""

    def __init__(
        self,
        path: Path,
        memory: MemoryFolder,
        report: Callable[[str | None], object],
        try_every_s: float = TRY_EVERY_S,
        *,
        has_subscriber: bool = True,
    ) -> None:
        """Open the file and append a fallback that is left over; else open a fallback.

        `report` is called with the problem when the fallback is opened, and with None when the file
        is back. Without `has_subscriber` nothing is published.

        Raises StoreError if another attempt would not help, or without memory.
        """
        self.path = path
        self._memory, self._report = memory, report
        self._lock = threading.RLock()
        self.has_subscriber = has_subscriber
        self._has_folder = False
        self._try_every_s, self._try_s = try_every_s, 0.0
        try:
            self._current = self._open_file(None)
        except UnwritableError as error:
            self._current = self._open_fallback(error, None)

    @property
    def numbering(self) -> Numbering:
        """The numbers of the current database."""
        return self._current.numbering

    @property
    def uses_fallback(self) -> bool:
        """True while transcripts are stored in memory only."""
        return self._current.path != self.path

    @property
    def is_rewriting(self) -> bool:
        """True while the whole file is rewritten, and every caller has to wait for that."""
        return self._current.is_rewriting

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
                fallback = self._open_fallback(error, self._current)
                self._current.close()
                self._current = fallback
                return fallback.write(doing, work)

    def vacuum(self, wait_s: float = 0.0, *, rewrite: bool = False) -> bool:
        """Remove deleted text from the files; see Database.vacuum."""
        with self._lock:
            return self._current.vacuum(wait_s, rewrite=rewrite)

    def poll(self) -> None:
        """Return to the file if it is time for an attempt and the file can be written."""
        with self._lock:
            if self.uses_fallback and time.monotonic() >= self._try_s:
                self._return_to_file()

    def close(self) -> None:
        """Close the database; a fallback that cannot be appended stays for the next start."""
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

    def _open(self, path: Path) -> Database:
        return Database(path, AccessMode.OWNER, has_subscriber=self.has_subscriber)

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

    def _open_fallback(self, why: UnwritableError, file: Database | None) -> Database:
        """Open and return the fallback; `file` is open, but refuses. Raises `why` if that is
        impossible."""
        if not self._take_folder():
            raise why
        try:
            fallback = self._open(self._fallback_path)
            known, unpublished = fallback.numbering, list[Row]()
            if file:
                known.undelivered = file.numbering.undelivered
                known.raise_to(file.numbering.highest, file.numbering.cursor)
                if file.connection and self.has_subscriber:
                    unpublished = repair.read_undelivered(file.connection)
            elif not known.highest:
                # above all numbers of the file: nobody says a sentence every second
                now = int(time.time())
                known.raise_to(now, now if self.has_subscriber else 0)
            fallback.write(
                "begin a log in memory",
                lambda connection: fill_fallback(connection, known, unpublished),
            )
        except StoreError as error:
            log.warning("no log in memory: %s", error)
            self._leave_folder()
            raise why from error
        self._try_s = time.monotonic() + self._try_every_s
        trouble = (
            f"{self.path} cannot be written: {why.found}. Until it can, transcripts are kept in "
            f"memory only and a power cut loses them; {why.fix}"
        )
        log.error("%s", trouble)
        self._report(trouble)
        return fallback

    def _open_file(self, fallback: Database | None) -> Database:
        """Open the file if it can be written, and append the fallback. Raises StoreError."""
        with plain_errors(self.path, "open the log"):
            files.make_folder(self.path)
            files.probe(self.path)
        real = self._open(self.path)
        try:
            if fallback:
                # the publisher may have reached all of it
                reached = fallback.numbering.highest if self.has_subscriber else 0
                self._append_back(fallback, real, reached)
            elif self._fallback_path.exists() and self._take_folder():
                self._append_back(self._open(self._fallback_path), real, 0)
        except BaseException:
            real.close()
            raise
        return real

    def _append_back(self, fallback: Database, real: Database, published: int) -> None:
        """Append the fallback to the file, then delete it. Raises StoreError."""
        count, deleted = fallback.read(
            "read the log in memory",
            lambda source: real.write(
                "store what was kept in memory",
                lambda target: append_back(target, source, real.numbering, published),
            ),
        )
        if deleted:
            real.vacuum(rewrite=True)
        fallback.close()
        try:
            repair.delete_set_aside_files(self._fallback_path)
            files.delete(self._fallback_path)
        except OSError as error:
            why = f"{error.strerror}: it cannot be deleted and will be appended again"
            log.warning("%s: %s", self._fallback_path, why)
        self._leave_folder()
        log.info("%s: stored %d transcripts that were kept in memory", self.path, count)

    def _return_to_file(self) -> None:
        try:
            real = self._open_file(self._current)
        except StoreError:
            self._try_s = time.monotonic() + self._try_every_s
            return
        self._current = real
        self._report(None)
