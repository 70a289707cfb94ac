"""A real Mosquitto of our own on a free port, for tests and the demo."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from rigs.waiting import PATIENCE_S, until

from appliance.config import MqttSettings


def missing() -> str:
    """What to install before a broker can be started; empty when nothing."""
    absent = [name for name in ("mosquitto", "mosquitto_passwd") if not find_program(name)]
    return f"not installed: {' '.join(absent)} (apt install mosquitto)" if absent else ""


class Started(ABC):
    """What runs from the begin of a `with` block to its end."""

    @abstractmethod
    def start(self) -> None:
        """Starts it and returns when it takes connections; RuntimeError with its log if not."""

    @abstractmethod
    def stop(self) -> None:
        """Ends it; everybody is disconnected."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Running(Started):
    """A server's process with a folder and a log of its own, which go with it."""

    host = "127.0.0.1"

    def __init__(self, name: str, port: int = 0) -> None:
        self.port = port or free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"roomscribe-{name}-"))
        self._log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal: SIGSTOP is a server that hangs, SIGCONT ends that."""
        if self._process is not None:
            self._process.send_signal(number)

    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        shutil.rmtree(self.folder, ignore_errors=True)


class Broker(Running):
    """Use as `with Broker() as broker:`; listens on `broker.host`, `broker.port`.

    Keeps its port over `stop` and `start`.
    """

    def __init__(
        self,
        users: dict[str, str] | None = None,
        config: str = "",
        *,
        persistent: bool = False,
        start: bool = True,
    ) -> None:
        """`users` are names with passwords; None lets anybody in. `config` is added to the file.

        A `persistent` one keeps sessions and retained messages over `stop` and `start`.
        With start=False the port is chosen and nobody listens on it yet.
        """
        super().__init__("broker")
        self._start_at_once = start
        lines = [
            f"listener {self.port} {self.host}",
            f"allow_anonymous {'true' if users is None else 'false'}",
            f"persistence {'true' if persistent else 'false'}",
            f"persistence_location {self.folder}/",
            "log_type all",
            "connection_messages true",
        ]
        if not os.geteuid():
            lines.append("user root")
        if users is not None:
            lines.append(f"password_file {self._password_file(users)}")
        self._config = self.folder / "mosquitto.conf"
        self._config.write_text("\n".join([*lines, config, ""]), encoding="utf-8")

    @property
    def settings(self) -> MqttSettings:
        """Those of an appliance that publishes to it."""
        return MqttSettings(host=self.host, port=self.port)

    def start(self) -> None:
        command = [find_program("mosquitto"), "-c", str(self._config)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        process = self._process
        until(lambda: process.poll() is not None or is_open(self.port))
        if process.poll() is None:
            return
        self.stop()
        raise RuntimeError(f"mosquitto does not listen on port {self.port}:\n{self.log()}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
            self._process = None

    def __enter__(self) -> Self:
        if self._start_at_once:
            self.start()
        return self

    def _password_file(self, users: dict[str, str]) -> Path:
        path = self.folder / "passwords"
        path.touch(mode=0o600)
        for name, password in users.items():
            command = [find_program("mosquitto_passwd"), "-b", str(path), name, password]
            subprocess.run(command, check=True, capture_output=True)
        return path


def find_program(name: str) -> str:
    """Full path of a program, "" without it; Debian keeps servers where users do not look."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin") or ""


def is_open(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])
