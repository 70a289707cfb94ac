"""Paths of the log, and folders in memory for what must not, or cannot, be on a disk."""

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
"""State and runtime folder of the installed daemon."""
LOCK_NAME = "lock"
SHARED_MEMORY = Path("/dev/shm")
MOUNTS = Path("/proc/self/mountinfo")
IN_MEMORY = ("tmpfs", "ramfs")
OVERLAY = "{} is on an overlay in memory: the next boot loses the log, the settings and the mute"
KEEP = (
    "switch the overlay file system off (`sudo raspi-config`, Performance Options), or mount a "
    "disk at {}"
)
OURS = re.compile(r"roomscribe(-\d+)?$|[0-9a-f]{16}$")
"""Names of folders that were created for folders in memory."""


def runtime_folder(settings: Settings) -> Path:
    """Return the folder in memory that belongs to the configured log.

    It is below systemd's runtime directory, else the user's, else in shared memory.
    """
    own = bool(settings.store.path)
    if not os.environ.get("RUNTIME_DIRECTORY"):
        own = own or bool(os.environ.get("STATE_DIRECTORY"))
    state = str(store_folder(settings.store).absolute())
    return _runtime() / (hashlib.sha256(state.encode()).hexdigest()[:16] if own else "")


def runtime_folders(settings: Settings) -> list[Path]:
    """Return where the folder in memory of a daemon with that log may be; this process's first."""
    found = [runtime_folder(settings)]
    state, runtime = INSTALLED
    if store_folder(settings.store) == state and not os.environ.get("RUNTIME_DIRECTORY"):
        found.append(runtime)
    return found


def remove_empty(folder: Path) -> None:
    """Remove a folder in memory and its parents that were created for it, if they are empty."""
    with contextlib.suppress(OSError):
        for path in (folder, *folder.parents):
            if not OURS.match(path.name):
                break
            path.rmdir()


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
    """Return True if `folder` exists and is on a file system without a disk."""
    return _mount(folder)[0] in IN_MEMORY


def lost_at_boot(folder: Path) -> tuple[str, str] | None:
    """Return what the machine's next start loses, and the fix, if `folder` is on an overlay whose
    upper layer is in memory, as raspi-config's is; else None."""
    kind, options = _mount(folder)
    upper = re.search(r"\bupperdir=([^,]*)", options)
    if kind != "overlay" or not upper:
        return None
    if (layer := Path(upper[1])).is_dir():
        lost = is_in_memory(layer)
    else:  # its mount is hidden from us; statvfs(3) measures it all the same
        disk, page_bytes = os.statvfs(folder), os.sysconf("SC_PAGE_SIZE")
        lost = disk.f_blocks * disk.f_frsize <= os.sysconf("SC_PHYS_PAGES") * page_bytes
    return (lost and (OVERLAY.format(folder), KEEP.format(folder))) or None


def _mount(folder: Path) -> tuple[str, str]:
    """Return type and options of the file system of `folder`; empty if they are unknown."""
    try:
        device = folder.stat().st_dev
        mounts = MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, file_system = line.partition(" - ")
        if mount.split()[2:3] == [number]:
            kind, _source, options = file_system.split(" ", 2)
            return kind, options
    return "", ""


class MemoryFolder:
    """A folder in memory that outlives the process, for one process at a time.

    Only this user may access it. Whatever ends the process, the next one may take it.
    """

    def __init__(self, path: Path) -> None:
        """Do not take the folder yet."""
        self.path = path
        self._held: io.FileIO | None = None

    def take(self) -> None:
        """Create the folder and its parents, and lock it. Raises OSError.

        A folder that was deleted meanwhile is created and locked again.
        """
        for above in (*reversed(self.path.parents), self.path):
            if not above.exists():
                above.mkdir(mode=0o700, exist_ok=True)
            # another user could replace such a folder later
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
        """Lock an existing folder. Raises OSError, also if another process has it."""
        try:
            held = lock(self.path / LOCK_NAME)
        except BlockingIOError:
            raise OSError("another daemon uses it") from None
        self._let_go()
        self._held = held

    def leave(self) -> None:
        """Unlock it; remove it, and what was created for it, if it is empty."""
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
