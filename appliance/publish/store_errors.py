"""SQLite's and the system's errors as one clear line, and which of them mean a damaged file."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import PublishError
from appliance.publish.rows import DamagedRowError

_FOUND_AND_CURE = {
    "SQLITE_FULL": ("a full disk", "free some space"),
    "SQLITE_READONLY": ("a read-only one", "make the disk and file writable, or set store.path"),
    "SQLITE_CANTOPEN": (
        "one that cannot be opened",
        "give this user the folder, or set store.path",
    ),
    "SQLITE_PERM": ("no permission", "give this user the folder, or set store.path"),
    "SQLITE_NOTADB": ("another kind of file", "the daemon sets it aside and begins a new one"),
    "SQLITE_CORRUPT": (
        "a damaged one",
        "the daemon sets it aside, saves what can be read, and goes on in a new one",
    ),
    "SQLITE_BUSY": ("one locked by another program", "end that program"),
    "SQLITE_IOERR": ("a disk that fails", "check its space and health"),
}


_CURES = {
    errno.EROFS: "make the disk writable again, or replace the card",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EIO: "check the disk, or replace the card",
}
_PASSING = ("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_IOERR")
_MISTAKES = (errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR)
"""store.path is none for a folder; all else may be cured while the daemon runs."""


class UnwritableError(PublishError):
    """The disk refuses, which may pass: full, read-only, missing, not permitted, failing.

    Not: locked by another program, damaged, or written by a newer version.
    """

    def __init__(self, message: str, found: str, cure: str) -> None:
        super().__init__(message)
        self.found, self.cure = found, cure


class DamagedError(sqlite3.DatabaseError):
    """The file opens and is not whole."""

    sqlite_errorname = "SQLITE_CORRUPT"


def is_damage(error: BaseException) -> bool:
    """True when the file itself is broken: trying again does not help, a new file does."""
    if isinstance(error, DamagedRowError | UnicodeDecodeError):
        return True  # also SQLite's own message may quote what no longer is UTF-8
    name = getattr(error, "sqlite_errorname", None) or ""
    undecodable = isinstance(error, sqlite3.OperationalError) and "decode to UTF-8" in str(error)
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or undecodable


@contextmanager
def plain_errors(path: Path, doing: str) -> Iterator[None]:
    """Makes of whatever SQLite or the system raise a PublishError of one line."""
    try:
        yield
    except (sqlite3.Error, DamagedRowError, UnicodeDecodeError) as error:
        name = getattr(error, "sqlite_errorname", None) or ""
        name = "SQLITE_CORRUPT" if is_damage(error) and not name.startswith("SQLITE_N") else name
        kinds = (kind for kind in _FOUND_AND_CURE if name.startswith(kind))
        found, cure = _FOUND_AND_CURE.get(next(kinds, ""), (str(error), "see the message"))
        message = (
            f"{path}: cannot {doing}: expected a writable SQLite database, "
            f"found {found} ({error}); {cure}"
        )
        if name.startswith(_PASSING):
            raise UnwritableError(message, found, cure) from error
        raise PublishError(message) from error
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        cure = "give this user the folder, or set store.path to another"
        message = (
            f"{path}: cannot {doing}: expected a folder and file that this user may write, "
            f"found: {reason}; {cure}"
        )
        if isinstance(error, OSError) and error.errno not in _MISTAKES:
            raise UnwritableError(message, reason, _CURES.get(error.errno or 0, cure)) from error
        raise PublishError(message) from error
