"""A real nats-server of our own on a free port of loopback."""

import json
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rigs.broker import find_program, free_port
from rigs.waiting import PATIENCE_S, holds


def missing() -> str:
    """What to install before a server can be started; empty when nothing."""
    return (
        ""
        if find_program("nats-server")
        else "not installed: nats-server (apt install nats-server)"
    )


class NatsServer:
    """Use as `with NatsServer() as server:`; takes connections on `server.url`.

    Keeps its ports over `stop` and `start`; what its streams held is gone then, as they lie in
    memory.
    """

    host = "127.0.0.1"

    def __init__(
        self, config: str = "", *, scheme: str = "nats", file: Path | None = None, port: int = 0
    ) -> None:
        """`config` is added to the file: users, TLS, limits; or its `file` is another's, which
        names the `port`."""
        self.port = port or free_port()
        self.url = f"{scheme}://{self.host}:{self.port}"
        self.folder = Path(tempfile.mkdtemp(prefix="roomscribe-nats-"))
        self._monitor = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self.folder / "log"
        lines = [
            f"listen: {self.host}:{self.port}",
            f'jetstream {{ store_dir: "{self.folder}/js", max_mem: 256M, max_file: 1M }}',
        ]
        self._config = file or self.folder / "nats.conf"
        if not file:
            self._config.write_text("\n".join([*lines, config, ""]), encoding="utf-8")

    @property
    def pid(self) -> int:
        """Of its process; 0 when it does not run."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Starts it and returns when it takes connections; RuntimeError with its log if not."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [find_program("nats-server"), "-c", str(self._config), "-m", str(self._monitor)],
                stdout=log,
                stderr=log,
            )
        if not holds(self._answers, PATIENCE_S):
            self.stop()
            raise RuntimeError(f"nats-server does not listen on port {self.port}:\n{self.log()}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it by a signal; everybody is disconnected."""
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(PATIENCE_S)
            self._process = None

    def kill(self) -> None:
        """kill -9."""
        self.stop(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal: SIGSTOP is a server that hangs, SIGCONT ends that."""
        if self._process is not None:
            self._process.send_signal(number)

    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def monitor(self, page: str) -> dict[str, Any]:
        """A page of its monitoring: varz, connz, jsz. Raises OSError while it is away."""
        address = f"http://{self.host}:{self._monitor}/{page}"
        with urllib.request.urlopen(address, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def stream(self, name: str = "ROOMSCRIBE") -> Mapping[str, Any]:
        """Configuration and state of a stream, with its consumers; empty when there is none."""
        found = self.monitor("jsz?streams=true&consumers=true&config=true")
        for account in found.get("account_details", []):
            for stream in account.get("stream_detail", []):
                if stream["name"] == name:
                    return dict(stream)
        return {}

    def _answers(self) -> bool:
        """True when it greets whoever connects."""
        try:
            with socket.create_connection((self.host, self.port), 1) as probe:
                return probe.recv(5) == b"INFO "
        except OSError:
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
