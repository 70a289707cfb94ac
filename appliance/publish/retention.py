"""What is deleted, and that it is gone: from the tables, the index, free pages and the -wal file.

With secure_delete SQLite overwrites what it frees. The search's index keeps deleted entries until
its parts are merged, which `forget` does in the same transaction (FTS5's own secure-delete needs
SQLite 3.42 and makes files that older ones cannot read).
"""

from __future__ import annotations

import math
import sqlite3
from datetime import datetime, timedelta

from appliance.config import StoreSettings
from appliance.publish import rows, schema
from appliance.publish.search import Wanted, where

_BEYOND = "seq <= (SELECT seq FROM transcripts ORDER BY seq DESC LIMIT 1 OFFSET ?)"
"""All but so many of the newest."""
_ROUNDS = 8
"""Deleting by size goes by the average row; so often it is tried again at most."""


def forget(connection: sqlite3.Connection, condition: str, values: tuple[object, ...]) -> int:
    """Deletes the transcripts of a condition within the open transaction; how many."""
    count = connection.execute(f"DELETE FROM transcripts WHERE {condition}", values).rowcount
    if count and schema.version(connection) > 1:
        connection.execute("INSERT INTO search (search) VALUES ('optimize')")
    return count


def forget_wanted(connection: sqlite3.Connection, wanted: Wanted) -> int:
    """Deletes the transcripts that are meant; how many."""
    return forget(connection, *where(wanted, schema.version(connection) > 1))


def expire(connection: sqlite3.Connection, settings: StoreSettings, now: datetime) -> int:
    """Deletes what is beyond the retention's age, number and size; how many."""
    count = 0
    if settings.retention_days:
        earliest = rows.iso(now - timedelta(days=settings.retention_days))
        count += forget(connection, '"end" < ?', (earliest,))
    if settings.retention_count:
        count += forget(connection, _BEYOND, (settings.retention_count,))
    if settings.retention_mb:
        count += _shrink(connection, settings.retention_mb * 1_000_000)
    return count


def checkpoint(connection: sqlite3.Connection) -> bool:
    """Moves the -wal file's pages into the file and empties it; False when a reader is in the way.

    Until then deleted text may be read in one of the two.
    """
    return bool(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)


def _shrink(connection: sqlite3.Connection, most_bytes: int) -> int:
    """Deletes the oldest until the pages in use are within `most_bytes`; how many went."""
    count = 0
    for _ in range(_ROUNDS):
        used = _used_bytes(connection)
        if used <= most_bytes:
            break
        there = int(connection.execute("SELECT count(*) FROM transcripts").fetchone()[0])
        # a twentieth more than needed, so that the next transcript does not begin it again
        most = math.floor(there * most_bytes / used * 0.95)
        went = forget(connection, _BEYOND, (most,))
        if not went:
            break
        count += went
    return count


def _used_bytes(connection: sqlite3.Connection) -> int:
    """Size of the file without the pages that wait to be used again."""
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size
