"""The open file: repaired if it is damaged, opened again if it is deleted or replaced.

`read` and `write` get the work as functions; this module knows no queries.
"""

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
from appliance.store.files import Identity, connect, identity, is_damage, plain_errors, sibling

log = logging.getLogger("roomscribe.store")
T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BUSY_S = 5.0
"""Longest wait of a statement for another process's lock."""
_CACHE_KIB = 512
"""Page cache; SQLite's default of 2 MiB fills within weeks and looks like a leak."""
_WAL_HEADER = 32
"""Bytes at the beginning of a -wal file that make it valid (SQLite's file format, 4.1)."""
REWRITE_WITHIN_S = 600.0
"""Longest time that a rewrite of the file may take: 512 MB on the slowest card."""
_VACUUM_AGAIN_S = 60.0
"""If a reader used the -wal file, the first write after this time empties it."""


class AccessMode(enum.Enum):
    """Who uses the file."""

    OWNER = "owner"
    """The daemon: creates the file and repairs it."""
    GUEST = "guest"
    """Another process that writes into the existing file, beside the daemon."""
    READER = "reader"


class Database:
    """One connection and one lock: any thread may call any method. Everything raises StoreError.

    A call that fails changes nothing, and may be repeated once the cause is gone.
    """

    def __init__(
        self,
        path: Path,
        access: AccessMode,
        busy_s: float = BUSY_S,
        steps: tables.Steps = tables.STEPS,
        *,
        has_subscriber: bool = True,
    ) -> None:
        """Open the file; refuse a newer one, and a missing one unless for the OWNER, who brings one
        of an older version up to date with `steps`. If transcripts are published, unpublished ones
        survive the file's deletion."""
        self.path, self.numbering = path, repair.Numbering()
        self._busy_s, self._steps = busy_s, steps
        self.has_subscriber = has_subscriber and access is AccessMode.OWNER
        self.connection: sqlite3.Connection | None = None
        self._access = access
        self._lock = threading.RLock()
        self._identity: Identity | None = None
        self._wal: Identity | None = None
        self._carried: list[tables.Row] = []
        self._vacuum_s, self._rewrite_s = math.inf, -math.inf
        self._closed = self._rewrite = False
        self._sudo = "" if access is AccessMode.OWNER else files.SUDO
        with plain_errors(path, "open the log", self._sudo):
            self._open()

    @property
    def is_rewriting(self) -> bool:
        """True while the whole file is rewritten, and every caller has to wait for that."""
        return time.monotonic() - self._rewrite_s < REWRITE_WITHIN_S

    def read(self, doing: str, work: Work[T]) -> T:
        """Return the result of `work`, which gets the connection."""
        return self._do(doing, lambda: work(self._connected()))

    def write(self, doing: str, work: Work[T]) -> T:
        """Return the result of `work` once it is safe on the disk; all of it or nothing."""

        def transaction() -> T:
            self._follow_file()
            with tables.transaction(self._connected()) as connection:
                return work(connection)

        with self._lock:
            result = self._do(doing, transaction)
            if time.monotonic() >= self._vacuum_s:
                self.vacuum()
            return result

    def vacuum(self, wait_s: float = 0.0, *, rewrite: bool = False) -> bool:
        """Remove deleted text: move the -wal file's pages into the file and empty it.

        Return False if a reader or a full disk prevents that; deleted text may still be in one of
        the two files then, and a later write tries again. `rewrite` also rewrites the whole file:
        rows that moved when others were deleted left copies in their former pages, which
        secure_delete does not overwrite. Raises nothing.
        """
        with self._lock, suppress(sqlite3.Error, StoreError):
            self._vacuum_s = time.monotonic() + _VACUUM_AGAIN_S
            self._rewrite |= rewrite
            connection = self._connected()
            connection.execute(f"PRAGMA busy_timeout = {wait_s * 1000:.0f}")
            try:
                if self._rewrite:
                    # first write the freed pages, which are zeros now, into the file: VACUUM
                    # cuts off its end with whatever is there
                    if not self._empty_wal(connection):
                        return False
                    self._rewrite_s = time.monotonic()
                    connection.execute("VACUUM")
                    self._rewrite = False
                done = self._empty_wal(connection)
            finally:
                self._rewrite_s = -math.inf
                connection.execute(f"PRAGMA busy_timeout = {self._busy_s * 1000:.0f}")
            if done:
                self._vacuum_s = math.inf
            return done
        return False

    def _empty_wal(self, connection: sqlite3.Connection) -> bool:
        """Move the -wal file's pages into the file, overwrite them and truncate it.

        Return False if a reader prevents that. The pages may be overwritten once all of them are in
        the file and nobody writes. The header is overwritten first: without it SQLite ignores the
        rest, whatever a crash leaves of that. Raises sqlite3.Error.
        """
        seen = "PRAGMA data_version"
        before = tables.number(connection, seen)
        if tables.number(connection, "PRAGMA wal_checkpoint(RESTART)") != 0:
            return False
        with suppress(OSError):
            connection.execute("BEGIN IMMEDIATE")
            try:
                # another process may have written pages since that are not in the file yet
                if tables.number(connection, seen) == before:
                    wal = sibling(self.path, "-wal")
                    files.overwrite(wal, upto=_WAL_HEADER)
                    files.overwrite(wal)
            finally:
                connection.execute("ROLLBACK")
        return tables.number(connection, "PRAGMA wal_checkpoint(TRUNCATE)") == 0

    def close(self) -> None:
        """Close the file for good."""
        with self._lock:
            self._closed = True
            self._let_go()

    def _let_go(self) -> None:
        if self.connection:
            self.connection.close()
        self.connection = None

    def _do(self, doing: str, step: Callable[[], T]) -> T:
        """Return the result of `step`; if the file is damaged, repair it and try again."""
        with self._lock, plain_errors(self.path, doing, self._sudo):
            try:
                return step()
            except (sqlite3.Error, ValueError) as error:
                if self._access is not AccessMode.OWNER or not is_damage(error):
                    raise
                self._let_go()
                repair.heal(self.path, self.numbering, error)
                return step()

    def _connected(self) -> sqlite3.Connection:
        """Return the connection; open it again if it was closed."""
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
        """Connect. Raises sqlite3.Error, DamagedError; StoreError for a newer file or none."""
        if self._access is not AccessMode.OWNER and not self.path.exists():
            raise StoreError(
                f"{self.path}: there is no log; run the daemon first (`roomscribe run`), or set "
                "store.path to the folder with the log"
            )
        mode = "ro" if self._access is AccessMode.READER else "rw"
        connection = connect(self.path, mode, self._busy_s)
        try:
            connection.create_function("contains", 2, tables.contains, deterministic=True)
            connection.create_function("has_words", 2, tables.has_words, deterministic=True)
            found, owner = tables.version(connection), self._access is AccessMode.OWNER
            tables.refuse_other(self.path, found, self._steps, migrates=owner)
            connection.execute("PRAGMA secure_delete = ON").fetchall()
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            if owner:
                self._prepare(connection)
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

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Check or create the tables, update the numbers, and insert what was carried over."""
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = FULL")
        if tables.version(connection) and (trouble := repair.check(connection)):
            raise tables.DamagedError(trouble)
        tables.create(connection)
        tables.migrate(connection, self._steps)
        with tables.transaction(connection):
            fresh = connection.execute("SELECT 1 FROM transcripts LIMIT 1").fetchone() is None
            repair.continue_numbering(connection, self.numbering)
            for row in self._carried:  # in another file, other transcripts may have their numbers
                if fresh:
                    connection.execute(tables.INSERT_NUMBERED, row)
                else:
                    connection.execute(tables.INSERT, row[1:])
        self._carried = []

    def _follow_file(self) -> None:
        """Continue in a new file if the open one was deleted, moved or replaced."""
        if self._access is not AccessMode.OWNER or self.connection is None:
            return
        found, wal = identity(self.path), identity(sibling(self.path, "-wal"))
        if found == self._identity:
            return
        self._carried = repair.read_undelivered(self.connection) if self.has_subscriber else []
        what, number = "replaced" if found else "deleted", self.numbering.highest + 1
        log.error(
            "%s was %s while it was open. The log continues with number %d; %d unpublished "
            "transcripts were carried over",
            *(self.path, what, number, len(self._carried)),
        )
        # close it before opening the new one: both would use the -shm file of the same name
        self._let_go()
        if found is None or wal == self._wal:
            for ending in ("-wal", "-shm"):
                with suppress(OSError):
                    sibling(self.path, ending).unlink(missing_ok=True)
