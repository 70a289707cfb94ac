"""`roomscribe model serve`: add a model for the page, which systemd connects to standard input.

The command ends when the page cancels it or goes away. What it leaves then is what a kill leaves:
the next command deletes it, and continues the download.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from appliance.convert import ProgressDisplay, UnreachableError
from appliance.errors import ConfigError, RoomscribeError
from appliance.system import BackgroundTask, shorten

if TYPE_CHECKING:
    from appliance.convert import AddRequest

NAME_BYTES = 100
"""Longest name of a model that is read."""
OFFLINE = (
    "No connection to the model hub. Check this machine's connection to the internet, then try "
    "again."
)
"""What the page shows; its readers have no command line before them."""
CANCELLED = 143
"""Exit status of a command that SIGTERM ended, for a shell."""
Build = Callable[["AddRequest", Callable[[str], object], ProgressDisplay], object]


def serve(build: Build) -> int:
    """Add the published model that the page names; return 1 if it could not be added.

    `build` downloads, builds and installs a model, and reports what it does.
    """
    from appliance.convert import AUTO, AddRequest
    from appliance.infer import find_chip
    from appliance.model import library

    page = _connection()
    name = sys.stdin.buffer.readline(NAME_BYTES).decode(errors="replace").strip()
    BackgroundTask(lambda: _end_with(page), "page")
    line, progress = {"added": name}, _PageProgress()
    try:
        if name not in library.PUBLISHED:
            known = ", ".join(library.PUBLISHED)
            raise ConfigError(f"model: expected one of {known}, found {shorten(name)}")
        request = AddRequest(name, hef=AUTO, chip_present=find_chip())
        build(request, progress.note, progress)
    except UnreachableError:
        line = {"error": OFFLINE}
    except RoomscribeError as error:
        line = {"error": str(error)}
    with suppress(OSError):  # the page may have gone
        print(json.dumps(line), flush=True)
    return int("error" in line)


def show(line: dict[str, object]) -> None:
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
    """End the command when the page closes the connection."""
    with suppress(OSError):
        while page.recv(NAME_BYTES):
            pass
    os._exit(CANCELLED)


class _PageProgress(ProgressDisplay):
    """Sends a line for each step and percent."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = "", -1

    def show(self) -> None:
        """Send what is done now, if it is another percent."""
        shown = self.step, 100 * self.done // self.total if self.total else 0
        if shown != self._shown:
            self._shown = shown
            show({"doing": self.step, "done": self.done, "total": self.total})

    def note(self, line: str) -> None:
        """Show a line before the next step."""
        show({"doing": line, "done": 0, "total": 0})
