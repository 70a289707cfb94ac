"""Connections to the file: to write, to read beside a writer, and to read on a read-only disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from appliance.publish.store_files import beside


def connect(path: Path, *, write: bool, busy_s: float) -> tuple[sqlite3.Connection, bool]:
    """An open connection; the file must be there. True with it when it sees no changes.

    Readers of a log in SQLite's WAL mode make files beside it; on a disk that lets them not, the
    file is read as one that nobody changes, which it is there. Raises sqlite3.Error.
    """
    if write:
        return _connection(path, "mode=rw", busy_s), False
    connection = _connection(path, "mode=ro", busy_s)
    try:
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        wal = beside(path, "-wal")
        refused = error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))
        if not refused or (wal.exists() and wal.stat().st_size):
            raise
        return unchanging(path, busy_s), True
    except BaseException:
        connection.close()
        raise
    return connection, False


def unchanging(path: Path, busy_s: float) -> sqlite3.Connection:
    """A connection that sees the file without its -wal, and makes nothing beside it."""
    return _connection(path, "mode=ro&immutable=1", busy_s)


def _connection(path: Path, how: str, busy_s: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?{how}",
        uri=True,
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=False,
    )
