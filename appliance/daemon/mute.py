"""Whether the appliance may listen: set from anywhere, kept in a file beside the log.

The file is the truth. `roomscribe mute` writes it, whether the daemon runs or not; the daemon reads
it at start and looks at it while it runs. What is in it survives restarts and power cuts.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from appliance.errors import StoreError
from appliance.system import sync_folder

log = logging.getLogger("roomscribe.daemon")

FILE_NAME = "mute"
LOCK_NAME = "listening"
_ON, _OFF = b"ON\n", b"OFF\n"

Stamp = tuple[int, int, int]
"""What tells one version of the file from another: inode, time of writing, size."""


class Mute:
    """The switch. Any thread may call any method; no signal may interrupt one and call another."""

    def __init__(self, folder: Path) -> None:
        """The switch as the file in `folder` has it; off when there is none."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change by the thread that made it."""
        self.unsaved = ""
        """Why the present position would not survive a restart; empty when it would."""
        self._file = folder / FILE_NAME
        self._lock_file = folder / LOCK_NAME
        self._lock = threading.Lock()
        self._stamp, self._on = _read(self._file)

    @property
    def on(self) -> bool:
        """True while nobody may listen. Does not wait."""
        return self._on

    def set(self, on: bool, who: str = "") -> None:
        """Turns it; the microphone is told first, the disk next. `who` asked, for the log.

        A disk that refuses leaves it turned, with the reason in `unsaved`.
        """
        with self._lock:
            turned = self._turn(on, who)
        if turned:
            self.on_change()
        with self._lock:
            if self._on == on and (turned or self.unsaved):
                self._save(on)

    def toggle(self, who: str = "") -> None:
        """Turns it over."""
        self.set(not self._on, who)

    def look(self) -> None:
        """Follows the file when somebody else has written it."""
        with self._lock:
            try:
                if self._stamp == _stamp(self._file.stat()):
                    return
            except OSError:
                if self._stamp is None:
                    return
            self._stamp, on = _read(self._file)
            self.unsaved = ""
            turned = self._turn(on, "its file")
        if turned:
            self.on_change()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Says to other processes, as long as it lasts, that a microphone is open.

        By a lock, which the kernel lets go of whatever ends this process.
        """
        try:
            lock = os.open(self._lock_file, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            log.warning("%s: %s: `roomscribe mute` cannot see us", self._lock_file, error.strerror)
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield
        finally:
            os.close(lock)

    def _turn(self, on: bool, who: str) -> bool:
        """True when that is news."""
        if self._on == on:
            return False
        self._on = on
        log.info("%s%s", "muted" if on else "no longer muted", f" by {who}" if who else "")
        return True

    def _save(self, on: bool) -> None:
        try:
            self._stamp = write(self._file, on)
            self.unsaved = ""
        except StoreError as error:
            self.unsaved = str(error)
            log.warning("%s", error)


def write(file: Path, on: bool) -> Stamp:
    """Puts the position into `file`, whole or not at all, and on the disk. Raises StoreError."""
    kept = ""
    try:
        descriptor, kept = tempfile.mkstemp(prefix=".mute-", dir=file.parent)
        with os.fdopen(descriptor, "wb") as beside:
            # the daemon reads what root writes; its folder keeps others out
            os.fchmod(beside.fileno(), 0o644)
            beside.write(_ON if on else _OFF)
            beside.flush()
            os.fsync(beside.fileno())
            stamp = _stamp(os.fstat(beside.fileno()))
        Path(kept).replace(file)
        sync_folder(file.parent)
    except OSError as error:
        if kept:
            Path(kept).unlink(missing_ok=True)
        raise StoreError(
            f"{file}: cannot keep that the appliance is {'muted' if on else 'not muted'}: expected "
            f"a file that this user may write, found: {error.strerror}; it holds until the next "
            "start only: make the folder of store.path writable, and free some space"
        ) from error
    return stamp


def is_on(folder: Path) -> bool:
    """The position in the file of `folder`."""
    return _read(folder / FILE_NAME)[1]


def is_listening(folder: Path) -> bool:
    """True while any process has a microphone open for `folder`'s log. Raises StoreError."""
    file = folder / LOCK_NAME
    try:
        lock = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(
            f"{file}: expected a file that this user may read, found: {error.strerror}; "
            "become the daemon's user, or use sudo"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _read(file: Path) -> tuple[Stamp | None, bool]:
    """The file's stamp and position; whatever cannot be understood means muted."""
    try:
        with file.open("rb") as opened:
            stamp = _stamp(os.fstat(opened.fileno()))
            text = opened.read(16)
    except (FileNotFoundError, NotADirectoryError):
        return None, False
    except OSError as error:
        log.error("%s: expected ON or OFF, found: %s; staying muted", file, error.strerror)
        with contextlib.suppress(OSError):
            return _stamp(file.stat()), True
        return None, True
    if text.strip() not in (_ON.strip(), _OFF.strip()):
        log.error(
            "%s: expected ON or OFF, found %r; staying muted: `roomscribe mute off` unmutes",
            file,
            text,
        )
        return stamp, True
    return stamp, text.strip() == _ON.strip()


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_mtime_ns, found.st_size
