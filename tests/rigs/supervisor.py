"""Home Assistant's supervisor, as an app sees it: the broker, and the discovery of a server.

The rules of /discovery are those of supervisor/api/discovery.py at commit 090ef31e of
home-assistant/supervisor. Without libraries: it runs beside the container image, too.
"""

import http.server
import json
import threading
from typing import Any, Self

TOKEN = "supervisors-token"


class Supervisor:
    """Use with `with`. `broker`: what it says of its MQTT service, None for none."""

    def __init__(self, broker: dict[str, Any] | None = None, port: int = 0) -> None:
        self.broker = broker
        self.discovery = ["wyoming"]
        """Services that the app's config.yaml lists; others are refused."""
        self.told: list[Any] = []
        """What apps have told it."""
        handler = type("Handler", (_Handler,), {"supervisor": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    supervisor: Supervisor

    def do_GET(self) -> None:
        """Say where the broker is."""
        known = self.path == "/services/mqtt" and self.supervisor.broker is not None
        self._answer(200 if known else 400, self.supervisor.broker)

    def do_POST(self) -> None:
        """Take the address of a server."""
        found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kinds = {name: type(value) for name, value in found.items()}
        if self.path != "/discovery" or kinds != {"service": str, "config": dict}:
            self._answer(400, None)
        elif found["service"] not in self.supervisor.discovery:
            self._answer(403, None)
        elif self._answer(200, {"uuid": "0" * 32}) == 200:
            self.supervisor.told.append(found)

    def _answer(self, status: int, data: object) -> int:
        """Answer an app that has its token; return the status."""
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            status, data = 401, None
        result = "ok" if status == 200 else "error"
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps({"result": result, "data": data}).encode())
        return status

    def log_message(self, *_: object) -> None:
        """Print nothing."""
