"""The disk of the state machine: it refuses, tears, lies and loses what was not synced."""

import errno
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.store import tables
from appliance.store.folders import FILE_NAME


class Files:
    """Our own files as a power cut leaves them: what was synced, under names that were synced.

    It stands for os.fsync. SQLite's own calls do not come here.
    """

    def __init__(self) -> None:
        self.lies = False
        """It reports that all is on the disk, and nothing is."""
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}

    def fsync(self, descriptor: int) -> None:
        """Note what is on the disk now."""
        path, found = Path(f"/proc/self/fd/{descriptor}").readlink(), os.fstat(descriptor)
        if self.lies or path.name.startswith(FILE_NAME) or not path.exists():
            return
        if stat.S_ISDIR(found.st_mode):
            self._names[path] = {one.name: one.stat().st_ino for one in path.iterdir()}
        else:
            self._contents[found.st_ino] = path.read_bytes()

    def after_a_cut(self, folder: Path) -> dict[Path, bytes]:
        """Return what a power cut leaves of the files in `folder`, by name."""
        names = self._names.get(folder, {})
        return {Path(name): self._contents.get(inode, b"") for name, inode in names.items()}

    def move(self, old: Path, new: Path) -> None:
        """Note that the files of `old` were copied to `new`, as far as they are there."""
        safe = self.after_a_cut(old)
        self._names[new] = {}
        for name, content in safe.items():
            if (new / name).exists():
                inode = self._names[new][name.name] = (new / name).stat().st_ino
                self._contents[inode] = content


class Disk:
    """Refuses writes to the log if it is told to, at the beginning of a transaction or its end."""

    def __init__(self) -> None:
        self.refuses = self.refuses_late = False

    def check_room(self, *_: object) -> None:
        """Raise OSError while it refuses; stands for files.probe."""
        if self.refuses:
            raise OSError(errno.ENOSPC, "No space left on device")

    @contextmanager
    def transaction(self, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        """Stands for tables.transaction."""
        file = connection.execute("PRAGMA database_list").fetchone()[2]
        refuses = self.refuses and "/state" in file
        if refuses and not self.refuses_late:
            raise _full()
        with TRANSACTION(connection):
            yield connection
            if refuses:
                raise _full()


TRANSACTION = tables.transaction


def _full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname = "SQLITE_FULL"
    return error


def read_files(folder: Path) -> dict[Path, bytes]:
    """Return the content of each file in a folder, by name."""
    if not folder.is_dir():
        return {}
    return {
        Path(path.name): path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and not path.name.endswith("-shm")
    }


def write_files(folder: Path, content: dict[Path, bytes]) -> None:
    """Write files into a folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, data in content.items():
        path = folder / name
        path.write_bytes(data)
        path.chmod(0o600)


def torn_files(
    before: dict[Path, bytes], after: dict[Path, bytes], share: float
) -> dict[Path, bytes]:
    """Return files of which only a share of the newly written pages is there, up to a sector."""
    torn = dict(before)
    for name, new in after.items():
        old = before.get(name, b"")
        changed = [at for at in range(0, len(new), 512) if new[at : at + 512] != old[at : at + 512]]
        kept = changed[: int(len(changed) * share)]
        size = len(old) if not kept else max(len(old), min(len(new), kept[-1] + 512))
        content = bytearray(old.ljust(size, b"\0"))
        for at in kept:
            piece = new[at : at + 512]
            content[at : at + len(piece)] = piece
        torn[name] = bytes(content)
    return torn
