"""A damaged file is set aside, and what can still be read of it goes on in a new one.

A crash at any point of `heal` is made good by `finish` at the next start: the new file is complete
under another name before the damaged one is moved away.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from appliance.publish import rows, schema
from appliance.publish.salvage import Known, salvage
from appliance.publish.store_files import beside, delete
from appliance.system import sync_folder

log = logging.getLogger("roomscribe")

CHECKED_MB = 64
"""A larger file, of some 120,000 transcripts, is not read through at every start, which takes 0.1 s
for that many: damage in it is found where it is met."""
MOST_ASIDE = 3
"""Set-aside files hold what people said; no more of them are kept."""
_STAMP = "%Y%m%dT%H%M%SZ"
_PAGE = 4096


def complaint(connection: sqlite3.Connection) -> str:
    """What is wrong with the file, in SQLite's words; empty when it is whole."""
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    missing = schema.TABLES.get(schema.version(connection), set()) - found
    if missing:
        return f"the table {min(missing)} is not there"
    try:
        connection.execute(f"SELECT {rows.COLUMNS} FROM transcripts LIMIT 0")
        if connection.execute("SELECT cursor FROM outbox").fetchone() is None:
            return "the cursor is not there"
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_ERROR":
            raise
        return str(error)  # a column of another name
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    small = pages * _PAGE <= CHECKED_MB * 1_000_000
    check = "PRAGMA quick_check(1)" if small else "PRAGMA quick_check('outbox')"
    answer = str(connection.execute(check).fetchone()[0])
    return "" if answer == "ok" else answer.replace("\n", " ")


def heal(path: Path, known: Known, why: object) -> None:
    """Puts a whole file in the place of the damaged one, which nobody may have open any more.

    Raises OSError and sqlite3.Error (disk full...); the damaged file is where it was then.
    """
    part, saved = beside(path, ".part"), beside(path, ".saved")
    delete(part)
    delete(saved)
    count = salvage(path, part, beside(path, ".copy"), known)
    delete(beside(path, ".copy"))
    part.rename(saved)
    aside = _aside(path)
    _move_away(path, aside)
    saved.rename(path)
    sync_folder(path.parent)
    log.error(
        "%s is damaged (%s): set aside as %s; %d transcripts were saved from it, "
        "and the log goes on with number %d",
        path,
        why,
        aside.name,
        count,
        known.highest + 1,
    )
    prune(path, 0, datetime.now(UTC))


def finish(path: Path) -> None:
    """Completes, or takes back, a `heal` that a crash ended."""
    saved = beside(path, ".saved")
    for ending in (".part", ".copy"):
        delete(beside(path, ending))
    if not saved.exists():
        return
    if path.exists():
        delete(saved)
        return
    _move_away(path, next(iter(asides(path)), _aside(path)))
    saved.rename(path)
    sync_folder(path.parent)
    log.error("%s was damaged: what was saved from it is in place now", path)


def asides(path: Path) -> list[Path]:
    """The set-aside files, the newest first."""
    found = path.parent.glob(f"{path.name}.damaged-*Z")
    return sorted(found, reverse=True)


def prune(path: Path, days: int, now: datetime) -> int:
    """Deletes set-aside files that are too many or older than `days` (0: any age); how many."""
    earliest = (now - timedelta(days=days)).astimezone(UTC).strftime(_STAMP) if days else ""
    old = [
        file
        for number, file in enumerate(asides(path))
        if number >= MOST_ASIDE or file.name.rpartition("-")[2] < earliest
    ]
    for file in old:
        delete(file)
    return len(old)


def delete_asides(path: Path) -> None:
    """Deletes every set-aside file."""
    for file in asides(path):
        delete(file)


def _aside(path: Path) -> Path:
    """A name for the damaged file that is not taken."""
    moment = datetime.now(UTC)
    while (name := beside(path, moment.strftime(f".damaged-{_STAMP}"))).exists():
        moment += timedelta(seconds=1)
    return name


def _move_away(path: Path, aside: Path) -> None:
    """Renames the file and its -wal; the -shm is of no use to anyone."""
    for ending in ("", "-wal"):
        with suppress(FileNotFoundError):
            beside(path, ending).rename(beside(aside, ending))
    beside(path, "-shm").unlink(missing_ok=True)
    sync_folder(path.parent)
