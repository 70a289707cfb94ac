"""The store's file among its neighbours: -wal, -shm, and what recovery puts beside it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from appliance.system import sync_folder

_ROOM = 256 * 1024
"""Bytes; a transcript takes about 40 kB of the -wal file until it is emptied."""
Identity = tuple[int, int]
"""Device and inode: which file it is, whatever its name."""


def beside(path: Path, ending: str) -> Path:
    """The neighbour of `path` with a longer name."""
    return path.with_name(path.name + ending)


def identity(path: Path) -> Identity | None:
    """Which file bears the name; None when there is none. Raises OSError."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def make(path: Path) -> None:
    """An empty file in its folder, for this user alone, unless it is there. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def probe(path: Path) -> None:
    """Shows that the file and its neighbours may be written and that there is room for more.

    A disk with room for one page alone is a full one. Raises OSError.
    """
    for ending in ("", "-wal", "-shm"):
        file = beside(path, ending)
        if file.exists() and not os.access(file, os.W_OK):
            os.close(os.open(file, os.O_RDWR))  # raises the very error
    trial = beside(path, ".probe")
    descriptor = os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(bytes(_ROOM))
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        trial.unlink()


def make_folder(path: Path) -> None:
    """The folder of `path`, for this user alone, unless it is there. Raises OSError."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(path.parent.parent)


def copy(path: Path, to: Path) -> None:
    """Copies a database that nobody writes, with its -wal where there is one. Raises OSError."""
    shutil.copyfile(path, to)
    with suppress(FileNotFoundError):
        shutil.copyfile(beside(path, "-wal"), beside(to, "-wal"))


def delete(path: Path) -> None:
    """Deletes a database with what SQLite keeps beside it. Raises OSError."""
    for ending in ("", "-wal", "-shm", "-journal"):
        beside(path, ending).unlink(missing_ok=True)
