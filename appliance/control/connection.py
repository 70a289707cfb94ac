"""One client of the control socket: its lines in both directions, and what it subscribes to."""

from __future__ import annotations

import enum
import json
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_BUFFER = 1 << 16


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What clients of the control socket may take up."""

    connections: int = 32
    line_bytes: int = 65_536
    """Of a line with its end, in both directions."""
    unsent_lines: int = 256
    """A client with more unsent lines is disconnected."""
    stalled_s: float = 60.0
    """So is a client with unsent lines that has read nothing for this long."""
    silent_s: float = 10.0
    """A client without subscription that has completed no line for this long loses its place if
    all are taken."""
    replayed: int = 1000
    """Most transcripts that are sent again to a client that names the last one it has."""


LIMITS = ConnectionLimits()


class ClientState(enum.Enum):
    """What a connection is good for."""

    OPEN = "the client may send commands"
    FINISHED = "the client sends nothing more; complete lines are still answered"
    CLOSED = "nothing is sent or received any more"


@dataclass(slots=True, eq=False)
class ControlConnection:
    """One client. Used by the server's thread alone."""

    socket: socket.socket
    limits: ConnectionLimits
    state: ClientState = ClientState.OPEN
    inbox: bytearray = field(default_factory=bytearray)
    outbox: deque[bytes] = field(default_factory=deque)
    last_line_s: float = field(default_factory=time.monotonic)
    """When it connected, or last completed a line."""
    events: frozenset[str] = frozenset()
    """What it subscribes to."""
    seq: int | None = None
    """Number of the last transcript that it was sent; None: it wants none."""
    shown_state: tuple[object, ...] | None = None
    """The appliance's state as it was last sent."""
    stats_due_s: float = 0.0
    _sent_bytes: int = 0
    """Of the first unsent line."""
    _last_read_s: float = field(default_factory=time.monotonic)
    """When the client last read something, or had read everything."""

    @property
    def has_line(self) -> bool:
        """True while a complete line waits."""
        return b"\n" in self.inbox

    def receive(self) -> None:
        """Read what the client has sent, unless a complete line waits already."""
        if self.state is not ClientState.OPEN or self.has_line:
            return
        try:
            data = self.socket.recv(_BUFFER)
        except BlockingIOError:
            return
        except OSError:
            self.state = ClientState.CLOSED
            return
        if not data:
            self.state = ClientState.FINISHED
        self.inbox += data

    def next_line(self) -> bytes | None:
        """Return the next complete line; None if there is none. Raises ValueError if too long."""
        line, end, rest = self.inbox.partition(b"\n")
        if len(line) >= self.limits.line_bytes:
            raise ValueError(f"expected at most {self.limits.line_bytes} bytes a line, found more")
        if not end:
            return None
        self.inbox, self.last_line_s = rest, time.monotonic()
        return bytes(line)

    def put(self, message: Mapping[str, Any]) -> None:
        """Queue an answer."""
        line = encode_line(message)
        if len(line) > self.limits.line_bytes:
            why = f"the answer would be longer than {self.limits.line_bytes} bytes; ask for less"
            line = encode_line({"id": message["id"], **error_answer("unavailable", why)})
        self.outbox.append(line)

    def send(self) -> None:
        """Send what the client takes now, without waiting."""
        while self.outbox and self.state is not ClientState.CLOSED:
            line = self.outbox[0]
            try:
                sent = self.socket.send(line[self._sent_bytes :])
            except BlockingIOError:
                return
            except OSError:
                self.state = ClientState.CLOSED
                return
            self._last_read_s = time.monotonic()
            self._sent_bytes += sent
            if self._sent_bytes == len(line):
                self.outbox.popleft()
                self._sent_bytes = 0
        self._last_read_s = time.monotonic()

    def finish(self) -> None:
        """Send what the client takes now, and close."""
        self.send()
        self.state = ClientState.CLOSED

    @property
    def is_stalled(self) -> bool:
        """True if the client has not read for too long, or too much is unsent."""
        idle_s = time.monotonic() - self._last_read_s
        return len(self.outbox) > self.limits.unsent_lines or idle_s > self.limits.stalled_s


def encode_line(message: Mapping[str, Any]) -> bytes:
    """Return a message as it is sent; letters that UTF-8 cannot hold become question marks."""
    text = json.dumps(message, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


def error_answer(code: str, message: str) -> dict[str, Any]:
    """Return what a refused command is answered, without its id."""
    return {"ok": False, "code": code, "error": message}
