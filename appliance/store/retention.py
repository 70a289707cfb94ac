"""The retention: deletes transcripts beyond the configured age and size.

Age is by the wall clock. A transcript that may still be published is not deleted by age: the
publisher passes over it once it is too old for that, and a jump of the wall clock must not take it.
"""

from __future__ import annotations

import math
import sqlite3
from datetime import datetime, timedelta

from appliance.config import StoreSettings
from appliance.store.tables import CURSOR, forget, iso, number

_BEYOND = "seq <= (SELECT seq FROM transcripts ORDER BY seq DESC LIMIT 1 OFFSET ?)"
"""Condition for all but the given number of the newest."""
_ROUNDS = 8
"""Most attempts to delete by size, which estimates by the average row."""


def expire(
    connection: sqlite3.Connection, settings: StoreSettings, now: datetime, *, published: bool
) -> int:
    """Delete what is beyond the retention's age and size; return how many transcripts.

    If transcripts are `published`, only those that the cursor has passed are deleted by age.
    """
    count = 0
    if settings.retention_days:
        earliest = iso(now - timedelta(days=settings.retention_days))
        condition = f'"end" < ? AND seq <= ({CURSOR})' if published else '"end" < ?'
        count += forget(connection, condition, (earliest,))
    if settings.retention_mb:
        count += _shrink(connection, settings.retention_mb * 1_000_000)
    return count


def _shrink(connection: sqlite3.Connection, most_bytes: int) -> int:
    """Delete the oldest until the pages in use fit into `most_bytes`; return how many."""
    count = 0
    for _ in range(_ROUNDS):
        pages, free, size = (
            number(connection, f"PRAGMA {name}")
            for name in ("page_count", "freelist_count", "page_size")
        )
        used = (pages - free) * size  # free pages will be used again
        if used <= most_bytes:
            break
        stored = number(connection, "SELECT count(*) FROM transcripts")
        # 5 % more than needed, so that the next transcript does not trigger it again
        most = math.floor(stored * most_bytes / used * 0.95)
        deleted = forget(connection, _BEYOND, (most,))
        if not deleted:
            break
        count += deleted
    return count
