"""Windows that are not transcribed yet, in memory that outlives the process: nothing that was
spoken to its end is lost with it.

One file a window in a folder in memory, for this user alone: written before the window is queued,
deleted when its transcript is in the store or it was discarded. What a process leaves behind, the
next one finds. Without such a folder everything goes on, and windows are in the process alone.

A window's file, which `pack` makes and `parse` reads, whatever bytes there are:

    magic, version, attempts, header's length, CRC-32 of header and samples    16 bytes
    header    JSON: the window's fields, when it was written, on which boot
    samples   int16, little-endian

The count of attempts lies outside the checksum, so that it is raised in place by writing one byte.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from appliance.config import Settings
from appliance.daemon.health import Health
from appliance.records import Window
from appliance.store import MemoryFolder, runtime_folder
from appliance.system import boot_id

log = logging.getLogger("roomscribe.daemon")

MAGIC, VERSION = b"rswind", 1
_FRONT = struct.Struct("<6sBBII")
ATTEMPTS_AT = 7
"""Where in the file the byte of the attempts is."""
LONGEST_HEADER = 4096
LARGEST = 8 << 20
"""No window has so many bytes: 30 s have one million."""
NAME = re.compile(r"(\d{8})-([0-9A-Z]{26})\.window")
BESIDE = ".new"
"""Ends the name of a file that is being written."""
IN_WORK = 3
"""So many windows are with the encoder and the decoder at most."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, on both clocks, and the boot that the monotonic one counts from."""

    boot_id: str
    monotonic_s: float
    wall_s: float

    @classmethod
    def now(cls) -> Moment:
        """This one."""
        return cls(boot_id(), time.monotonic(), time.time())


@dataclass(frozen=True, slots=True)
class Spooled:
    """What a file holds."""

    window: Window
    attempts: int
    """How often transcribing it was begun by a process that did not live to end it."""


def pack(window: Window, now: Moment) -> bytes:
    """The file's bytes."""
    fields = {name: getattr(window, name) for name in FIELDS}
    header = json.dumps({**fields, "samples": len(window.samples), **asdict(now)}).encode("ascii")
    body = header + window.samples.astype("<i2").tobytes()
    return _FRONT.pack(MAGIC, VERSION, 0, len(header), zlib.crc32(body)) + body


def parse(data: bytes, now: Moment) -> Spooled:
    """The window in a file's bytes, its times on this boot's monotonic clock.

    Raises ValueError, which says what is wrong.
    """
    if len(data) < _FRONT.size:
        raise ValueError(f"expected at least {_FRONT.size} bytes, found {len(data)}")
    magic, version, attempts, length, checksum = _FRONT.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(f"expected a window of version {VERSION}, found {data[:7]!r}")
    if length > LONGEST_HEADER:
        raise ValueError(f"expected a header of at most {LONGEST_HEADER} bytes, found {length}")
    body = memoryview(data)[_FRONT.size :]
    if zlib.crc32(body) != checksum:
        raise ValueError("expected its checksum, found another: it is torn or damaged")
    try:
        header = json.loads(bytes(body[:length]).decode("ascii"))
    except (ValueError, RecursionError):
        raise ValueError("expected a header in JSON, found something else") from None
    return Spooled(_window(header, bytes(body[length:]), now), attempts)


def _window(header: Any, sound: bytes, now: Moment) -> Window:
    if not isinstance(header, dict):
        raise ValueError(f"expected a header of fields, found {header!r:.40}")
    count = _field(header, "samples", _is_count)
    if not count or len(sound) != 2 * count:
        raise ValueError(f"expected {count} samples, found {len(sound)} bytes")
    moved_s = 0.0
    if _field(header, "boot_id", _is_text) != now.boot_id or not now.boot_id:
        away_s = max(0.0, now.wall_s - _field(header, "wall_s", _is_number))
        moved_s = now.monotonic_s - away_s - _field(header, "monotonic_s", _is_number)
    header.setdefault("continues", "")  # an older version's
    values = {name: _field(header, name, fits) for name, fits in FIELDS.items()}
    values["start_s"] += moved_s
    values["speech_end_s"] += moved_s
    values["flags"] = tuple(values["flags"])
    return Window(samples=np.frombuffer(sound, "<i2").astype(np.int16), **values)


