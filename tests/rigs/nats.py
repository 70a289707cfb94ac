"""A real nats-server of our own on a free port of loopback."""

import json
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rigs.broker import Running, find_program, free_port
from rigs.waiting import PATIENCE_S, holds


def missing() -> str:
    """What to install before a server can be started; empty when nothing."""
    missing = "not installed: nats-server (apt install nats-server)"
    return "" if find_program("nats-server") else missing


class NatsServer(Running):
    """Use as `with NatsServer() as server:`; takes connections on `server.url`.

    Keeps its ports over `stop` and `start`; what its streams held is gone then, as they lie in
    memory.
    """

    def __init__(
        self, config: str = "", *, scheme: str = "nats", file: Path | None = None, port: int = 0
    ) -> None:
        """`config` is added to the file: users, TLS, limits; or its `file` is another's, which
        names the `port`."""
        super().__init__("nats", port)
        self.url = f"{scheme}://{self.host}:{self.port}"
        self._monitor = free_port()
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
