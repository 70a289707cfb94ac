"""What all requests of the page share, its sockets, and which connection is closed if there are too
many."""

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets, bind_unix_socket
from tornado.web import Application, RequestHandler

from appliance.config import Settings, WebSettings, node_name
from appliance.errors import DeviceError
from appliance.web.access import Access
from appliance.web.daemon import DaemonClient

CONNECTIONS, ADDRESS_CONNECTIONS = 100, 16
"""Most connections, in all and from one address. If there are more, the oldest one without a login
is closed, so that strangers cannot block the page."""
FIRST_REQUEST_S = 10.0
"""A new connection without a request is closed after this time."""


class Page:
    """What all requests share."""

    def __init__(self, settings: Settings, paths: Sequence[Path]) -> None:
        """`paths` are where the control socket may be."""
        self.settings, self.node = settings.web, node_name(settings)
        self.access, self.daemon = Access(settings.web), DaemonClient(paths)
        self.streams = self.attempts = self.uploads = 0
        """Streams of events, passwords that are being checked or wait for it, and sounds that are
        transcribed."""
        self.hashing = asyncio.Lock()
        self.requested: WeakSet[IOStream] = WeakSet()
        self.logged_in: WeakSet[IOStream] = WeakSet()
        """The open connections that have sent a request, and those with a login."""
        self.last_request_s = 0.0
        """Time of the last request, on the event loop's clock."""


class Handler(RequestHandler):
    """A request. Answers are not cached."""

    @property
    def page(self) -> Page:
        """What all requests share."""
        found: Page = self.application.settings["page"]
        return found

    def set_default_headers(self) -> None:
        """Set the headers of every answer, errors included."""
        self.set_header("Server", "roomscribe")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")

    def note_request(self, *, logged_in: bool = False) -> None:
        """Note that the connection has sent a request; that keeps this process running."""
        self.page.last_request_s = asyncio.get_running_loop().time()
        stream = getattr(self.request.connection, "stream", None)
        if isinstance(stream, IOStream):
            self.page.requested.add(stream)
            if logged_in:
                self.page.logged_in.add(stream)


class BoundedServer(HTTPServer):
    """A server that takes no more connections than it can serve."""

    def initialize(  # type: ignore[override]
        self, application: Application, page: Page, **options: Any
    ) -> None:
        """`options` are HTTPServer's."""
        super().initialize(application, **options)
        self._page = page
        self._open: dict[IOStream, str] = {}
        """Connections with their addresses, the oldest first."""

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        """Serve a connection; close another one, or this one, if there are too many."""
        for one in [one for one in self._open if one.closed()]:
            del self._open[one]
        # through a socket with a path a proxy connects: its clients have no addresses
        host = str(address[0]) if address and isinstance(address, tuple) else ""
        strangers = [one for one in self._open if one not in self._page.logged_in]
        same = [one for one in strangers if host and self._open[one] == host]
        if len(same) >= ADDRESS_CONNECTIONS:
            self._open.pop(same[0])
            same[0].close()
        elif len(self._open) >= CONNECTIONS:
            if not strangers:
                stream.close()
                return
            self._open.pop(strangers[0])
            strangers[0].close()
        self._open[stream] = host
        asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._close_silent, stream)
        super().handle_stream(stream, address)

    def _close_silent(self, stream: IOStream) -> None:
        if stream not in self._page.requested:
            stream.close()


def open_sockets(settings: WebSettings) -> list[socket.socket]:
    """Return the sockets that systemd passes (sd_listen_fds(3)), else new ones.

    Raises DeviceError.
    """
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        passed = [socket.socket(fileno=3 + n) for n in range(int(os.environ["LISTEN_FDS"]))]
        for one in passed:
            one.setblocking(False)
        return passed
    try:
        if settings.listen.startswith("/"):
            return [bind_unix_socket(settings.listen, mode=0o660)]
        return bind_sockets(settings.port, settings.listen)
    except OSError as error:
        raise DeviceError(
            f"web.listen: cannot listen on {settings.listen}, port {settings.port}: "
            f"{error.strerror}; if systemd serves the page already, run `roomscribe web open`, "
            "else choose another port"
        ) from error


def address_of(listener: socket.socket) -> str:
    """Return the address or path that a socket listens on."""
    name = listener.getsockname()
    return name[0] if isinstance(name, tuple) else str(name)
