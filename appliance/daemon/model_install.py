"""The model that somebody adds from the page: asked for, followed, cancelled.

The daemon may not write where models lie. systemd starts `roomscribe model serve`, which may, for
each connection to a socket (roomscribe-models.socket), and that ends with its connection. What it
tells is read when somebody asks: it fits into the socket's memory, and nothing waits here.
"""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACE = Path("/run/roomscribe-models")
"""The socket's, where the package is installed and the page is on."""
LINE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Added:
    """How a model's adding stands."""

    name: str
    doing: str = ""
    """What is done now, for people."""
    done: int = 0
    total: int = 0
    """Bytes of it; 0: nobody knows."""
    error: str = ""
    """Why it has ended without the model, with what to do."""


class Adding:
    """At most one at a time; one thread's. It outlives a reload of the configuration."""

    def __init__(self, place: Path = PLACE) -> None:
        self.place = place
        self._socket: socket.socket | None = None
        self._inbox = b""
        self._last: Added | None = None

    @property
    def possible(self) -> bool:
        """True where a model can be added so."""
        return self.place.is_socket()

    def begin(self, name: str) -> bool:
        """Asks for a model; False while another is being added. Raises OSError."""
        self.look()
        if self._socket:
            return False
        asked = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            asked.connect(str(self.place))
            asked.sendall(f"{name}\n".encode())
        except OSError:
            asked.close()
            raise
        self._socket, self._inbox, self._last = asked, b"", Added(name, "beginning")
        return True

    def look(self) -> tuple[bool, Added | None]:
        """Whether one is being added, and how it stands or why it failed; None: nothing to tell."""
        while self._socket:
            try:
                data = self._socket.recv(LINE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            *lines, self._inbox = (self._inbox + data).split(b"\n")
            for line in lines:
                self._read(line)
            if not data or len(self._inbox) > LINE_BYTES:
                self._close()
                if self._last and not self._last.error:
                    why = "it ended early; `journalctl -u 'roomscribe-models@*'` may say why"
                    self._last = Added(self._last.name, error=why)
        return self._socket is not None, self._last

    def cancel(self) -> bool:
        """Ends it, if there is one; what was downloaded is kept for the next time."""
        running, _ = self.look()
        if running:
            self._close()
            self._last = None
        return running

    def _close(self) -> None:
        if self._socket:
            self._socket.close()
            self._socket = None

    def _read(self, line: bytes) -> None:
        """Takes note of what is told."""
        name = self._last.name if self._last else ""
        with contextlib.suppress(ValueError, RecursionError, LookupError, TypeError):
            told: dict[str, Any] = json.loads(line)
            if "added" in told:
                self._last = None
            elif "error" in told:
                self._last = Added(name, error=str(told["error"]))
            else:
                self._last = Added(name, str(told["doing"]), int(told["done"]), int(told["total"]))
