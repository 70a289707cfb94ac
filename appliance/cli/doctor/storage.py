"""Check the local log, opened read-only, and its disk."""

import os
import shutil

from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import store_folder
from appliance.store import FILE_NAME, Store, lost_at_boot, open_fallback

LEAST_FREE_MB = 200
"""The log grows by about 1 kB per sentence; the system needs some space, too."""
DEEP = 100
"""Number of unpublished transcripts that the outcome points out."""


def log(around: Surroundings) -> Outcome:
    """Check that the log can be opened, its schema is known and its pages are intact."""
    folder = store_folder(around.settings.store)
    file = folder / FILE_NAME
    try:
        exists = file.exists()
    except PermissionError:
        return skipped(f"this user cannot read {folder}: run `sudo roomscribe doctor`")
    with open_fallback(around.settings) as fallback:
        if fallback:
            return failed(
                f"{file} cannot be written; new transcripts are in memory and lost without power",
                "make the disk writable or free some space; the daemon then writes them to the "
                "file",
            )
    if not exists:
        return skipped(f"{file} does not exist: the daemon has not run yet, or uses another file")
    around.doing(f"checking every page of {file}")
    with Store.open(around.settings.store, read_only=True) as store:
        if trouble := store.check():
            return failed(
                f"{file} is damaged: {trouble}",
                "restart the daemon (`sudo systemctl restart roomscribe`): it sets the file aside "
                "and keeps what can be read",
            )
        waiting, damaged = store.depth(), store.count_set_aside()
    aside = f"; {damaged} damaged files were set aside" if damaged else ""
    waits = f"{waiting} unpublished transcripts" if waiting else "all transcripts are published"
    note = " (see the broker's checks)" if waiting > DEEP else ""
    size_mb = file.stat().st_size / 1e6
    return ok(f"{file}: {size_mb:.1f} MB, intact; {waits}{note}{aside}")


def disk(around: Surroundings, least_free_mb: float = LEAST_FREE_MB) -> Outcome:
    """Check that the disk of the log keeps what is written, and has free space."""
    folder = store_folder(around.settings.store)
    while not os.access(folder, os.F_OK):
        folder = folder.parent
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return failed(
            f"the disk of {folder} is read-only",
            "find the reason with `dmesg`; if the card has errors, replace it",
        )
    if lost := lost_at_boot(folder):
        return failed(*lost)
    free_mb = shutil.disk_usage(folder).free / 1e6
    found = f"{free_mb:,.0f} MB free where the log is".replace(",", " ")
    if free_mb < least_free_mb:
        return failed(
            f"{found}; at least {least_free_mb:g} MB are needed",
            "free some space (`du -xh / | sort -h` finds large folders)",
        )
    return ok(found)


CHECKS = (
    Check("log", log, "check its disk", within_s=60, needs=("[store]",)),
    Check("disk", disk, "check its disk", needs=("[store]",)),
)
