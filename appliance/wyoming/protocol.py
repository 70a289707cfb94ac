"""The Wyoming protocol's events as bytes (github.com/OHF-Voice/wyoming, wyoming/event.py): a header
in one line of JSON, further data in JSON, a payload of bytes.

The protocol's own library limits none of the three and lets other JSON than objects through. Here,
each has a limit, and everything wrong is a ProtocolError.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.system import json_object

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


async def read_event(reader: asyncio.StreamReader) -> Event:
    """Return the next event. Raises OSError, ProtocolError, and asyncio's errors for an incomplete
    event and for a header that is longer than the reader's limit."""
    header = _object(await reader.readuntil(b"\n"), "a header")
    kind, fields = header.get("type"), header.get("data")
    if not isinstance(kind, str):
        raise ProtocolError("expected a header with a type, found none")
    if not isinstance(fields, dict | None):
        raise ProtocolError("expected data that is an object of JSON, found something else")
    lengths = [_length(header, name) for name in ("data_length", "payload_length")]
    data, payload = [await reader.readexactly(length) for length in lengths]
    more = _object(data, "data") if data else {}
    return Event(kind, {**(fields or {}), **more}, payload)


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
    found = json_object(text)
    if found is None:
        raise ProtocolError(f"expected {what} that is an object of JSON, found something else")
    return found


def _length(table: Mapping[str, Any], name: str) -> int:
    length = table.get(name) or 0
    if type(length) is not int or not 0 <= length <= LARGEST:
        raise ProtocolError(f"expected {name} of at most {LARGEST} bytes, found another")
    return length
