"""The page's sockets, and how many connections it takes: which one is closed if there are more."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any
from weakref import WeakSet

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets, bind_unix_socket
from tornado.web import Application

from appliance.config import WebSettings
from appliance.errors import DeviceError

CONNECTIONS, ADDRESS_CONNECTIONS = 100, 16
"""Connections at once, in all and from one address. Beyond it the oldest one that has shown no
session is closed, so that strangers cannot keep the page shut."""
FIRST_REQUEST_S = 10.0
"""A new connection that has asked for nothing for so long is closed."""


class Guests:
    """What is known of the open connections."""

    def __init__(self) -> None:
        self.heard: WeakSet[IOStream] = WeakSet()
        """Connections on which a request has come."""
        self.known: WeakSet[IOStream] = WeakSet()
        """Those of them that have shown a session."""


class BoundedServer(HTTPServer):
    """One that takes no more connections than it can serve."""

    def initialize(  # type: ignore[override]
        self, application: Application, guests: Guests, **options: Any
    ) -> None:
        """`options` are HTTPServer's."""
        super().initialize(application, **options)
        self._guests = guests
        self._open: dict[IOStream, str] = {}
        """Connections and their addresses, the oldest first."""

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        """Serves a connection; closes another one, or this one, if there are too many."""
        for one in [one for one in self._open if one.closed()]:
            del self._open[one]
        # a socket with a path is a proxy's: its clients have no addresses
        host = str(address[0]) if address and isinstance(address, tuple) else ""
        strangers = [one for one in self._open if one not in self._guests.known]
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
        """Close a connection that has asked for nothing."""
        if stream not in self._guests.heard:
            stream.close()


def sockets_of(settings: WebSettings) -> list[socket.socket]:
    """What systemd hands over (sd_listen_fds(3)), else sockets of our own. Raises DeviceError."""
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        handed = [socket.socket(fileno=3 + n) for n in range(int(os.environ["LISTEN_FDS"]))]
        for one in handed:
            one.setblocking(False)
        return handed
    try:
        if settings.listen.startswith("/"):
            return [bind_unix_socket(settings.listen, mode=0o660)]
        return bind_sockets(settings.port, settings.listen)
    except OSError as error:
        raise DeviceError(
            f"web.listen: cannot listen on {settings.listen}, port {settings.port}: "
            f"{error.strerror}; where systemd has the page already, open that one "
            "(`roomscribe web open`), else name another"
        ) from error


def name_of(one: socket.socket) -> str:
    """The address that a socket listens on."""
    found = one.getsockname()
    return found[0] if isinstance(found, tuple) else str(found)
