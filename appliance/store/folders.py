"""Where the log lies, and folders in memory for what must never be on a disk, or cannot be."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from pathlib import Path

from appliance.config import Settings, store_folder
from appliance.system import lock

FILE_NAME = "roomscribe.db"
INSTALLED = Path("/var/lib/roomscribe"), Path("/run/roomscribe")
"""State and runtime folder of the system's daemon."""
LOCK_NAME = "lock"
SHARED_MEMORY = Path("/dev/shm")
MOUNTS = Path("/proc/self/mountinfo")
IN_MEMORY = ("tmpfs", "ramfs")
OURS = re.compile(r"roomscribe(-\d+)?$|[0-9a-f]{16}$")
"""Folders that were made for folders in memory."""


def runtime_folder(settings: Settings) -> Path:
    """The folder in memory that belongs to the configured log.

    It is below systemd's runtime directory, else the user's, else in shared memory.
    """
    own = bool(settings.store.path)
    if not os.environ.get("RUNTIME_DIRECTORY"):
        own = own or bool(os.environ.get("STATE_DIRECTORY"))
    state = str(store_folder(settings.store).absolute())
    return _runtime() / (hashlib.sha256(state.encode()).hexdigest()[:16] if own else "")


def runtime_folders(settings: Settings) -> list[Path]:
    """The folder in memory of a daemon with that log: this process's, and where else one may be."""
    found = [runtime_folder(settings)]
    state, runtime = INSTALLED
    if store_folder(settings.store) == state and not os.environ.get("RUNTIME_DIRECTORY"):
        found.append(runtime)
    return found


def remove_empty(folder: Path) -> None:
    """Removes a folder in memory and what was made for it, as far as they are empty."""
    with contextlib.suppress(OSError):
        for one in (folder, *folder.parents):
            if not OURS.match(one.name):
                break
            one.rmdir()


def _runtime() -> Path:
    given = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    user = os.geteuid()
    for candidate in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{user}"):
        if candidate and is_in_memory(Path(candidate)):
            return Path(candidate) / "roomscribe"
    return SHARED_MEMORY / f"roomscribe-{user}"


def is_in_memory(folder: Path) -> bool:
    """True when `folder` is there and lies on a file system without a disk."""
    try:
        device = folder.stat().st_dev
        mounts = MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, file_system = line.partition(" - ")
        if mount.split()[2:3] == [number]:
            return file_system.split()[:1] in [[kind] for kind in IN_MEMORY]
    return False


class MemoryFolder:
    """A folder in memory, which outlives the process, for one process at a time.

    It is this user's alone. Whatever ends the process, the next one may take it.
    """

    def __init__(self, path: Path) -> None:
        """Takes nothing yet."""
        self.path = path
        self._held: io.FileIO | None = None

    def take(self) -> None:
        """Makes the folder and what is above it, and locks it. Raises OSError.

        A folder that was deleted while it was taken is made and locked anew.
        """
        for above in (*reversed(self.path.parents), self.path):
            if not above.exists():
                above.mkdir(mode=0o700, exist_ok=True)
            # another user's folder could be exchanged for another one later
            owner = above.stat().st_uid
            if owner not in (0, os.geteuid()):
                raise PermissionError(
                    f"expected folders of user {os.geteuid()} or root, found {above} of {owner}"
                )
        if self.path.lstat().st_uid != os.geteuid() or self.path.is_symlink():
            raise PermissionError(f"expected a folder of user {os.geteuid()}, found another's")
        if not is_in_memory(self.path):
            raise OSError("expected a folder in memory (tmpfs), found one on a disk")
        self.path.chmod(0o700)
        self.lock()

    def lock(self) -> None:
        """Takes a folder that is there. Raises OSError, also when another process has it."""
        try:
            held = lock(self.path / LOCK_NAME)
        except BlockingIOError:
            raise OSError("another daemon uses it") from None
        self._let_go()
        self._held = held

    def leave(self) -> None:
        """Gives it back; removes it, and what was made for it, when it is empty."""
        with contextlib.suppress(OSError):
            if all(path.name == LOCK_NAME for path in self.path.iterdir()):
                (self.path / LOCK_NAME).unlink()
                self.path.rmdir()
                remove_empty(self.path.parent)
        self._let_go()

    def _let_go(self) -> None:
        if self._held:
            self._held.close()
        self._held = None
