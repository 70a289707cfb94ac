"""Windows that are not transcribed yet, in files in memory, so that a crash loses none.

The folder is in memory and readable for this user only. Each window has a file, which is written
before the window is queued, and deleted when the transcript is stored or the window is discarded.
The next process finds what is left. Without such a folder, windows are only in the process.

A window's file, which `pack` makes and `parse` reads:

    magic, version, attempts, header's length, CRC-32 of header and samples    16 bytes
    header    JSON: the window's fields, when it was written, on which boot
    samples   int16, little-endian

The number of attempts is not in the checksum: one byte is written in place to change it.
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
"""Offset of the byte with the number of attempts."""
HEADER_LIMIT = 4096
FILE_LIMIT = 8 << 20
"""Bytes; a window of 30 s has one million."""
NAME = re.compile(r"(\d{8})-([0-9A-Z]{26})\.window")
UNFINISHED = ".new"
"""Suffix of a file that is being written."""
IN_WORK_LIMIT = 3
"""Most windows that the encoder and the decoder work on at a time."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time on both clocks, and the boot that the monotonic clock counts from."""

    boot_id: str
    monotonic_s: float
    wall_s: float

    @classmethod
    def now(cls) -> Moment:
        """Return the present moment."""
        return cls(boot_id(), time.monotonic(), time.time())


@dataclass(frozen=True, slots=True)
class Spooled:
    """The content of a file."""

    window: Window
    attempts: int
    """Processes that died while they transcribed it."""


def pack(window: Window, now: Moment) -> bytes:
    """Return the bytes of a window's file."""
    fields = {name: getattr(window, name) for name in FIELDS}
    header = json.dumps({**fields, "samples": len(window.samples), **asdict(now)}).encode("ascii")
    body = header + window.samples.astype("<i2").tobytes()
    return _FRONT.pack(MAGIC, VERSION, 0, len(header), zlib.crc32(body)) + body


def parse(data: bytes, now: Moment) -> Spooled:
    """Return the content of a file, with times on this boot's monotonic clock.

    Raises ValueError for damaged bytes.
    """
    if len(data) < _FRONT.size:
        raise ValueError(f"expected at least {_FRONT.size} bytes, found {len(data)}")
    magic, version, attempts, length, checksum = _FRONT.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(f"expected a window of version {VERSION}, found {data[:7]!r}")
    if length > HEADER_LIMIT:
        raise ValueError(f"expected a header of at most {HEADER_LIMIT} bytes, found {length}")
    body = memoryview(data)[_FRONT.size :]
    if zlib.crc32(body) != checksum:
        raise ValueError("expected its checksum, found another: it is incomplete or damaged")
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
        age_s = max(0.0, now.wall_s - _field(header, "wall_s", _is_number))
        moved_s = now.monotonic_s - age_s - _field(header, "monotonic_s", _is_number)
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
"""The fields of a window that are in its header, and the check of each."""


def spool_folder(settings: Settings) -> Path:
    """Return spool.path, else a folder below the runtime folder. It may not exist.

    Another log has another folder, so that no daemon takes the windows of another one.
    """
    if settings.spool.path:
        return Path(settings.spool.path).expanduser()
    return runtime_folder(settings) / "spool"


