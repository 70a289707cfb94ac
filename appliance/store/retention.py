"""The retention: deletes transcripts beyond the configured age, number and size.

The wall clock alone never makes a transcript old: a wrong time from the network would empty the log
at once. A transcript's age is the smaller of two: by the wall clock since the speech ended, and by
the machine's running time since the transcript was stored. The table `boots` adds up running time
over restarts. The gap between two boots counts as the wall clock says, but as one day at most.
"""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta

from appliance.config import StoreSettings
from appliance.store.tables import boot_clock_s, forget, iso, number
from appliance.system import boot_id

DAY_S = 86_400.0
_BOOTS = """CREATE TABLE IF NOT EXISTS boots (
    boot TEXT PRIMARY KEY, base_s REAL NOT NULL, seen_s REAL NOT NULL, wall_s REAL NOT NULL,
    jump_s REAL NOT NULL)"""
"""A row for each boot of the machine. Running time is base_s + the boot clock. The other columns
are of the last run: boot clock, Unix time, and until when (running time) a jump is remembered.

The first run creates it."""
_STORED = """coalesce(
    (SELECT base_s FROM boots WHERE boots.boot = transcripts.boot) + boot_s,
    (SELECT base_s + seen_s - wall_s FROM boots ORDER BY rowid LIMIT 1)
        + CAST(strftime('%s', stored) AS REAL))"""
"""Running time when a transcript was stored; by the wall clock if it is older than the table."""
_BEYOND = "seq <= (SELECT seq FROM transcripts ORDER BY seq DESC LIMIT 1 OFFSET ?)"
"""Condition for all but the given number of the newest."""
_ROUNDS = 8
"""Most attempts to delete by size, which estimates by the average row."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The result of one run."""

    count: int
    """Transcripts deleted."""
    jumped: bool
    """The wall clock moved more than a day ahead of the running time within the last day."""


def expire(connection: sqlite3.Connection, settings: StoreSettings, now: datetime) -> Expired:
    """Delete what is beyond the retention's age, number and size.

    On the day after the wall clock jumped ahead, unpublished transcripts are not deleted by age.
    """
    running_s, jumped = _count_running_time(connection, now)
    count = 0
    if settings.retention_days:
        earliest = iso(now - timedelta(days=settings.retention_days))
        condition = f'"end" < ? AND {_STORED} < ?'
        if jumped:
            condition += " AND seq <= (SELECT cursor FROM outbox)"
        earliest_s = running_s - settings.retention_days * DAY_S
        count += forget(connection, condition, (earliest, earliest_s))
    if settings.retention_mb:
        count += _shrink(connection, settings.retention_mb * 1_000_000)
    return Expired(count, jumped)


def _count_running_time(connection: sqlite3.Connection, now: datetime) -> tuple[float, bool]:
    """Return the machine's running time in seconds, and whether the wall clock has jumped."""
    connection.execute(_BOOTS)
    boot, boot_s, wall_s = boot_id(), boot_clock_s(), now.timestamp()
    sql = "SELECT boot, base_s, seen_s, wall_s, jump_s FROM boots ORDER BY rowid DESC LIMIT 1"
    last = connection.execute(sql).fetchone()
    if last is None:
        base_s, jump_s = 0.0, 0.0
    else:
        last_boot, base_s, seen_s, last_wall_s, jump_s = last
        wall_gap_s = wall_s - last_wall_s
        if last_boot == boot:
            gap_s = boot_s - seen_s
        else:
            gap_s = min(max(0.0, wall_gap_s), DAY_S)
            base_s += seen_s + gap_s - boot_s
        if wall_gap_s - gap_s > DAY_S:
            jump_s = base_s + boot_s + DAY_S
    connection.execute(
        "INSERT INTO boots VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (boot) DO UPDATE SET "
        "seen_s = ?3, wall_s = ?4, jump_s = ?5",
        (boot, base_s, boot_s, wall_s, jump_s),
    )
    return base_s + boot_s, base_s + boot_s < jump_s


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
