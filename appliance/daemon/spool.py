"""Windows that are not transcribed yet, in files in memory, so that a crash loses none.

The folder is in memory and readable for this user only. Each window has a file, which is written
before the window is queued, and deleted when the transcript is stored or the window is discarded.
The next process finds what is left. Without such a folder, windows are only in the process.

A window's file, which `pack` makes and `parse` reads:

    magic, version, deaths, header's length, CRC-32 of header and samples    16 bytes
    header    JSON: the window's fields
    samples   int16, little-endian

The number of deaths is not in the checksum: one byte is written in place to change it.
"""

import contextlib
import json
import logging
import os
import re
import struct
import threading
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import numpy as np

from appliance.config import Settings
from appliance.daemon.health import Health
from appliance.records import Window
from appliance.store import MemoryFolder, runtime_folder
from appliance.system import Closing

log = logging.getLogger("roomscribe.daemon")

MAGIC, VERSION = b"rswind", 1
_FRONT = struct.Struct("<6sBBII")
DEATHS_AT = 7
"""Offset of the byte with the number of deaths."""
NAME = re.compile(r"(\d{8})-([0-9A-Z]{26})\.window")
UNFINISHED = ".new"
"""Suffix of a file that is being written."""
FIELDS = [entry.name for entry in fields(Window) if entry.name != "samples"]
"""The fields of a window that are in its header."""
IN_WORK_LIMIT = 3
"""Most windows that the encoder and the decoder work on at a time."""


def pack(window: Window) -> bytes:
    """Return the bytes of a window's file."""
    header = json.dumps({name: getattr(window, name) for name in FIELDS}).encode("ascii")
    body = header + window.samples.astype("<i2").tobytes()
    return _FRONT.pack(MAGIC, VERSION, 0, len(header), zlib.crc32(body)) + body


def parse(data: bytes) -> tuple[Window, int]:
    """Return the window in a file, and how many processes died while they transcribed it. Raises
    ValueError for an incomplete or damaged file."""
    body = memoryview(data)[_FRONT.size :]
    if len(data) < _FRONT.size:
        raise ValueError(f"expected at least {_FRONT.size} bytes, found {len(data)}")
    magic, version, deaths, length, checksum = _FRONT.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION) or zlib.crc32(body) != checksum:
        raise ValueError(f"expected a window of version {VERSION} and its checksum, found others")
    samples = np.frombuffer(body[length:], "<i2").astype(np.int16)
    try:
        header = json.loads(bytes(body[:length]))
        header["flags"] = tuple(header["flags"])
        return Window(samples=samples, **header), deaths
    except (TypeError, KeyError) as error:  # another release wrote it
        raise ValueError(f"expected a window's fields, found others: {error}") from None


def spool_folder(settings: Settings) -> Path:
    """Return spool.path, else a folder below the runtime folder. It may not exist.

    Another log has another folder, so that no daemon takes the windows of another one.
    """
    if settings.spool.path:
        return Path(settings.spool.path).expanduser()
    return runtime_folder(settings) / "spool"


def write(path: Path, data: bytes) -> None:
    """Write a file, readable for this user alone, whole or not at all. Raises OSError."""
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


def write_deaths(path: Path, deaths: int) -> None:
    """Write the number of deaths into a file, if it exists."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, bytes([deaths]), DEATHS_AT)
        finally:
            os.close(descriptor)


@dataclass(slots=True)
class Kept:
    """A window in the spool, without its samples."""

    path: Path
    id: str
    utterance_id: str
    duration_s: float
    size: int
    deaths: int
    """Processes that ended while they transcribed it."""
    begun: bool = False
    """True once a process has begun to transcribe it."""
    counted: bool = False
    """True while `deaths` includes this process, which may end while it transcribes it."""


class Spool(Closing):
    """The open folder, or none. Any thread may call any method, and none raises."""

    def __init__(self, held: MemoryFolder | None, health: Health) -> None:
        """Own the folder `held`. Use Spool.open."""
        self.folder = held.path if held else None
        """None if windows are only in the process."""
        self._held, self._health = held, health
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        self._number = 0

    @classmethod
    def open(cls, settings: Settings, health: Health) -> Self:
        """Return the configured spool with the windows that were left in it.

        If it cannot be opened, log why and return one without a folder.
        """
        folder = spool_folder(settings)
        try:
            held = MemoryFolder(folder)
            held.take()
            spool = cls(held, health)
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
        data = pack(window)
        with self._lock:
            self._number += 1
            path = self.folder / f"{self._number:08}-{window.id}.window"
        try:
            self._write_file(path, data)
        except OSError as error:
            why = f"cannot save waiting windows: {error.strerror}; a crash loses them"
            trouble = f"{self.folder}: {why}"
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
            return parse(kept.path.read_bytes())[0]
        except (OSError, ValueError) as error:
            self._delete_damaged(kept.path, error)
            return None

    def begin(self, window_id: str) -> None:
        """Count a death in advance, in case this process dies of it; once until `mark_survived`."""
        with self._lock:
            if kept := self._kept.get(window_id):
                kept.deaths = min(255, kept.deaths + (not kept.counted))
                kept.begun = kept.counted = True
                write_deaths(kept.path, kept.deaths)

    def mark_survived(self, window_id: str) -> None:
        """Forget the deaths: it is transcribed, or none is its fault."""
        with self._lock:
            if kept := self._kept.get(window_id):
                kept.deaths, kept.counted = 0, False
                write_deaths(kept.path, kept.deaths)

    def delete(self, window_id: str) -> None:
        """Delete a window that is stored or discarded."""
        with self._lock:
            kept = self._kept.pop(window_id, None)
        with contextlib.suppress(OSError):
            if kept:
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

    def _recover(self, folder: Path) -> None:
        """Add what was left in the folder; delete what is damaged. Raises OSError."""
        for path in sorted(folder.iterdir()):
            name = NAME.fullmatch(path.name.removesuffix(UNFINISHED))
            if name is None:
                continue
            try:
                window, deaths = parse(path.read_bytes())
                if window.id != name[2]:
                    raise ValueError(f"expected the window of its name, found {window.id}")
                path = path.replace(path.with_name(name[0]))  # noqa: PLW2901
            except (OSError, ValueError) as error:
                self._delete_damaged(path, error)
                continue
            self._number = max(self._number, int(name[1]))
            self._add(path, window, path.stat().st_size, deaths)

    def _add(self, path: Path, window: Window, size: int, deaths: int = 0) -> None:
        fields = (window.id, window.utterance_id, window.duration_s)
        self._kept[window.id] = Kept(path, *fields, size, deaths)

    def _write_file(self, path: Path, data: bytes) -> None:
        """Write a file; make the folder again if it is gone. Raises OSError."""
        try:
            write(path, data)
        except FileNotFoundError:
            if self._held is None:
                raise
            self._held.take()
            write(path, data)

    def _delete_damaged(self, path: Path, error: Exception) -> None:
        with contextlib.suppress(OSError):
            path.unlink()
        if not path.name.endswith(UNFINISHED):
            reason = getattr(error, "strerror", None) or error
            log.error("%s: deleted a damaged window: %s", path, reason)
            self._health.count("spool_damaged")
