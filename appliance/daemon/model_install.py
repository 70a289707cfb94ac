"""Commands of the control socket that list and install models.

The daemon may not write to the models' folder. For each connection to a socket
(roomscribe-models.socket) systemd starts `roomscribe model serve`, which may, and which ends with
its connection. It leaves messages out while no client reads them, so it never waits.
"""

import contextlib
import json
import os
import shlex
import socket
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from appliance.control import ControlError
from appliance.daemon.command_group import CommandGroup, bad_request, unavailable
from appliance.errors import RoomscribeError
from appliance.infer import lacking_runtime
from appliance.model import installed_bundles, library
from appliance.system import free_memory, shorten

SOCKET = Path("/run/roomscribe-models")
"""Exists where the package is installed and the page is on."""
VARIABLE = "ROOMSCRIBE_MODELS_COMMAND"
"""What is run instead in a container, where systemd starts nothing; it belongs to the same user."""
LINE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class InstallProgress:
    """How far the installation of a model is."""

    name: str
    doing: str = ""
    """The present step, for people."""
    done: int = 0
    total: int = 0
    """Bytes of the present step; 0: not known."""
    error: str = ""
    """Why it failed, with what to do; "" while it runs."""


class ModelInstaller:
    """Installs one model at a time. One thread. It outlives a reload of the configuration."""

    def __init__(self, path: Path = SOCKET) -> None:
        self.path, self._command = path, shlex.split(os.environ.get(VARIABLE, ""))
        self._socket: socket.socket | None = None
        self._inbox = b""
        self._last: InstallProgress | None = None

    @property
    def is_available(self) -> bool:
        """True where models can be installed this way."""
        return bool(self._command) or self.path.is_socket()

    def start(self, name: str) -> bool:
        """Request a model; return False while another one is being installed. Raises OSError."""
        self.poll()
        if self._socket:
            return False
        if self._command:
            connection, theirs = socket.socketpair()
            with theirs:
                ends = theirs.fileno()
                self._builder = subprocess.Popen(self._command, stdin=ends, stdout=ends)
        else:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if not self._command:
                connection.connect(str(self.path))
            connection.sendall(f"{name}\n".encode())
            connection.setblocking(False)
        except OSError:
            connection.close()
            raise
        self._socket, self._inbox, self._last = connection, b"", InstallProgress(name, "starting")
        return True

    def poll(self) -> tuple[bool, InstallProgress | None]:
        """Return whether a model is being installed, and its progress, or why the last one failed.

        The progress is None if there is nothing to report.
        """
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
                    why = "it stopped early; `journalctl -u 'roomscribe-models@*'` may show why"
                    self._last = InstallProgress(self._last.name, error=why)
        return self._socket is not None, self._last

    def cancel(self) -> bool:
        """Stop the installation and keep its download; return False if there is none."""
        running, _ = self.poll()
        if running:
            self._close()
            self._last = None
        return running

    def _close(self) -> None:
        if self._socket:
            self._socket.close()
            self._socket = None

    def _read(self, line: bytes) -> None:
        name = self._last.name if self._last else ""
        with contextlib.suppress(ValueError, RecursionError, LookupError, TypeError):
            message: dict[str, Any] = json.loads(line)
            if "added" in message:
                self._last = None
            elif "error" in message:
                self._last = InstallProgress(name, error=str(message["error"]))
            else:
                done, total = int(message["done"]), int(message["total"])
                self._last = InstallProgress(name, str(message["doing"]), done, total)


class ModelCommands(CommandGroup):
    """`models`, `model_add` and `model_cancel`."""

    def __init__(self, installer: ModelInstaller) -> None:
        self._installer = installer

    def _answer_models(self) -> dict[str, Any]:
        installed, unfinished = installed_bundles(), library.unfinished()
        models: list[dict[str, Any]] = []
        for name, folder in installed.items():
            try:
                models.append({"name": name, **_describe(library.overview(folder))})
            except RoomscribeError as error:
                broken = library.Overview(name, shorten(error, 400), 0, False, "", ())
                models.append({"name": name, **_describe(broken), "size_mb": None})
        free = free_memory()
        offered = [
            {
                "name": name,
                "title": library.title_of(name),
                "download_mb": one.download_mb,
                "size_mb": one.disk_mb,
                "memory_mb": round(1000 * one.memory_gb),
                "fits": free > 1e9 * one.memory_gb,
                "begun_mb": round(unfinished[name].size / 1e6, 1) if name in unfinished else None,
            }
            for name, one in library.PUBLISHED.items()
            if name not in installed
        ]
        running, last = self._installer.poll()
        progress = {**asdict(last), "title": library.title_of(last.name)} if last else None
        return {
            "models": models,
            "offered": offered,
            "adding": progress if running else None,
            "failed": None if running else progress,
            "possible": self._installer.is_available and not lacking_runtime(),
        }

    def _answer_model_add(self, model: Any) -> dict[str, Any]:
        name = model
        if not isinstance(name, str) or name not in library.PUBLISHED:
            raise bad_request(f"model: expected one of {', '.join(library.PUBLISHED)}")
        if why := lacking_runtime():
            raise unavailable(why)
        fix = f"run `sudo roomscribe model add {name}` instead"
        if not self._installer.is_available:
            raise unavailable(f"models can be added here only while the page is on; {fix}")
        try:
            started = self._installer.start(name)
        except OSError as error:
            why = error.strerror or str(error)
            raise unavailable(f"{self._installer.path}: {why}; {fix}") from error
        if not started:
            raise ControlError("too_many", "another model is being added; cancel it, or wait")
        return {"adding": name}

    def _answer_model_cancel(self) -> dict[str, Any]:
        return {"cancelled": self._installer.cancel()}


def _describe(found: library.Overview) -> dict[str, Any]:
    """Return the fields of an installed model."""
    return {
        "title": shorten(found.title, 100),
        "size_mb": round(found.size / 1e6, 1),
        "about": shorten(found.source, 400),
        "npu": found.npu,
        "languages": list(found.languages),
    }
