"""Where the spool lies, and its files: a folder of this user's own, in memory, never on a disk."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from pathlib import Path

from appliance.config import Settings, StoreSettings

FILE_NAME = "roomscribe.db"


def store_folder(settings: StoreSettings) -> Path:
    """Where the store lives: store.path, else systemd's state directory, else the user's own."""
    if settings.path:
        return Path(settings.path).expanduser()
    given = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    return Path("~/.local/state/roomscribe").expanduser()


SHARED_MEMORY = Path("/dev/shm")
MOUNTS = Path("/proc/self/mountinfo")
IN_MEMORY = ("tmpfs", "ramfs")
LOCK_NAME = "lock"

OURS = re.compile(r"roomscribe(-\d+)?$|[0-9a-f]{16}$")
"""Folders that were made for a spool."""


def log_runtime_folder(settings: Settings) -> Path:
    """The part of the runtime folder that belongs to the configured log."""
    own = bool(settings.store.path)
    if not os.environ.get("RUNTIME_DIRECTORY"):
        own = own or bool(os.environ.get("STATE_DIRECTORY"))
    state = str(store_folder(settings.store).absolute())
    name = hashlib.sha256(state.encode()).hexdigest()[:16] if own else ""
    return runtime() / name


def runtime() -> Path:
    """systemd's runtime directory, else the user's, else one in shared memory."""
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


def make_folder(folder: Path) -> None:
    """Makes `folder` and what is above it, for this user alone. Raises OSError."""
    for above in (*reversed(folder.parents), folder):
        if not above.exists():
            above.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.geteuid() or folder.is_symlink():
        raise PermissionError(f"expected a folder of user {os.geteuid()}, found another's")
    if not is_in_memory(folder):
        raise OSError("expected a folder in memory (tmpfs), found one on a disk")
    folder.chmod(0o700)


def lock_folder(folder: Path) -> int:
    """Takes `folder` for this process; the descriptor that holds it. Raises OSError."""
    file = folder / LOCK_NAME
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if file.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise OSError("another daemon uses it") from None
        except FileNotFoundError:
            pass
        os.close(descriptor)  # whoever held it before has removed it


def leave_folder(folder: Path, descriptor: int) -> None:
    """Gives `folder` back; removes it, and what was made for it, when it is empty."""
    with contextlib.suppress(OSError):
        if all(path.name == LOCK_NAME for path in folder.iterdir()):
            (folder / LOCK_NAME).unlink()
            folder.rmdir()
            for above in folder.parents:
                if not OURS.match(above.name):
                    break
                above.rmdir()
    os.close(descriptor)
