"""Whether the appliance is muted: a file beside the log, which any process may write.

`roomscribe mute` writes the file, whether the daemon runs or not. The daemon reads it at the start
and polls it. It survives restarts and power cuts. If it cannot be read at the start (a failing
disk), the appliance counts as muted until it can. If it disappears later, nothing changes.

A mute may have an end, which is in the file, too. It is unmuted when the wall clock has reached the
end and the time until then has really passed, so that a clock that is set forward does not open the
microphone early. After a restart the wall clock alone decides.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from appliance.daemon.mute_end import format_end, parse_end
from appliance.errors import StoreError
from appliance.system import boot_clock_s, lock, write_whole

log = logging.getLogger("roomscribe.daemon")

FILE_NAME = "mute"
LOCK_NAME = "listening"
HOME = "Home Assistant"
_ON, _ON_THERE, _OFF = b"ON\n", b"ON there\n", b"OFF\n"
RETRY_S = 2.0
"""Seconds between two attempts to read or write the file."""

Stamp = tuple[int, int, int]
"""Identifies a version of the file: inode, modification time, size."""


class Position(NamedTuple):
    """Muted or not, and until when."""

    on: bool
    until: datetime | None = None
    """When it is unmuted by itself, in UTC and whole seconds; None: never."""
    there: bool = False
    """Muted by HOME, which may unmute."""

    def has_ended(self, now: datetime) -> bool:
        """Return True for a mute whose end has come."""
        return self.on and self.until is not None and now >= self.until


def write(file: Path, position: Position) -> Stamp:
    """Write the file, whole or not at all, and flush it to the disk. Raises StoreError."""
    text = (_ON_THERE if position.there else _ON) if position.on else _OFF
    if position.on and position.until:
        text = f"ON {position.until.replace(tzinfo=None).isoformat(timespec='seconds')}Z\n".encode()
    try:
        # the daemon reads what root writes; its folder keeps others out
        return _stamp(write_whole(file, text, 0o644))
    except OSError as error:
        raise StoreError(
            f"cannot save that the appliance is {'muted' if position.on else 'not muted'}: {file}: "
            f"{error.strerror}; it is lost at the next start: make the folder of store.path "
            "writable, and free some space"
        ) from error


def _read(file: Path) -> tuple[Stamp | None, Position | None, str]:
    """Return the file's stamp, its position, and what is wrong with it.

    A file that cannot be read has the position None; one with other content says muted.
    """
    try:
        with file.open("rb") as opened:
            stamp = _stamp(os.fstat(opened.fileno()))
            text = opened.read(64)
    except (FileNotFoundError, NotADirectoryError):
        return None, Position(False), ""
    except OSError as error:
        fix = "check the disk, or run `roomscribe mute off`"
        if isinstance(error, PermissionError):
            fix = "make the folder readable for this user, or set store.path to another"
        why = f"{file}: {error.strerror}; the microphone stays closed until it can be read: {fix}"
        return None, None, why
    try:
        return stamp, _parse(text.strip()), ""
    except (ValueError, OverflowError):
        why = f"{file}: expected ON or OFF, found {text[:24]!r}; staying muted: run "
        return stamp, Position(True), why + "`roomscribe mute off` to unmute"


def _parse(text: bytes) -> Position:
    """Return the position that the file's text says. Raises ValueError."""
    if text in (_ON.strip(), _ON_THERE.strip(), _OFF.strip()):
        return Position(text != _OFF.strip(), there=text == _ON_THERE.strip())
    word, _, end = text.decode("ascii").partition(" ")
    until = datetime.fromisoformat(end)
    if word != "ON" or until.tzinfo is None:
        raise ValueError(text)
    return Position(True, until.astimezone(UTC))


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_mtime_ns, found.st_size


