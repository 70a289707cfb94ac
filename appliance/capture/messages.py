"""What the recorder's process and the appliance say to each other on a pipe."""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER = struct.Struct("=BBId")
"""Kind, whether samples were lost before it, bytes that follow, and heard_s."""
WORDS, SOUND = 0, 1
"""JSON; int16 samples, channels in turn, as the device gives them."""


class Message(NamedTuple):
    """One thing said."""

    kind: int
    data: bytes
    heard_s: float
    """When the last sample was heard, on time.monotonic()'s clock, which all processes share."""
    lost: bool = False
    """True when samples were lost before it."""

    def packed(self) -> bytes:
        """As it goes through the pipe."""
        return HEADER.pack(self.kind, self.lost, len(self.data), self.heard_s) + self.data


class Inbox:
    """Bytes in whatever number a pipe gives them -> messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def push(self, data: bytes) -> None:
        """Takes what the pipe gave."""
        self._bytes += data

    def next(self) -> Message | None:
        """The oldest message that has come to its end; None when there is none."""
        if len(self._bytes) < HEADER.size:
            return None
        kind, lost, length, heard_s = HEADER.unpack_from(self._bytes)
        end = HEADER.size + length
        if len(self._bytes) < end:
            return None
        data = bytes(self._bytes[HEADER.size : end])
        del self._bytes[:end]
        return Message(kind, data, heard_s, bool(lost))
