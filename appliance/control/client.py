"""Client of the control socket: commands and events. It needs the standard library only."""

import contextlib
import json
import socket
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from appliance.errors import DaemonError
from appliance.system import Closing, json_object, shorten

ANSWER_S = 20.0
"""Longest wait for an answer. Listing microphones takes 15 s if the sound server hangs."""
REFUSED_S = 1.0
"""Longest wait for the reason, if the daemon closes the connection."""
_LINE_BYTES = 1 << 20


class ControlClient(Closing):
    """One connection. One thread. `fileno` is for select: there may be an event then."""

    def __init__(self, paths: Iterable[Path], within_s: float = ANSWER_S) -> None:
        """Connect to the first of the sockets at `paths` that exists.

        Raises DaemonError if no daemon listens there, or this user may not connect.
        """
        self._within_s = within_s
        self._number = 0
        self._inbox = bytearray()
        self._events: deque[dict[str, Any]] = deque()
        self._socket = _connect(list(paths))

    def fileno(self) -> int:
        """Return the socket's file descriptor."""
        return self._socket.fileno()

    def call(self, command: str, within_s: float | None = None, **arguments: object) -> Any:
        """Return the result of a command. Raises DaemonError, with the answer if it is refused."""
        self._number += 1
        request = {"id": self._number, "command": command, **arguments}
        deadline_s = time.monotonic() + (within_s or self._within_s)
        try:
            self._socket.settimeout(self._within_s)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            # a daemon that refuses the connection sends the reason before it closes it
            refused = self._message(time.monotonic() + REFUSED_S) if self._has_input() else None
            why = (refused or {}).get("error") or error.strerror or str(error)
            raise _no_answer(why) from error
        while (message := self._message(deadline_s)) is not None:
            if "event" in message:
                self._events.append(message)
            elif message.get("id") in (self._number, None):
                if message.get("ok"):
                    return message.get("result")
                failure = DaemonError(str(message.get("error", "no reason")))
                failure.answer = message
                raise failure
        raise _no_answer(f"no answer to {command} within {within_s or self._within_s:g} s")

    def subscribe(self, *events: str, after: int | None = None) -> Any:
        """Subscribe to these events, in place of others; return the result. Raises DaemonError."""
        return self.call("subscribe", events=list(events), after=after)

    def next_event(self, within_s: float) -> tuple[str, dict[str, Any]] | None:
        """Return the next event and its data; None if none comes within `within_s`.

        Raises DaemonError if the connection has ended.
        """
        message = self._events.popleft() if self._events else None
        deadline_s = time.monotonic() + within_s
        while message is None or "event" not in message:
            message = self._message(deadline_s)
            if message is None:
                return None
        return message["event"], message["data"]

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _has_input(self) -> bool:
        with contextlib.suppress(OSError):
            self._socket.settimeout(0.1)
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        return False

    def _message(self, deadline_s: float) -> dict[str, Any] | None:
        """Return the next line; None if none comes in time. Raises DaemonError."""
        while b"\n" not in self._inbox:
            # take what is there, even if the time is up
            self._socket.settimeout(max(0.0, deadline_s - time.monotonic()))
            try:
                data = self._socket.recv(1 << 16)
            except (TimeoutError, BlockingIOError):
                return None
            except OSError as error:
                raise _no_answer(error.strerror or str(error)) from error
            if not data or len(self._inbox) > _LINE_BYTES:
                raise _no_answer("it closed the connection")
            self._inbox += data
        line, _, self._inbox = self._inbox.partition(b"\n")
        message = json_object(bytes(line))
        if message is None:
            raise _no_answer(f"found {shorten(bytes(line[:60]))}")
        return message


def _connect(paths: list[Path]) -> socket.socket:
    """Return a connection to the first socket that exists. Raises DaemonError."""
    failure: OSError | None = None
    for path in paths:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(ANSWER_S)
            connection.connect(str(path))
            return connection
        except OSError as error:
            connection.close()
            if not isinstance(error, FileNotFoundError):
                failure = error
    if isinstance(failure, PermissionError):
        raise DaemonError(
            "this user may not connect to the daemon: use sudo, or join its group (`sudo usermod "
            "-aG roomscribe USER`, then log in again)"
        ) from failure
    raise DaemonError(
        "the daemon is not running: start it with `sudo systemctl start roomscribe`"
    ) from failure


def _no_answer(why: str) -> DaemonError:
    return DaemonError(f"the daemon does not answer: {why}; see `systemctl status roomscribe`")
