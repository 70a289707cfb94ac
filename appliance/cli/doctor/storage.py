"""The local log, opened read-only, and the disk that it is on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import store_folder
from appliance.store import inspect

LEAST_FREE_MB = 200
"""The log grows by about 1 kB a sentence; the rest of the system needs room, too."""
DEEP = 100
"""More transcripts than this that no broker has: worth saying."""


def log(around: Surroundings) -> Outcome:
    """The store opens, its schema is known, its pages are whole."""
    try:
        found = inspect(around.settings, around.doing)
    except PermissionError:
        folder = store_folder(around.settings.store)
        return skipped(f"{folder} is not for this user: sudo roomscribe doctor")
    file = found.file
    if found.in_memory:
        return failed(
            f"the log goes on in memory, lost with the power: {file} cannot be written",
            "make its disk writable, or free some space; then it is put there by itself",
        )
    if not found.exists:
        return skipped(f"{file} is not there: the daemon has not run yet, or keeps it elsewhere")
    if found.trouble:
        fix = (
            "restart the daemon (`systemctl restart roomscribe`): it sets the file aside and "
            "goes on with what can be read of it"
        )
        return failed(f"{file} is damaged: {found.trouble}", fix)
    size_mb, waiting = found.size_bytes / 1e6, found.waiting
    aside = f"; {found.set_aside} damaged files are set aside beside it" if found.set_aside else ""
    waits = f"{waiting} transcripts wait for the broker" if waiting else "nothing waits"
    note = ": see the broker's checks" if waiting > DEEP else ""
    return ok(f"{file}: schema {found.schema}, {size_mb:.1f} MB, whole; {waits}{note}{aside}")


def disk(around: Surroundings, least_free_mb: float = LEAST_FREE_MB) -> Outcome:
    """There is room where the log is, or will be."""
    place = store_folder(around.settings.store)
    while not _exists(place):
        place = place.parent
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return failed(
            f"the disk of {place} is read-only",
            "see `dmesg` for why: after an error of the card, replace it",
        )
    free_mb = shutil.disk_usage(place).free / 1e6
    found = f"{free_mb:,.0f} MB free where the log is".replace(",", " ")
    if free_mb < least_free_mb:
        return failed(
            f"{found}; wanted are {least_free_mb}", "free some space (`du -xh / | sort -h`)"
        )
    return ok(found)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


CHECKS = (
    Check("log", log, "see that its disk is well", within_s=60, needs=("[store]",)),
    Check("disk", disk, "see that its disk is well", needs=("[store]",)),
)
