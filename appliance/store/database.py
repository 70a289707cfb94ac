"""The open file: kept open, and found again when it is damaged, deleted or replaced.

Knows nothing of what is asked of it: `read` and `write` are given the work as functions.
"""

from __future__ import annotations

import enum
import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from appliance.errors import StoreError
from appliance.store import files, repair, tables
from appliance.store.files import (
    DamagedError,
    Identity,
    connect,
    identity,
    is_damage,
    plain_errors,
    sibling,
)

log = logging.getLogger("roomscribe.store")
T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BUSY_S = 5.0
"""How long a statement waits for another process's lock."""
_CACHE_KIB = 512
"""Of pages in memory; SQLite's own 2 MiB fill within weeks and look like a leak."""
_WAL_HEADER = 32
"""Bytes at the beginning of a -wal file that make it valid (SQLite's file format, 4.1)."""
_VACUUM_AGAIN_S = 60.0
"""A reader kept the -wal file in use: emptied with the first write after so long."""


class AccessMode(enum.Enum):
    """On whose behalf the file is open."""

    OWNER = "owner"
    """The daemon: makes the file, brings its layout up to date, and heals it."""
    GUEST = "guest"
    """Writes into the file that is there, beside a daemon that may be older."""
    READER = "reader"


class Database:
    """One connection and one lock: any thread may call any method. Everything raises StoreError.

    Nothing is half done when a call fails, and the call can be tried again once the cause is gone.
    """

    def __init__(self, path: Path, access: AccessMode, busy_s: float = BUSY_S) -> None:
        """Opens the file; refuses one that is missing (unless the owner) or newer."""
        self.path, self.numbering = path, repair.Numbering()
        self._busy_s = busy_s
        self.has_subscriber = False
        """Somebody tells a broker: what it does not have survives the file's deletion."""
        self.connection: sqlite3.Connection | None = None
        self._access = access
        self._lock = threading.RLock()
        self._identity: Identity | None = None
        self._wal: Identity | None = None
        self._carried: list[tables.Row] = []
        self._vacuum_s = math.inf
        self._closed = self._unchanging = self._rewrite = False
        self._sudo = "" if access is AccessMode.OWNER else files.SUDO
        with plain_errors(path, "open the log", self._sudo):
            self._open()

    def read(self, doing: str, work: Work[T]) -> T:
        """What `work` makes of the file."""
        return self._do(doing, lambda: work(self._ready()))

    def write(self, doing: str, work: Work[T]) -> T:
        """What `work` returns, once what it did is safe on the disk; all of it or nothing."""

        def transaction() -> T:
            self._look_for_the_file()
            with tables.transaction(self._ready()) as connection:
                return work(connection)

        with self._lock:
            result = self._do(doing, transaction)
            if time.monotonic() >= self._vacuum_s:
                self.vacuum()
            return result

    def vacuum(self, wait_s: float = 0.0, *, rewrite: bool = False) -> bool:
        """Moves the -wal file's pages into the file and empties it; False when a reader is in the
        way, or the disk is full, and until then deleted text may be read in one of the two.

        `rewrite` makes a new file of what is there: rows that moved when others were deleted leave
        copies in their former pages, which secure_delete does not know of. What was not done is
        tried again with a later write. Raises nothing.
        """
        with self._lock, suppress(sqlite3.Error, StoreError):
            self._vacuum_s = time.monotonic() + _VACUUM_AGAIN_S
            self._rewrite |= rewrite
            connection = self._ready()
            connection.execute(f"PRAGMA busy_timeout = {wait_s * 1000:.0f}")
            try:
                if self._rewrite:
                    # first the pages that were freed, which are zeros now, go into the file: VACUUM
                    # cuts off its end, with what stands there
                    if not self._empty_wal(connection):
                        return False
                    connection.execute("VACUUM")
                    self._rewrite = False
                done = self._empty_wal(connection)
            finally:
                connection.execute(f"PRAGMA busy_timeout = {self._busy_s * 1000:.0f}")
            if done:
                self._vacuum_s = math.inf
            return done
        return False

    def _empty_wal(self, connection: sqlite3.Connection) -> bool:
        """Move the -wal file's pages into the file, overwrite them and truncate it; False if a
        reader is in the way. Raises sqlite3.Error.

        The pages may be overwritten once all of them are in the file and nobody writes. The header
        goes first: without it SQLite ignores the rest, whatever a crash leaves of that.
        """
        seen = "PRAGMA data_version"
        before = tables.number(connection, seen)
        if tables.number(connection, "PRAGMA wal_checkpoint(RESTART)") != 0:
            return False
        with suppress(OSError):
            connection.execute("BEGIN IMMEDIATE")
            try:
                # another process may have written since, into pages that are not in the file
                if tables.number(connection, seen) == before:
                    wal = sibling(self.path, "-wal")
                    files.overwrite(wal, upto=_WAL_HEADER)
                    files.overwrite(wal)
            finally:
                connection.execute("ROLLBACK")
        return tables.number(connection, "PRAGMA wal_checkpoint(TRUNCATE)") == 0

    def is_current(self) -> bool:
        """True while the file that is open is the one of its name, and seen as it changes."""
        with suppress(OSError):
            return not self._unchanging and self._identity == identity(self.path)
        return False

    def close(self) -> None:
        """Closes the file for good."""
        with self._lock:
            self._closed = True
            self._let_go()

    def _let_go(self) -> None:
        if self.connection:
            self.connection.close()
        self.connection = None

    def _do(self, doing: str, step: Callable[[], T]) -> T:
        """`step`, and once more in a whole file when the owner met a damaged one."""
        with self._lock, plain_errors(self.path, doing, self._sudo):
            try:
                return step()
            except (sqlite3.Error, ValueError) as error:
                if self._access is not AccessMode.OWNER or not is_damage(error):
                    raise
                self._let_go()
                repair.heal(self.path, self.numbering, error)
                return step()

    def _ready(self) -> sqlite3.Connection:
        """The connection, opened again where it was let go of."""
        if self._closed:
            raise StoreError(f"{self.path}: the log is closed already")
        return self.connection or self._open()

    def _open(self) -> sqlite3.Connection:
        if self._access is not AccessMode.OWNER:
            return self._connect()
        files.make_folder(self.path)
        repair.finish(self.path)
        files.make(self.path)
        try:
            return self._connect()
        except (sqlite3.Error, ValueError) as error:
            if not is_damage(error):
                raise
            repair.heal(self.path, self.numbering, error)
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        """Raises what SQLite raises, DamagedError, and StoreError for a newer file or none."""
        if self._access is not AccessMode.OWNER and not self.path.exists():
            raise StoreError(
                f"{self.path}: no such file; expected the log that `roomscribe run` writes; "
                "run it first, or set store.path to the folder that holds the log"
            )
        write = self._access is not AccessMode.READER
        connection, self._unchanging = connect(self.path, write=write, busy_s=self._busy_s)
        try:
            connection.create_function("contains", 2, tables.contains, deterministic=True)
            tables.refuse_newer(self.path, tables.version(connection))
            connection.execute("PRAGMA secure_delete = ON").fetchall()
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            if self._access is AccessMode.OWNER:
                self._take_over(connection)
            else:
                connection.execute("SELECT 1 FROM transcripts LIMIT 1").fetchone()
        except BaseException:
            connection.close()
            raise
        self._identity = identity(self.path)
        self._wal = identity(sibling(self.path, "-wal"))
        self.connection = connection
        if self._access is AccessMode.OWNER:
            self.vacuum()  # deleted text that a crash left behind
        return connection

    def _take_over(self, connection: sqlite3.Connection) -> None:
        """Checks the file, brings its layout and numbers up to date, and what was carried over."""
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = FULL")
        if tables.version(connection) and (trouble := repair.check(connection)):
            raise DamagedError(trouble)
        try:
            tables.migrate(connection)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_FULL" or not tables.version(connection):
                raise
            log.warning("%s keeps its older layout for now: the disk is full", self.path)
        with tables.transaction(connection):
            fresh = connection.execute("SELECT 1 FROM transcripts LIMIT 1").fetchone() is None
            repair.continue_numbering(connection, self.numbering)
            for row in self._carried:  # another file's transcripts may have their numbers
                if fresh:
                    connection.execute(tables.insert_numbered(connection), row)
                else:
                    connection.execute(tables.insert(connection), row[1:])
        self._carried = []

    def _look_for_the_file(self) -> None:
        """Goes on in a new file when the present one was deleted, moved or replaced."""
        if self._access is not AccessMode.OWNER or self.connection is None:
            return
        found, wal = identity(self.path), identity(sibling(self.path, "-wal"))
        if found == self._identity and wal == self._wal:
            return
        if found == self._identity:
            log.error("%s-wal was deleted while it was open: going on in a new one", self.path)
            self.vacuum()
            self._let_go()
            return
        self._carried = repair.read_undelivered(self.connection) if self.has_subscriber else []
        log.error(
            "%s was %s while it was open: going on in it with number %d; %d transcripts that no "
            "broker has were carried over",
            self.path,
            "replaced" if found else "deleted",
            self.numbering.highest + 1,
            len(self._carried),
        )
        # closed before the new one is opened: both would use the -shm file of the same name
        self._let_go()
        if found is None or wal == self._wal:
            for ending in ("-wal", "-shm"):
                with suppress(OSError):
                    sibling(self.path, ending).unlink(missing_ok=True)
