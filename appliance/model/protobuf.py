"""Protobuf messages (protobuf.dev, encoding) walked through field by field, without their schema.

For messages whose schema is not at hand: the descriptions in HEFs.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

VARINT, LENGTH = 0, 2
FIXED = {1: 8, 5: 4}
"""Wire types, the last two with their bytes."""


class Field(NamedTuple):
    """Where a field lies in the data."""

    number: int
    wire: int
    value: int
    """Of a VARINT; else 0."""
    start: int
    """Of its key."""
    begin: int
    """Of its content, behind the key and the length."""
    end: int


def fields(data: memoryview | mmap.mmap, begin: int, end: int) -> Iterator[Field]:
    """The fields of the message between two offsets, in order. Raises ValueError where it breaks
    off or is no message."""
    at = begin
    while at < end:
        start, value = at, 0
        key, at = _varint(data, at, end)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, stop = _varint(data, at, end)
        elif wire == LENGTH:
            length, at = _varint(data, at, end)
            stop = at + length
        elif wire in FIXED:
            stop = at + FIXED[wire]
        else:
            raise ValueError("bytes that are no message")
        if stop > end:
            raise ValueError("a file that is cut off")
        yield Field(number, wire, value, start, at, stop)
        at = stop


def _varint(data: memoryview | mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """A whole number of up to 64 bits and the offset behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise ValueError("a file that is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("bytes that are no message")
