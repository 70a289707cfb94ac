"""Whether the appliance may listen: set by any process, kept in a file beside the log.

The file is the truth. `roomscribe mute` writes it, whether the daemon runs or not; the daemon reads
it at start and looks at it while it runs. What is in it survives restarts and power cuts. While it
cannot be read at the start (a failing disk) nobody may listen; it is tried again until it can. One
that can no longer be seen changes nothing: who is muted stays so.
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
AGAIN_S = 2.0
"""Between two attempts at a file that could not be read or written."""

Stamp = tuple[int, int, int]
"""What tells one version of the file from another: inode, time of writing, size."""


def write(file: Path, on: bool) -> Stamp:
    """Puts the position into `file`, whole or not at all, and on the disk. Raises StoreError."""
    try:
        # the daemon reads what root writes; its folder keeps others out
        return _stamp(write_whole(file, _ON if on else _OFF, 0o644))
    except OSError as error:
        raise StoreError(
            f"{file}: cannot keep that the appliance is {'muted' if on else 'not muted'}: expected "
            f"a file that this user may write, found: {error.strerror}; it holds until the next "
            "start only: make the folder of store.path writable, and free some space"
        ) from error


def _read(file: Path) -> tuple[Stamp | None, bool | None, str]:
    """The file's stamp and position, and what is wrong with it, in plain words.

    The position is None while the file cannot be read; what makes no sense means muted.
    """
    try:
        with file.open("rb") as opened:
            stamp = _stamp(os.fstat(opened.fileno()))
            text = opened.read(16)
    except (FileNotFoundError, NotADirectoryError):
        return None, False, ""
    except OSError as error:
        closed = "the microphone stays closed until it can be read"
        fix = "check the disk, or `roomscribe mute off`"
        if isinstance(error, PermissionError):
            fix = "give this user the folder, or set store.path to another"
        return None, None, f"{file}: expected ON or OFF, found: {error.strerror}; {closed}: {fix}"
    if text.strip() not in (_ON.strip(), _OFF.strip()):
        return (
            stamp,
            True,
            f"{file}: expected ON or OFF, found {text!r}; staying muted: "
            "`roomscribe mute off` unmutes",
        )
    return stamp, text.strip() == _ON.strip(), ""


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_mtime_ns, found.st_size


class Mute:
    """The switch. Any thread may call any method; no signal may interrupt one and call another."""

    def __init__(self, folder: Path, *, write: Callable[[Path, bool], Stamp] = write) -> None:
        """The switch as the file in `folder` has it; off when there is none."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change by the thread that made it."""
        self.unsaved = ""
        """Why the present position would not survive a restart; empty when it would."""
        self.unread = ""
        """What is wrong with the file's content; empty when all is well."""
        self._write, self._file = write, folder / FILE_NAME
        self._lock_file = folder / LOCK_NAME
        self._lock = threading.Lock()
        self._again_s = 0.0
        self._blind = False
        """There may be a file, with a position of its own."""
        self._stamp: Stamp | None = None
        self._on: bool | None = False
        self._follow()

    @property
    def on(self) -> bool:
        """True while nobody may listen: muted, or nobody knows. Does not wait."""
        return self._on is not False

    @property
    def known(self) -> bool:
        """False while the file cannot be read and nobody has turned the switch. Does not wait."""
        return self._on is not None

    def set(self, on: bool, who: str = "") -> None:
        """Turns it, then calls `on_change`, then saves it. `who` asked, for the log.

        A disk that refuses leaves it turned, with the reason in `unsaved`, and is tried again.
        """
        with self._lock:
            turned = self._turn(on, who)
            self.unread = "" if turned else self.unread
        if turned:
            self.on_change()
        with self._lock:
            if self._on == on and (turned or self.unsaved):
                self._save(on)

    def toggle(self, who: str = "") -> None:
        """Turns it over; mutes while nobody knows."""
        self.set(not self._on, who)

    def look(self) -> None:
        """Follows the file when somebody else has written it, and tries again what failed."""
        with self._lock:
            try:
                stamp = _stamp(self._file.stat())
            except OSError:
                stamp = None
            gone = stamp is None and self._stamp is not None and self.on
            due = time.monotonic() >= self._again_s
            turned = False
            if self._blind:
                if due and self._on is None:
                    turned = self._follow()
            elif stamp not in (None, self._stamp):
                turned = self._follow()
            if due and self._on is not None and (self.unsaved or gone):
                self._save(self._on)
        if turned:
            self.on_change()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Shows other processes, as long as it lasts, that a microphone is open.

        By a lock, which the kernel lets go of whatever ends this process.
        """
        try:
            held = lock(
                self._lock_file, shared=True, wait=True, flags=os.O_RDONLY | os.O_CREAT, mode=0o644
            )
        except OSError as error:
            log.warning("%s: %s: `roomscribe mute` cannot see us", self._lock_file, error.strerror)
            yield
            return
        with held:
            yield

    def _follow(self) -> bool:
        """Takes over the file's position; True when that is news."""
        known = self.unread
        self._stamp, on, self.unread = _read(self._file)
        self.unsaved, self._blind = "", on is None
        if self._blind:
            self._again_s = time.monotonic() + AGAIN_S
        if self.unread and self.unread != known:
            log.error("%s", self.unread)
        return self._turn(on, "its file")

    def _turn(self, on: bool | None, who: str) -> bool:
        """True when that is news."""
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
            self.unread, self._blind = "", False
        except StoreError as error:
            self.unsaved = str(error)
            self._again_s = time.monotonic() + AGAIN_S
            if self.unsaved != known:
                log.warning("%s", error)


def is_on(folder: Path) -> bool:
    """The position in the file of `folder`. Raises StoreError."""
    _, on, trouble = _read(folder / FILE_NAME)
    if on is None:
        raise StoreError(trouble)
    if trouble:
        log.error("%s", trouble)
    return on


def is_listening(folder: Path) -> bool:
    """True while any process has a microphone open for `folder`'s log. Raises StoreError."""
    file = folder / LOCK_NAME
    try:
        lock(file, flags=os.O_RDONLY).close()
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise StoreError(
            f"{file}: expected a file that this user may read, found: {error.strerror}; "
            "become the daemon's user, or use sudo"
        ) from error
    return False
