"""Whether the appliance is muted: a file beside the log, which any process may write.

`roomscribe mute` writes the file, whether the daemon runs or not. The daemon reads it at the start
and polls it. It survives restarts and power cuts. If it cannot be read at the start (a failing
disk), the appliance counts as muted until it can. If it disappears later, nothing changes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from appliance.errors import StoreError
from appliance.system import lock, write_whole

log = logging.getLogger("roomscribe.daemon")

FILE_NAME = "mute"
LOCK_NAME = "listening"
_ON, _OFF = b"ON\n", b"OFF\n"
RETRY_S = 2.0
"""Seconds between two attempts to read or write the file."""

Stamp = tuple[int, int, int]
"""Identifies a version of the file: inode, modification time, size."""


def write(file: Path, on: bool) -> Stamp:
    """Write the file, whole or not at all, and flush it to the disk. Raises StoreError."""
    try:
        # the daemon reads what root writes; its folder keeps others out
        return _stamp(write_whole(file, _ON if on else _OFF, 0o644))
    except OSError as error:
        raise StoreError(
            f"cannot save that the appliance is {'muted' if on else 'not muted'}: {file}: "
            f"{error.strerror}; it is lost at the next start: make the folder of store.path "
            "writable, and free some space"
        ) from error


def _read(file: Path) -> tuple[Stamp | None, bool | None, str]:
    """Return the file's stamp, whether it says muted, and what is wrong with it.

    A file that cannot be read says None; one with other content says muted.
    """
    try:
        with file.open("rb") as opened:
            stamp = _stamp(os.fstat(opened.fileno()))
            text = opened.read(16)
    except (FileNotFoundError, NotADirectoryError):
        return None, False, ""
    except OSError as error:
        fix = "check the disk, or run `roomscribe mute off`"
        if isinstance(error, PermissionError):
            fix = "make the folder readable for this user, or set store.path to another"
        why = f"{file}: {error.strerror}; the microphone stays closed until it can be read: {fix}"
        return None, None, why
    if text.strip() not in (_ON.strip(), _OFF.strip()):
        return (
            stamp,
            True,
            f"{file}: expected ON or OFF, found {text!r}; staying muted: run `roomscribe mute off` "
            "to unmute",
        )
    return stamp, text.strip() == _ON.strip(), ""


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_mtime_ns, found.st_size


class Mute:
    """The mute switch. Any thread may call any method, but no signal handler."""

    def __init__(self, folder: Path, *, write: Callable[[Path, bool], Stamp] = write) -> None:
        """Read the file in `folder`; without one the appliance is not muted."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change, by the thread that made it."""
        self.unsaved = ""
        """Why the present state would be lost at a restart; "" if it is saved."""
        self.unread = ""
        """What is wrong with the file; "" if nothing is."""
        self._write, self._file = write, folder / FILE_NAME
        self._lock_file = folder / LOCK_NAME
        self._lock = threading.Lock()
        self._retry_s = 0.0
        self._unreadable = False
        """The last attempt to read the file failed."""
        self._stamp: Stamp | None = None
        self._on: bool | None = False
        """None: not known, because the file cannot be read."""
        self._read_file()

    @property
    def on(self) -> bool:
        """True while the appliance may not listen: muted, or not known. Does not wait."""
        return self._on is not False

    @property
    def is_known(self) -> bool:
        """False until the file can be read or the switch is set. Does not wait."""
        return self._on is not None

    def set(self, on: bool, who: str = "") -> None:
        """Change the state, call `on_change`, then save it. `who` is for the log.

        If it cannot be saved, the new state holds, `unsaved` says why, and `poll` tries again.
        """
        with self._lock:
            changed = self._change(on, who)
            self.unread = "" if changed else self.unread
        if changed:
            self.on_change()
        with self._lock:
            if self._on == on and (changed or self.unsaved):
                self._save(on)

    def toggle(self, who: str = "") -> None:
        """Mute or unmute; mute if the state is not known."""
        self.set(not self._on, who)

    def poll(self) -> None:
        """Read the file if another process has written it, and retry what failed."""
        with self._lock:
            try:
                stamp = _stamp(self._file.stat())
            except OSError:
                stamp = None
            gone = stamp is None and self._stamp is not None and self.on
            due = time.monotonic() >= self._retry_s
            changed = False
            if self._unreadable:
                if due and self._on is None:
                    changed = self._read_file()
            elif stamp not in (None, self._stamp):
                changed = self._read_file()
            if due and self._on is not None and (self.unsaved or gone):
                self._save(self._on)
        if changed:
            self.on_change()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Show other processes that a microphone is open, by a lock that ends with this process."""
        try:
            held = lock(
                self._lock_file, shared=True, wait=True, flags=os.O_RDONLY | os.O_CREAT, mode=0o644
            )
        except OSError as error:
            log.warning(
                "%s: %s: `roomscribe mute` cannot see whether the microphone is open",
                self._lock_file,
                error.strerror,
            )
            yield
            return
        with held:
            yield

    def _read_file(self) -> bool:
        """Take over the file's state; return True if it changes. Holds the lock."""
        known = self.unread
        self._stamp, on, self.unread = _read(self._file)
        self.unsaved, self._unreadable = "", on is None
        if self._unreadable:
            self._retry_s = time.monotonic() + RETRY_S
        if self.unread and self.unread != known:
            log.error("%s", self.unread)
        return self._change(on, "its file")

    def _change(self, on: bool | None, who: str) -> bool:
        """Change the state; return True if it is another. Holds the lock."""
        if self._on == on:
            return False
        self._on = on
        if on is not None:
            log.info("%s%s", "muted" if on else "unmuted", f" by {who}" if who else "")
        return True

    def _save(self, on: bool) -> None:
        known, self.unsaved = self.unsaved, ""
        try:
            self._stamp = self._write(self._file, on)
            self.unread, self._unreadable = "", False
        except StoreError as error:
            self.unsaved = str(error)
            self._retry_s = time.monotonic() + RETRY_S
            if self.unsaved != known:
                log.warning("%s", error)


def is_on(folder: Path) -> bool:
    """Return whether the file in `folder` says muted. Raises StoreError."""
    _, on, trouble = _read(folder / FILE_NAME)
    if on is None:
        raise StoreError(trouble)
    if trouble:
        log.error("%s", trouble)
    return on


def is_listening(folder: Path) -> bool:
    """Return True while a process has a microphone open for the log in `folder`.

    Raises StoreError.
    """
    file = folder / LOCK_NAME
    try:
        lock(file, flags=os.O_RDONLY).close()
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise StoreError(
            f"cannot see whether the microphone is open: {file}: {error.strerror}; use sudo, or "
            "become the daemon's user"
        ) from error
    return False