class Mute:
    """The mute switch. Any thread may call any method, but no signal handler."""

    def __init__(
        self,
        folder: Path,
        *,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        """Read the file in `folder`; without one the appliance is not muted. `on_change` is called
        after each change, by the thread that made it."""
        self._on_change = on_change
        self.unsaved = ""
        """Why the present state would be lost at a restart; "" if it is saved."""
        self.unread = ""
        """What is wrong with the file; "" if nothing is."""
        self._file, self._lock_file = folder / FILE_NAME, folder / LOCK_NAME
        self._lock = threading.Lock()
        self._retry_s = 0.0
        self._unreadable = False
        """The last attempt to read the file failed."""
        self._stamp: Stamp | None = None
        self._position: Position | None = Position(False)
        """None: not known, because the file cannot be read."""
        self._end_uptime_s = 0.0
        """The mute does not end before this uptime."""
        self._read_file()
        self._end_uptime_s = 0.0  # the machine may have been off
        self._end()

    @property
    def on(self) -> bool:
        """True while the appliance may not listen: muted, or not known. Does not wait."""
        position = self._position
        return position is None or position.on

    @property
    def until(self) -> datetime | None:
        """When it is unmuted by itself; None: never, or it is not muted. Does not wait."""
        position = self._position
        return position.until if position else None

    @property
    def is_known(self) -> bool:
        """False until the file can be read or the switch is set. Does not wait."""
        return self._position is not None

    def set(self, on: bool, who: str = "", end: str = "") -> None:
        """Change the state, call `on_change`, then save it. `who` is for the log.

        `end` is when a mute ends by itself, such as 30m or tomorrow; "": never. If the state cannot
        be saved, it holds, `unsaved` says why, and `poll` tries again. Raises ValueError for a
        wrong end.
        """
        if end and not on:
            raise ValueError("expected no end, because only a mute has one")
        wanted = Position(
            on, parse_end(end, datetime.now(UTC)) if end else None, on and who == HOME
        )
        with self._lock:
            changed = self._change(wanted, who)
            self.unread = "" if changed else self.unread
        if changed:
            self._on_change()
        with self._lock:
            if self._position == wanted and (changed or self.unsaved):
                self._save(wanted)

    def follow_home(self, on: bool) -> None:
        """Mute for HOME, and unmute only what it has muted."""
        position = self._position
        if position and (not position.on if on else position.there):
            self.set(on, HOME)

    def toggle(self, who: str = "") -> None:
        """Mute or unmute; mute if the state is not known."""
        position = self._position
        self.set(not (position and position.on), who)

    def poll(self) -> None:
        """Read the file if another process has written it, retry what failed, and unmute when the
        mute ends."""
        with self._lock:
            try:
                stamp = _stamp(self._file.stat())
            except OSError:
                stamp = None
            gone = stamp is None and self._stamp is not None and self.on
            due = time.monotonic() >= self._retry_s
            changed = False
            if self._unreadable:
                if due and self._position is None:
                    changed = self._read_file()
            elif stamp not in (None, self._stamp):
                changed = self._read_file()
            if due and self._position is not None and (self.unsaved or gone):
                self._save(self._position)
            changed = self._end() or changed
        if changed:
            self._on_change()

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
        self._stamp, position, self.unread = _read(self._file)
        self.unsaved, self._unreadable = "", position is None
        if self._unreadable:
            self._retry_s = time.monotonic() + RETRY_S
        if self.unread and self.unread != known:
            log.error("%s", self.unread)
        return self._change(position, "its file")

    def _change(self, position: Position | None, who: str) -> bool:
        """Change the state; return True if it is another. Holds the lock."""
        if self._position == position:
            return False
        self._position = position
        if position is None:
            return True
        now = datetime.now(UTC)
        if position.until:
            self._end_uptime_s = boot_clock_s() + (position.until - now).total_seconds()
        state = f"muted{format_end(position.until, now)}" if position.on else "unmuted"
        log.info("%s%s", state, f" by {who}" if who else "")
        return True

    def _end(self) -> bool:
        """Unmute if the mute's end has come; return True if so. Holds the lock."""
        position = self._position
        if position is None or not position.has_ended(datetime.now(UTC)):
            return False
        if boot_clock_s() < self._end_uptime_s:
            return False  # the wall clock was set forward
        self._change(Position(False), "the clock")
        self._save(Position(False))
        return True

    def _save(self, position: Position) -> None:
        known, self.unsaved = self.unsaved, ""
        try:
            self._stamp = write(self._file, position)
            self.unread, self._unreadable = "", False
        except StoreError as error:
            self.unsaved = str(error)
            self._retry_s = time.monotonic() + RETRY_S
            if self.unsaved != known:
                log.warning("%s", error)


def read_position(folder: Path) -> Position:
    """Return what the file in `folder` says; a mute that has ended is none. Raises StoreError."""
    _, position, trouble = _read(folder / FILE_NAME)
    if position is None:
        raise StoreError(trouble)
    if trouble:
        log.error("%s", trouble)
    return Position(False) if position.has_ended(datetime.now(UTC)) else position


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