def _field(header: dict[str, Any], name: str, fits: Callable[[Any], bool]) -> Any:
    value = header.get(name)
    if not fits(value):
        raise ValueError(f"the header's {name} is {value!r:.40}")
    return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e12 and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 64


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 16 and all(map(_is_text, value))


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9A-Z]{26}", value) is not None


FIELDS: dict[str, Callable[[Any], bool]] = {
    "id": _is_id,
    "utterance_id": _is_text,
    "index": _is_count,
    "last": lambda value: isinstance(value, bool),
    "start_s": _is_number,
    "speech_end_s": _is_number,
    "voiced_s": _is_number,
    "flags": _is_texts,
    "overlap_s": _is_number,
    "continues": _is_text,
}
"""The fields of a window that stand in its header as they are, and what fits."""


def spool_folder(settings: Settings) -> Path:
    """The spool's folder, there or not: spool.path, else one below the runtime folder.

    Who keeps the log elsewhere has a spool elsewhere, too, so that nobody takes another's windows.
    """
    if settings.spool.path:
        return Path(settings.spool.path).expanduser()
    return runtime_folder(settings) / "spool"


def write(path: Path, data: bytes) -> None:
    """The whole file or none. Raises OSError."""
    beside = path.with_name(path.name + BESIDE)
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def read(path: Path, now: Moment) -> Spooled:
    """What a file holds. Raises OSError, and ValueError for a damaged one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"expected at most {LARGEST} bytes, found more")
    return parse(data, now)


def write_attempts(path: Path, attempts: int) -> None:
    """Writes the count of attempts into a file, if it is there."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, bytes([attempts]), ATTEMPTS_AT)
        finally:
            os.close(descriptor)


def delete_windows(folder: Path) -> None:
    """Deletes every window in `folder`, if it is there. Raises OSError, also when it is in use."""
    if not folder.is_dir():
        return
    held = MemoryFolder(folder)
    held.lock()
    try:
        for path in folder.iterdir():
            if NAME.fullmatch(path.name.removesuffix(BESIDE)):
                path.unlink()
    finally:
        held.leave()


@dataclass(slots=True)
class Kept:
    """A window in the spool, without its samples."""

    path: Path
    id: str
    utterance_id: str
    duration_s: float
    size: int
    attempts: int
    begun: bool = False
    """True from the moment when its transcription is begun."""
    counted: bool = False
    """True while `attempts` has this process's own."""


