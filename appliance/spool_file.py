"""A window as the bytes of one file, and back. Pure functions; no bytes make them crash.

    magic, version, attempts, header's length, CRC-32 of header and samples    16 bytes
    header    JSON: the window's fields, when it was written, on which boot
    samples   int16, little-endian

The count of attempts lies outside the checksum, so that it is raised in place by writing one byte.
"""

from __future__ import annotations

import json
import math
import re
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from appliance.records import Window, boot_id

MAGIC, VERSION = b"rswind", 1
_FRONT = struct.Struct("<6sBBII")
ATTEMPTS_AT = 7
"""Where in the file the byte of the attempts is."""
LONGEST_HEADER = 4096


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
    header = json.dumps(
        {
            "id": window.id,
            "utterance_id": window.utterance_id,
            "index": window.index,
            "last": window.last,
            "start_s": window.start_s,
            "speech_end_s": window.speech_end_s,
            "voiced_s": window.voiced_s,
            "flags": list(window.flags),
            "overlap_s": window.overlap_s,
            "samples": len(window.samples),
            "boot_id": now.boot_id,
            "monotonic_s": now.monotonic_s,
            "wall_s": now.wall_s,
        }
    ).encode("ascii")
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
    return Window(
        utterance_id=_field(header, "utterance_id", _is_text),
        index=_field(header, "index", _is_count),
        last=_field(header, "last", lambda value: isinstance(value, bool)),
        samples=np.frombuffer(sound, "<i2").astype(np.int16),
        start_s=float(_field(header, "start_s", _is_number) + moved_s),
        speech_end_s=float(_field(header, "speech_end_s", _is_number) + moved_s),
        voiced_s=float(_field(header, "voiced_s", _is_number)),
        flags=tuple(_field(header, "flags", _is_texts)),
        overlap_s=float(_field(header, "overlap_s", _is_number)),
        id=_field(header, "id", _is_id),
    )


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
