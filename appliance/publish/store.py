"""The local log: every transcript in one SQLite file, and how far the broker has been told.

Any thread may call any method: one connection, one lock, short statements. Another process (the
`log` command) reads the same file beside the daemon, which SQLite's write-ahead log allows.
Every failure is a PublishError of one line, leaves the file as it was before the call and the
store usable: the call can be tried again once the cause is gone.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType

from appliance.errors import PublishError
from appliance.publish import rows
from appliance.publish.rows import StoredTranscript
from appliance.records import Transcript
from appliance.settings import StoreSettings

FILE_NAME = "roomscribe.db"
SCHEMA = 1
"""Number of the file's layout, kept in its user_version; a higher one is refused."""
_BUSY_S = 5.0
"""How long a statement waits for another process's lock."""


class Store:
    """The open file. `append` returns after the commit is on the disk."""

    def __init__(self, path: Path, connection: sqlite3.Connection, retention_days: int) -> None:
        """Takes over `connection`; use Store.open."""
        self.path = path
        self._connection = connection
        self._retention = timedelta(days=retention_days)
        self._lock = threading.Lock()

    @classmethod
    def open(cls, settings: StoreSettings, *, read_only: bool = False) -> Store:
        """The store in the configured folder, made when missing and not `read_only`.

        Raises PublishError when the folder or file is missing (read_only), cannot be made, is no
        database, is damaged, or was written by a newer version.
        """
        path = folder(settings) / FILE_NAME
        with _plain_errors(path, "open the log"):
            if read_only and not path.exists():
                raise PublishError(
                    f"{path}: no such file; expected the log that `roomscribe run` writes; "
                    "run it first, or set store.path to the folder that holds the log"
                )
            if not read_only:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rw'}",
                uri=True,
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                _prepare(path, connection, read_only)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection, settings.retention_days)

    def append(self, transcript: Transcript) -> StoredTranscript:
        """Stores `transcript` and returns it with its number, once it is safe on the disk.

        The same id again is not stored twice, so that a failed append may simply be repeated.
        Raises PublishError (disk full, read-only, damaged, busy); nothing is stored then.
        """
        values = rows.to_row(transcript)
        with self._transaction("store a transcript") as connection:
            connection.execute(rows.INSERT, values)
            found = connection.execute(
                f"SELECT {rows.COLUMNS} FROM transcripts WHERE id = ?", (transcript.id,)
            )
            return rows.from_row(found.fetchone())

    def after(self, seq: int, limit: int = 100) -> list[StoredTranscript]:
        """At most `limit` transcripts numbered above `seq`, in order. Raises PublishError."""
        return self._select("WHERE seq > ? ORDER BY seq LIMIT ?", (seq, limit))

    def query(
        self, since: datetime | None = None, grep: str = "", limit: int = -1
    ) -> list[StoredTranscript]:
        """The newest `limit` (-1: all) that ended at or after `since` and contain `grep`.

        In order of their numbers. `grep` is plain text, upper and lower case of a-z alike.
        Raises PublishError.
        """
        pattern = grep.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        earliest = rows.iso(since) if since else ""
        return self._select(
            """WHERE "end" >= ? AND text LIKE ? ESCAPE '\\' ORDER BY seq DESC LIMIT ?""",
            (earliest, f"%{pattern}%", limit),
        )[::-1]

    def following(self, since: str | datetime, limit: int) -> list[StoredTranscript]:
        """The first `limit` behind the one of id `since`, or that ended at that time or later.

        In order of their numbers. An id that is not there any more stands for the time when it was
        made. Raises PublishError.
        """
        if isinstance(since, datetime):
            return self._select('WHERE "end" >= ? ORDER BY seq LIMIT ?', (rows.iso(since), limit))
        return self._select(rows.BEHIND, (since, limit))

    def cursor(self) -> int:
        """Number of the last transcript that the broker has, 0 at first. Raises PublishError."""
        return self._number("SELECT cursor FROM outbox")

    def move_cursor(self, seq: int) -> None:
        """Notes that the broker has all up to `seq`; never moves back. Raises PublishError."""
        with self._transaction("note what the broker has") as connection:
            connection.execute("UPDATE outbox SET cursor = max(cursor, ?)", (seq,))

    def depth(self) -> int:
        """How many transcripts the broker does not have yet. Raises PublishError."""
        return self._number("SELECT count(*) FROM transcripts, outbox WHERE seq > cursor")

    def expire(self, now: datetime) -> int:
        """Deletes what ended longer ago than the retention; returns how many. Raises PublishError.

        Deleted text is overwritten in the file and in its write-ahead log. Whether the broker has
        it or not makes no difference: the retention is a promise to those who were heard.
        """
        if not self._retention:
            return 0
        with self._transaction("delete old transcripts") as connection:
            earliest = rows.iso(now - self._retention)
            deleted = connection.execute('DELETE FROM transcripts WHERE "end" < ?', (earliest,))
            count = deleted.rowcount
        if count:
            with self._lock, _plain_errors(self.path, "delete old transcripts"):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return count

    def close(self) -> None:
        """Closes the file; the store is of no use afterwards."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """All or nothing, with the lock held. Raises PublishError."""
        with self._lock, _plain_errors(self.path, doing):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite has rolled back by itself when full
                    self._connection.execute("ROLLBACK")
                raise

    def _select(self, clause: str, values: tuple[object, ...]) -> list[StoredTranscript]:
        with self._lock, _plain_errors(self.path, "read the log"):
            sql = f"SELECT {rows.COLUMNS} FROM transcripts {clause}"
            return [rows.from_row(row) for row in self._connection.execute(sql, values)]

    def _number(self, sql: str) -> int:
        with self._lock, _plain_errors(self.path, "read the log"):
            return int(self._connection.execute(sql).fetchone()[0])


def folder(settings: StoreSettings) -> Path:
    """Where the store lives: store.path, else systemd's state directory, else the user's own."""
    if settings.path:
        return Path(settings.path).expanduser()
    given = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    return Path("~/.local/state/roomscribe").expanduser()


def _prepare(path: Path, connection: sqlite3.Connection, read_only: bool) -> None:
    """Sets the connection up and makes the tables of a new file, all of them or none."""
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found > SCHEMA:
        raise PublishError(
            f"{path}: expected schema {SCHEMA} or older, found {found}, which a newer Roomscribe "
            "wrote; install that version again, or move the file away to begin a new one"
        )
    if read_only:
        connection.execute("SELECT 1 FROM transcripts LIMIT 1")
        return
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON").fetchall()
    if found == 0:
        connection.executescript(
            f"BEGIN IMMEDIATE; {rows.TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;"
        )
    connection.execute("SELECT cursor FROM outbox").fetchone()


_FOUND_AND_CURE = {
    "SQLITE_FULL": ("a full disk", "free some space"),
    "SQLITE_READONLY": ("a read-only one", "make the disk and file writable, or set store.path"),
    "SQLITE_CANTOPEN": (
        "one that cannot be opened",
        "give this user the folder, or set store.path",
    ),
    "SQLITE_PERM": ("no permission", "give this user the folder, or set store.path"),
    "SQLITE_NOTADB": ("another kind of file", "move it away; a new log is begun then"),
    "SQLITE_CORRUPT": ("a damaged one", "move it away (`sqlite3 FILE .recover` rescues its text)"),
    "SQLITE_BUSY": ("one locked by another program", "end that program"),
    "SQLITE_IOERR": ("a disk that fails", "check its space and health"),
}


@contextmanager
def _plain_errors(path: Path, doing: str) -> Iterator[None]:
    """SQLite's and the system's errors as one clear PublishError."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        kinds = (kind for kind in _FOUND_AND_CURE if name.startswith(kind))
        found, cure = _FOUND_AND_CURE.get(next(kinds, ""), (str(error), "see the message"))
        raise PublishError(
            f"{path}: cannot {doing}: expected a writable SQLite database, "
            f"found {found} ({error}); {cure}"
        ) from error
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PublishError(
            f"{path}: cannot {doing}: expected a folder and file that this user may write, "
            f"found: {reason}; give this user the folder, or set store.path to another"
        ) from error
