"""`roomscribe model serve`: add a model for the page, which systemd connects to standard input.

The work is done in a child process, which is killed when the page cancels it or goes away.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from appliance.config import Settings
from appliance.convert import WorkInSteps
from appliance.errors import ConfigError, RoomscribeError
from appliance.system import Child, ChildDiedError, ChildFailedError, shorten

if TYPE_CHECKING:
    from appliance.convert import AddRequest, ProgressDisplay

NAME_BYTES = 100
"""Longest name of a model that is read."""
OFFLINE = (
    "No connection to the model hub. Check this machine's connection to the internet, then try "
    "again."
)
"""What the page shows; its readers have no command line before them."""
CANCELLED = 143
"""Exit status of a command that SIGTERM ended, for a shell."""
Build = Callable[["AddRequest", Callable[[str], object], "ProgressDisplay"], object]


def serve(settings: Settings, build: Build) -> int:
    """Add the model that the page names; return 1 if it could not be added.

    `build` downloads, builds and installs a model, and reports what it does.
    """
    page = _connection()
    name = sys.stdin.buffer.readline(NAME_BYTES).decode(errors="replace").strip()
    try:
        with Child(add, name, settings, build) as child:
            while True:
                line: dict[str, Any] = child.receive(poll=lambda: _end_with(page))
                if "doing" not in line:
                    break
                show(line)
    except (OSError, ChildDiedError, ChildFailedError) as error:
        line = {"error": f"the work ended unexpectedly: {error}"}
    with suppress(OSError):  # the page may have gone
        print(json.dumps(line), flush=True)
    return int("error" in line)


def show(line: dict[str, Any]) -> None:
    """Write a line of progress.

    While the page is closed, nothing reads from the socket, and its buffer fills. Once a quarter of
    it is full, progress is left out, so that the last line always fits.
    """
    with suppress(OSError):
        if select.select([], [sys.stdout.fileno()], [], 0)[1]:  # a quarter is used at most
            print(json.dumps(line), flush=True)


def _connection() -> socket.socket:
    """Return standard input as the connection that systemd opened. Raises ConfigError."""
    number = -1
    try:
        number = os.dup(0)
        return socket.socket(fileno=number)
    except OSError:
        if number >= 0:
            os.close(number)
        raise ConfigError(
            "standard input is no connection of systemd's roomscribe-models.socket. To add a "
            "model, run `roomscribe model add NAME`."
        ) from None


def _end_with(page: socket.socket) -> None:
    """End the command if the page has closed the connection."""
    try:
        gone = not page.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return
    except OSError:
        gone = True
    if gone:
        raise SystemExit(CANCELLED)


class _Progress(WorkInSteps):
    """A ProgressDisplay that sends a line for each percent of the whole work."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection, self._shown = connection, ("", -1)

    def begin(self, name: str, done: int, total: int | None) -> None:
        """Begin a step, such as a download, of which `done` is done already."""
        super().begin(name, done, total)
        self.advance(0)

    def advance(self, count: float) -> None:
        """Add `count` to what is done."""
        super().advance(count)
        shown = self.step, int(100 * self.done / self.total) if self.total else 0
        if shown != self._shown:
            self._shown = shown
            line = {"doing": self.step, "done": int(self.done), "total": int(self.total)}
            self._connection.send(line)

    def note(self, line: str) -> None:
        """Show a line before the next step."""
        self._connection.send({"doing": line, "done": 0, "total": 0})


def add(connection: Connection, name: str, settings: Settings, build: Build) -> dict[str, str]:
    """Add a published model, in the child; return the last line for the page."""
    from appliance.convert import AUTO, AddRequest, UnreachableError
    from appliance.infer import find_chip
    from appliance.model import library

    progress = _Progress(connection)
    try:
        if name not in library.PUBLISHED:
            known = ", ".join(library.PUBLISHED)
            raise ConfigError(f"model: expected one of {known}, found {shorten(name)}")
        local = settings.model.sources
        request = AddRequest(name, local=local, hef=AUTO, chip_present=find_chip())
        build(request, progress.note, progress)
    except RoomscribeError as error:
        return {"error": OFFLINE if isinstance(error, UnreachableError) else str(error)}
    return {"added": name}
