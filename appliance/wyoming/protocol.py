"""The Wyoming protocol's events as bytes (github.com/OHF-Voice/wyoming, wyoming/event.py): a header
in one line of JSON, further data in JSON, a payload of bytes.

The protocol's own library limits none of the three and lets other JSON than objects through. Here,
each has a limit, and everything wrong is a ProtocolError.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

VERSION = "1.10.2"
"""Release of the protocol's library with these events; no reader checks it."""
LARGEST = 64 << 10
"""Most bytes of a header, of data and of a payload: 2 s of 16 kHz mono. The library sends a tenth
of that at once."""


class ProtocolError(Exception):
    """The received data is no event, or too large."""


@dataclass(frozen=True, slots=True)
class Event:
    """A message of the protocol."""

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of an event; it says what follows."""

    type: str
    data: Mapping[str, Any]
    data_length: int
    payload_length: int

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """Return the header in a line. Raises ProtocolError."""
        table = _object(line, "a header")
        kind, data = table.get("type"), table.get("data")
        if not isinstance(kind, str):
            raise ProtocolError("expected a header with a type, found none")
        if not isinstance(data, dict | None):
            raise ProtocolError("expected data that is an object of JSON, found something else")
        lengths = [_length(table, name) for name in ("data_length", "payload_length")]
        return cls(kind, data or {}, *lengths)

    def event(self, data: bytes, payload: bytes) -> Event:
        """Return the whole event; `data` has further fields in JSON, or is empty.

        Raises ProtocolError.
        """
        more = _object(data, "data") if data else {}
        return Event(self.type, {**self.data, **more}, payload)


async def read_event(reader: asyncio.StreamReader) -> Event:
    """Return the next event. Raises OSError, ProtocolError, and asyncio's errors for an incomplete
    event and for a header that is longer than the reader's limit."""
    header = Header.parse(await reader.readuntil(b"\n"))
    data = await reader.readexactly(header.data_length)
    return header.event(data, await reader.readexactly(header.payload_length))


def pack(event: Event) -> bytes:
    """Return an event's bytes, with the data after the header, as every release writes it."""
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
