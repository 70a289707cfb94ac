"""A reader of the control socket: asks, and hears events. The standard library alone."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from appliance.errors import DaemonError
from appliance.system import shorten

ANSWER_WITHIN_S = 20.0
"""The slowest command, listing microphones beside a sound server that hangs, takes 15 s."""
_LONGEST = 1 << 20


class Client:
    """One connection; one thread's. `fileno` is for select: `next` may have something then."""

    def __init__(self, places: Iterable[Path], within_s: float = ANSWER_WITHIN_S) -> None:
        """Connects to the first of the sockets at `places` that is there.

        Raises DaemonError when no daemon listens, or not to this user.
        """
        self._within_s = within_s
        self._number = 0
        self._inbox = bytearray()
        self._events: deque[dict[str, Any]] = deque()
        self._socket = _connect(list(places))

    def fileno(self) -> int:
        """The socket's."""
        return self._socket.fileno()

    def ask(self, command: str, within_s: float | None = None, **arguments: object) -> Any:
        """The result of a command. Raises DaemonError, with the daemon's line when it refuses."""
        self._number += 1
        request = {"id": self._number, "command": command, **arguments}
        deadline_s = time.monotonic() + (within_s or self._within_s)
        try:
            self._socket.settimeout(self._within_s)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            # one that refuses the connection says so before it closes it
            said = self._message(time.monotonic() + 1.0) if self._pending() else None
            raise _gone((said or {}).get("error") or error.strerror or str(error)) from error
        while (message := self._message(deadline_s)) is not None:
            if "event" in message:
                self._events.append(message)
            elif message.get("id") in (self._number, None):
                if message.get("ok"):
                    return message.get("result")
                refused = DaemonError(str(message.get("error", "no reason")))
                refused.answer = message
                raise refused
        raise _gone(f"no answer to {command} within {within_s or self._within_s:g} s")

    def subscribe(self, *events: str, after: int | None = None) -> Any:
        """Has `next` give these events; what the daemon says of it. Raises DaemonError."""
        return self.ask("subscribe", events=list(events), after=after)

    def next(self, within_s: float) -> tuple[str, dict[str, Any]] | None:
        """The next event and its data; None when none came. Raises DaemonError at the end."""
        message = self._events.popleft() if self._events else None
        deadline_s = time.monotonic() + within_s
        while message is None or "event" not in message:
            message = self._message(deadline_s)
            if message is None:
                return None
        return message["event"], message["data"]

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pending(self) -> bool:
        with contextlib.suppress(OSError):
            self._socket.settimeout(0.1)
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        return False

    def _message(self, deadline_s: float) -> dict[str, Any] | None:
        """The next line; None when none comes in time. Raises DaemonError."""
        while b"\n" not in self._inbox:
            # what is there is taken even if the time is up
            self._socket.settimeout(max(0.0, deadline_s - time.monotonic()))
            try:
                data = self._socket.recv(1 << 16)
            except (TimeoutError, BlockingIOError):
                return None
            except OSError as error:
                raise _gone(error.strerror or str(error)) from error
            if not data or len(self._inbox) > _LONGEST:
                raise _gone("it has ended")
            self._inbox += data
        line, _, self._inbox = self._inbox.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise _gone(f"found {shorten(bytes(line[:60]))}")
        return message


def _connect(places: list[Path]) -> socket.socket:
    """A connection to the first that is there. Raises DaemonError."""
    trouble: OSError | None = None
    for place in places:
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            opened.settimeout(ANSWER_WITHIN_S)
            opened.connect(str(place))
            return opened
        except OSError as error:
            opened.close()
            if not isinstance(error, FileNotFoundError):
                trouble = error
    if isinstance(trouble, PermissionError):
        raise DaemonError(
            "the daemon: expected a user who may ask it, found one who may not: use sudo, or join "
            "its group (`sudo usermod -aG roomscribe USER`, then log in again)"
        ) from trouble
    raise DaemonError(
        "the daemon: expected it to run, found nobody who listens: `sudo systemctl start "
        "roomscribe` starts it"
    ) from trouble


def _gone(why: str) -> DaemonError:
    return DaemonError(f"the daemon: expected it to answer, found: {why}; see `systemctl status`")
