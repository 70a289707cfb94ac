"""The Wyoming protocol's events as bytes (github.com/OHF-Voice/wyoming, wyoming/event.py): a header
in one line of JSON, further data in JSON, a payload of bytes. No sockets.

The protocol's own library puts no bound on any of the three, and lets what is no object of JSON
escape; here each has a limit, and whatever is wrong is a ProtocolError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

VERSION = "1.10.2"
"""The release of the protocol's library whose events these are; no reader of it looks at this."""
LARGEST = 64 << 10
"""Most bytes of a header, of data, and of a payload; 2 s of 16 kHz mono. The library's writers send
a tenth of that at once."""


class ProtocolError(Exception):
    """What came is no event, or too large for one."""


@dataclass(frozen=True, slots=True)
class Event:
    """What one side tells the other."""

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Header:
    """The line that an event begins with: what else follows it."""

    type: str
    data: Mapping[str, Any]
    data_length: int
    payload_length: int

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """The header in a line. Raises ProtocolError."""
        table = _object(line, "a header")
        kind, data = table.get("type"), table.get("data")
        if not isinstance(kind, str):
            raise ProtocolError("expected a header with a type, found none")
        if not isinstance(data, dict | None):
            raise ProtocolError("expected data that is an object of JSON, found something else")
        lengths = [_length(table, name) for name in ("data_length", "payload_length")]
        return cls(kind, data or {}, *lengths)

    def event(self, data: bytes, payload: bytes) -> Event:
        """The whole event; `data` are further fields in JSON, or nothing. Raises ProtocolError."""
        more = _object(data, "data") if data else {}
        return Event(self.type, {**self.data, **more}, payload)


def pack(event: Event) -> bytes:
    """An event's bytes, its data behind the header as every release of the library writes it."""
    data = _json(event.data) if event.data else b""
    header: dict[str, Any] = {"type": event.type, "version": VERSION}
    if data:
        header["data_length"] = len(data)
    if event.payload:
        header["payload_length"] = len(event.payload)
    return b"".join((_json(header), b"\n", data, event.payload))


def _json(table: Mapping[str, Any]) -> bytes:
    return json.dumps(table, ensure_ascii=False).encode("utf-8", "replace")


def _object(text: bytes, what: str) -> dict[str, Any]:
    """The object of JSON in `text`. Raises ProtocolError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ProtocolError(f"expected {what} that is an object of JSON, found something else")
    return found


def _length(table: Mapping[str, Any], name: str) -> int:
    length = table.get(name) or 0
    if type(length) is not int or not 0 <= length <= LARGEST:
        raise ProtocolError(f"expected {name} of at most {LARGEST} bytes, found another")
    return length
