"""The log's file and its siblings (-wal, -shm, a repair's), connections to it, and its errors.

Each error of SQLite or the system becomes one line, and tells whether the file is damaged and
whether the disk may recover.
"""

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from appliance.errors import StoreError
from appliance.store.tables import DamagedError
from appliance.system import sync_folder

Identity = tuple[int, int]
"""Device and inode: which file it is, whatever its name."""
_PIECE = 1 << 16
_ROOM = 256 * 1024
"""Bytes that must be free; a transcript takes about 40 kB of the -wal file until it is emptied."""
_GIVE = "give this user the folder, or set store.path"
SUDO = "it belongs to the daemon: run this with sudo"
_FOUND_AND_FIX = {
    "SQLITE_FULL": ("a full disk", "free some space"),
    "SQLITE_READONLY": ("a read-only one", "make the disk and file writable, or set store.path"),
    "SQLITE_CANTOPEN": ("one that cannot be opened", _GIVE),
    "SQLITE_PERM": ("no permission", _GIVE),
    "SQLITE_NOTADB": ("another kind of file", "the daemon sets it aside and starts a new one"),
    "SQLITE_CORRUPT": (
        "a damaged one",
        "the daemon sets it aside, saves what can be read, and continues in a new one",
    ),
    "SQLITE_BUSY": ("one locked by another program", "end that program"),
    "SQLITE_IOERR": ("a disk that fails", "check its space and health"),
}
_FIXES = {
    errno.EROFS: "make the disk writable again, or replace the card",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EIO: "check the disk, or replace the card",
}
_MISTAKES = (errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR)
"""store.path cannot be a folder; all other errors may be solved while the daemon runs."""


def sibling(path: Path, ending: str) -> Path:
    """Return the file beside `path` with `ending` after its name."""
    return path.with_name(path.name + ending)


def identity(path: Path) -> Identity | None:
    """Return which file has the name; None without one. Raises OSError."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def make(path: Path) -> None:
    """Create an empty file for this user only, unless it exists. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def probe(path: Path) -> None:
    """Check that the file and its siblings may be written, and that the disk has room.

    A disk with room for only one page counts as full. Raises OSError.
    """
    for ending in ("", "-wal", "-shm"):
        file = sibling(path, ending)
        if file.exists() and not os.access(file, os.W_OK):
            os.close(os.open(file, os.O_RDWR))  # raises the exact error
    trial = sibling(path, ".probe")
    try:
        with trial.open("wb") as file_of_zeros:
            file_of_zeros.write(bytes(_ROOM))
            file_of_zeros.flush()
            os.fsync(file_of_zeros.fileno())
    finally:
        trial.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create the folder of `path` for this user only, unless it exists. Raises OSError."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(path.parent.parent)


def delete(path: Path) -> None:
    """Overwrite and delete a database and its siblings. Raises OSError."""
    for ending in ("", "-wal", "-shm", "-journal"):
        file = sibling(path, ending)
        if ending != "-shm":  # it holds no text
            with suppress(OSError):  # a disk that cannot be written may still delete
                overwrite(file)
        file.unlink(missing_ok=True)


def overwrite(path: Path, upto: int | None = None) -> None:
    """Write zeros over a file, or over its first `upto` bytes. Raises OSError.

    Otherwise deleted text stays readable in free blocks of the file system.

    Only a regular file with one name is overwritten: a link must not lead root elsewhere.
    """
    number = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise OSError(errno.ELOOP, "expected a plain file", str(path))
        size, at = found.st_size if upto is None else min(found.st_size, upto), 0
        while at < size:
            at += os.pwrite(number, bytes(min(size - at, _PIECE)), at)
        os.fsync(number)
    finally:
        os.close(number)


def connect(path: Path, mode: str, busy_s: float = 0.0) -> sqlite3.Connection:
    """Return a connection to an existing file; `mode` is "ro" or "rw". Raises sqlite3.Error."""
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=False,
    )


class UnwritableError(StoreError):
    """The disk refuses for now: full, read-only, missing, not permitted, failing, locked.

    Not for a file that is damaged, or written by another version.
    """

    def __init__(self, message: str, found: str, fix: str) -> None:
        super().__init__(message)
        self.found, self.fix = found, fix


def is_damage(error: BaseException) -> bool:
    """Return True if the file itself is broken: only a new file helps."""
    if isinstance(error, DamagedError | UnicodeDecodeError):
        return True  # SQLite's own message may quote bytes that are not UTF-8, too
    name = getattr(error, "sqlite_errorname", None) or ""
    undecodable = isinstance(error, sqlite3.OperationalError) and "decode to UTF-8" in str(error)
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or undecodable


@contextmanager
def plain_errors(path: Path, doing: str, sudo: str = "") -> Iterator[None]:
    """Turn errors of SQLite and of the system into a StoreError of one line.

    `sudo` is what to do if the file belongs to another user; default: change the folder's owner.
    """
    try:
        yield
    except (sqlite3.Error, DamagedError, UnicodeDecodeError) as error:
        name = getattr(error, "sqlite_errorname", None) or ""
        name = "SQLITE_CORRUPT" if is_damage(error) and not name.startswith("SQLITE_N") else name
        kind = next((kind for kind in _FOUND_AND_FIX if name.startswith(kind)), "")
        found, fix = _FOUND_AND_FIX.get(kind, (str(error), "see the message"))
        fix = sudo if fix == _GIVE and sudo and _is_closed(path) else fix
        message = (
            f"{path}: cannot {doing}: expected a writable SQLite database, "
            f"found {found} ({error}); {fix}"
        )
        if kind and not is_damage(error):
            raise UnwritableError(message, found, fix) from error
        raise StoreError(message) from error
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        fix = sudo if sudo and _is_closed(path) else f"{_GIVE} to another"
        message = (
            f"{path}: cannot {doing}: expected a folder and file that this user may write, "
            f"found: {reason}; {fix}"
        )
        if isinstance(error, OSError) and error.errno not in _MISTAKES:
            raise UnwritableError(message, reason, _FIXES.get(error.errno or 0, fix)) from error
        raise StoreError(message) from error


def _is_closed(path: Path) -> bool:
    return not os.access(path, os.R_OK | os.W_OK)