class Spool:
    """The open folder, or none. Any thread may call any method; none of them raises."""

    def __init__(
        self,
        held: MemoryFolder | None,
        health: Health,
        write: Callable[[Path, bytes], None] = write,
    ) -> None:
        """Takes over the folder `held`; use Spool.open."""
        self.folder = held.path if held else None
        """None when windows are kept in the process alone."""
        self._held, self._health, self._write = held, health, write
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        self._number = 0

    @classmethod
    def open(
        cls,
        settings: Settings,
        health: Health,
        write: Callable[[Path, bytes], None] = write,
    ) -> Spool:
        """The spool that the configuration asks for, with what was left in it; none with one line
        in the log where it cannot be. Where it is turned off, what was left is deleted."""
        folder = spool_folder(settings)
        try:
            if not settings.spool.enabled:
                delete_windows(folder)
                return cls(None, health)
            held = MemoryFolder(folder)
            held.take()
            spool = cls(held, health, write)
            spool._find(folder)
            return spool
        except OSError as error:
            reason = error.strerror or str(error)
            log.warning("%s: no spool: %s: a crash loses the windows that wait", folder, reason)
            return cls(None, health)

    def windows(self) -> list[Kept]:
        """The windows in it, in the order in which they were spoken."""
        with self._lock:
            return list(self._kept.values())

    @property
    def size(self) -> int:
        """Bytes in it."""
        with self._lock:
            return sum(kept.size for kept in self._kept.values())

    def put(self, window: Window) -> bool:
        """Keeps a window; False when it is kept in the process alone."""
        if self.folder is None:
            return False
        data = pack(window, Moment.now())
        with self._lock:
            self._number += 1
            path = self.folder / f"{self._number:08}-{window.id}.window"
        try:
            self._put(path, data)
        except OSError as error:
            trouble = f"{self.folder}: cannot keep windows over a crash: {error.strerror}"
            if self._health.trouble("spool", trouble):
                log.warning("%s", trouble)
            return False
        self._health.trouble("spool", None)
        with self._lock:
            self._keep(path, window, len(data))
        return True

    def load(self, window_id: str) -> Window | None:
        """The window with its samples; None, with a line in the log, when it is not there."""
        with self._lock:
            kept = self._kept.get(window_id)
        if kept is None:
            return None
        try:
            return read(kept.path, Moment.now()).window
        except (OSError, ValueError) as error:
            self._damaged(kept.path, error)
            return None

    def begin(self, window_id: str) -> None:
        """Notes in the file that its transcription is begun, in case the process does not live to
        end it; once, however often it is begun before that."""
        with self._lock:
            kept = self._kept.get(window_id)
            if kept is None:
                return
            if not kept.counted:
                kept.attempts = min(255, kept.attempts + 1)
            kept.begun = kept.counted = True
            write_attempts(kept.path, kept.attempts)

    def mark_survived(self, window_id: str) -> None:
        """Notes that its transcription has ended; it waits for the store alone."""
        with self._lock:
            kept = self._kept.get(window_id)
            if kept is not None:
                kept.attempts, kept.counted = 0, False
                write_attempts(kept.path, kept.attempts)

    def delete(self, window_id: str) -> None:
        """Deletes it: it is in the store, or was discarded."""
        with self._lock:
            kept = self._kept.pop(window_id, None)
        if kept is not None:
            with contextlib.suppress(OSError):
                kept.path.unlink()

    def delete_transcribed(self) -> bool:
        """Deletes the oldest that is transcribed and waits for the store; False without one."""
        with self._lock:
            begun = [kept.id for kept in self._kept.values() if kept.begun]
        if len(begun) <= IN_WORK:
            return False
        self.delete(begun[0])
        return True

    def close(self) -> None:
        """Leaves what is in it to the next one."""
        with self._lock:
            self._kept.clear()
            held, self._held, self.folder = self._held, None, None
        if held:
            held.leave()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, folder: Path) -> None:
        """Takes up what was left in the folder; deletes what cannot be used. Raises OSError."""
        now = Moment.now()
        for path in sorted(folder.iterdir()):
            name = NAME.fullmatch(path.name.removesuffix(BESIDE))
            if name is None:
                continue
            try:
                found = read(path, now)
                if found.window.id != name[2]:
                    raise ValueError(f"expected the window of its name, found {found.window.id}")
                if path.name.endswith(BESIDE):
                    path = path.replace(path.with_name(name[0]))  # noqa: PLW2901
            except (OSError, ValueError) as error:
                self._damaged(path, error)
                continue
            self._number = max(self._number, int(name[1]))
            self._keep(path, found.window, path.stat().st_size, found.attempts)

    def _keep(self, path: Path, window: Window, size: int, attempts: int = 0) -> None:
        """Notes what is in a file."""
        about = (window.id, window.utterance_id, window.duration_s)
        self._kept[window.id] = Kept(path, *about, size, attempts)

    def _put(self, path: Path, data: bytes) -> None:
        """Writes a file; makes the folder again when it is gone. Raises OSError."""
        try:
            self._write(path, data)
        except FileNotFoundError:
            if self._held is None:
                raise
            self._held.take()
            self._write(path, data)

    def _damaged(self, path: Path, error: Exception) -> None:
        """Deletes a file that cannot be used."""
        with contextlib.suppress(OSError):
            path.unlink()
        if not path.name.endswith(BESIDE):
            log.error("%s: deleted: %s", path, getattr(error, "strerror", None) or error)
            self._health.count("spool_damaged")
