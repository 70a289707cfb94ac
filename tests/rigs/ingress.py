"""A proxy that serves a site below a path, which it removes, as Home Assistant's ingress does."""

import http.client
import http.server
import threading
from typing import Self

from rigs.waiting import PATIENCE_S

PREFIX = "/api/hassio_ingress/Tk0-x_y"
DROPPED = {"connection", "keep-alive", "transfer-encoding"}
"""Headers that belong to one connection."""


class Ingress:
    """Use with `with`. `paths`: what was requested, with the status; 0: outside of PREFIX."""

    def __init__(self, port: int) -> None:
        """`port` is the site's, on this machine."""
        self.paths: list[tuple[str, int]] = []
        handler = type("Handler", (_Handler,), {"site": port, "ingress": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://localhost:{self._server.server_port}{PREFIX}/"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    site: int
    ingress: Ingress

    def do_GET(self) -> None:
        """Forward a request with the headers that the supervisor adds; stream the answer."""
        inner = self.path.removeprefix(PREFIX)
        if inner == self.path:
            self.ingress.paths.append((self.path, 0))
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: text for name, text in self.headers.items() if name.lower() not in DROPPED}
        headers |= {"X-Ingress-Path": PREFIX, "X-Remote-User-Id": "7d1", "Connection": "close"}
        connection = http.client.HTTPConnection("127.0.0.1", self.site, timeout=PATIENCE_S)
        try:
            connection.request(self.command, inner, body, headers)
            answer = connection.getresponse()
            self.ingress.paths.append((self.path, answer.status))
            self.send_response(answer.status)
            for name, text in answer.getheaders():
                if name.lower() not in DROPPED:
                    self.send_header(name, text)
            self.send_header("Connection", "close")
            self.end_headers()
            while part := answer.read1(65536):
                self.wfile.write(part)
                self.wfile.flush()
        except (OSError, http.client.HTTPException):
            pass  # the browser or the site has gone
        finally:
            connection.close()

    def do_POST(self) -> None:
        """Forward it as well."""
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Print nothing."""