def write(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    part = path.with_name(path.name + UNFINISHED)
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def read(path: Path, now: Moment) -> Spooled:
    """Return the content of a file. Raises OSError, and ValueError for a damaged file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(FILE_LIMIT + 1)
    if len(data) > FILE_LIMIT:
        raise ValueError(f"expected at most {FILE_LIMIT} bytes, found more")
    return parse(data, now)


def write_attempts(path: Path, attempts: int) -> None:
    """Write the number of attempts into a file, if it exists."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, bytes([attempts]), ATTEMPTS_AT)
        finally:
            os.close(descriptor)


def delete_windows(folder: Path) -> None:
    """Delete every window in `folder`, if it exists. Raises OSError, also if it is in use."""
    if not folder.is_dir():
        return
    held = MemoryFolder(folder)
    held.lock()
    try:
        for path in folder.iterdir():
            if NAME.fullmatch(path.name.removesuffix(UNFINISHED)):
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
    """True once a process has begun to transcribe it."""
    counted: bool = False
    """True while `attempts` includes the attempt of this process."""


class Spool:
    """The open folder, or none. Any thread may call any method, and none raises."""

    def __init__(
        self,
        held: MemoryFolder | None,
        health: Health,
        write: Callable[[Path, bytes], None] = write,
    ) -> None:
        """Own the folder `held`. Use Spool.open."""
        self.folder = held.path if held else None
        """None if windows are only in the process."""
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
        """Return the configured spool with the windows that were left in it.

        If it cannot be opened, log why and return one without a folder. If it is turned off, delete
        what was left.
        """
        folder = spool_folder(settings)
        try:
            if not settings.spool.enabled:
                delete_windows(folder)
                return cls(None, health)
            held = MemoryFolder(folder)
            held.take()
            spool = cls(held, health, write)
            spool._recover(folder)
            return spool
        except OSError as error:
            reason = error.strerror or str(error)
            log.warning("%s: no spool: %s; a crash loses waiting windows", folder, reason)
            return cls(None, health)

    def windows(self) -> list[Kept]:
        """Return the windows in it, in the order in which they were spoken."""
        with self._lock:
            return list(self._kept.values())

    @property
    def size(self) -> int:
        """Bytes in it."""
        with self._lock:
            return sum(kept.size for kept in self._kept.values())

    def put(self, window: Window) -> bool:
        """Save a window. Return False if it is only in the process."""
        if self.folder is None:
            return False
        data = pack(window, Moment.now())
        with self._lock:
            self._number += 1
            path = self.folder / f"{self._number:08}-{window.id}.window"
        try:
            self._write_file(path, data)
        except OSError as error:
            trouble = (
                f"{self.folder}: cannot save waiting windows: {error.strerror}; a crash loses them"
            )
            if self._health.trouble("spool", trouble):
                log.warning("%s", trouble)
            return False
        self._health.trouble("spool", None)
        with self._lock:
            self._add(path, window, len(data))
        return True

    def load(self, window_id: str) -> Window | None:
        """Return the window with its samples; None if it cannot be read, which is logged."""
        with self._lock:
            kept = self._kept.get(window_id)
        if kept is None:
            return None
        try:
            return read(kept.path, Moment.now()).window
        except (OSError, ValueError) as error:
            self._delete_damaged(kept.path, error)
            return None

    def begin(self, window_id: str) -> None:
        """Count an attempt, in case this process dies of it; once until `mark_survived`."""
        with self._lock:
            kept = self._kept.get(window_id)
            if kept is None:
                return
            if not kept.counted:
                kept.attempts = min(255, kept.attempts + 1)
            kept.begun = kept.counted = True
            write_attempts(kept.path, kept.attempts)

    def mark_survived(self, window_id: str) -> None:
        """Forget the attempts: it is transcribed, or no death is its fault."""
        with self._lock:
            kept = self._kept.get(window_id)
            if kept is not None:
                kept.attempts, kept.counted = 0, False
                write_attempts(kept.path, kept.attempts)

    def delete(self, window_id: str) -> None:
        """Delete a window that is stored or discarded."""
        with self._lock:
            kept = self._kept.pop(window_id, None)
        if kept is not None:
            with contextlib.suppress(OSError):
                kept.path.unlink()

    def delete_transcribed(self) -> bool:
        """Delete the oldest window that only waits for the store. Return False if there is none."""
        with self._lock:
            begun = [kept.id for kept in self._kept.values() if kept.begun]
        if len(begun) <= IN_WORK_LIMIT:
            return False
        self.delete(begun[0])
        return True

    def close(self) -> None:
        """Close the folder, and leave what is in it to the next process."""
        with self._lock:
            self._kept.clear()
            held, self._held, self.folder = self._held, None, None
        if held:
            held.leave()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _recover(self, folder: Path) -> None:
        """Add what was left in the folder; delete what is damaged. Raises OSError."""
        now = Moment.now()
        for path in sorted(folder.iterdir()):
            name = NAME.fullmatch(path.name.removesuffix(UNFINISHED))
            if name is None:
                continue
            try:
                found = read(path, now)
                if found.window.id != name[2]:
                    raise ValueError(f"expected the window of its name, found {found.window.id}")
                if path.name.endswith(UNFINISHED):
                    path = path.replace(path.with_name(name[0]))  # noqa: PLW2901
            except (OSError, ValueError) as error:
                self._delete_damaged(path, error)
                continue
            self._number = max(self._number, int(name[1]))
            self._add(path, found.window, path.stat().st_size, found.attempts)

    def _add(self, path: Path, window: Window, size: int, attempts: int = 0) -> None:
        fields = (window.id, window.utterance_id, window.duration_s)
        self._kept[window.id] = Kept(path, *fields, size, attempts)

    def _write_file(self, path: Path, data: bytes) -> None:
        """Write a file; make the folder again if it is gone. Raises OSError."""
        try:
            self._write(path, data)
        except FileNotFoundError:
            if self._held is None:
                raise
            self._held.take()
            self._write(path, data)

    def _delete_damaged(self, path: Path, error: Exception) -> None:
        with contextlib.suppress(OSError):
            path.unlink()
        if not path.name.endswith(UNFINISHED):
            log.error(
                "%s: deleted a damaged window: %s", path, getattr(error, "strerror", None) or error
            )
            self._health.count("spool_damaged")
