"""A reverse proxy that serves the page below a path, as Home Assistant's ingress does."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PREFIX = "/api/hassio_ingress/abc/"


@contextmanager
def below_a_path(port: int) -> Iterator[str]:
    """The address of the page of `port` behind the proxy."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(PREFIX):
                self.send_error(404)
                return
            length = int(self.headers.get("Content-Length", 0))
            inner = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            path = "/" + self.path.removeprefix(PREFIX)
            inner.request(self.command, path, self.rfile.read(length), dict(self.headers))
            answer = inner.getresponse()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name not in ("Transfer-Encoding", "Connection"):
                    self.send_header(name, value)
            self.end_headers()
            with contextlib.closing(inner), contextlib.suppress(BrokenPipeError):
                while data := answer.read1(65_536):
                    self.wfile.write(data)
                    self.wfile.flush()

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}{PREFIX}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)
