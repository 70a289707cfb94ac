"""A TCP port of ours that speaks the Wyoming protocol: listening, who may connect, events with time
limits. The speech-to-text server and the satellite have one each.

The protocol has neither passwords nor encryption, so `wyoming.allow` decides by address.
"""

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address

from appliance.config import WyomingSettings, parse_network, url_host
from appliance.system import one_line
from appliance.wyoming.protocol import LARGEST, Event, ProtocolError, pack, read_event
from appliance.wyoming.request import Hooks

log = logging.getLogger("roomscribe.wyoming")

LINGER_S = 1.0
"""Before a connection is closed, incoming data is read for this long: if it stayed unread, the
kernel would reset the connection and drop our last answer."""
REPORTED_ADDRESSES = 64
"""Refused addresses that are logged, each once."""

Address = IPv4Address | IPv6Address


@dataclass(slots=True, eq=False)
class Port:
    """Listens; for one loop. `address` and `what` may be read by any thread."""

    what: str
    key: str
    """What it is for, and the setting with its number, for messages."""
    settings: WyomingSettings
    number: int
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter, Address], Awaitable[None]]
    hooks: Hooks
    again_s: float = 5.0
    """Pause after the port could not be opened."""
    address: str | None = None
    """Where it listens; None while it does not."""
    _try_s: float = 0.0
    _server: asyncio.Server | None = None
    _advertising: asyncio.Task[None] | None = None
    _reported: set[Address] = field(default_factory=set)

    async def open_if_due(self) -> None:
        """Open the port, unless it is open or has just failed; report why if that fails."""
        if self._server or time.monotonic() < self._try_s:
            return
        self._try_s = time.monotonic() + self.again_s
        host = self.settings.listen
        try:
            opened = _open(host, self.number)
            self._server = await asyncio.start_server(self._accept, sock=opened, limit=LARGEST)
        except OSError as error:
            why = {
                errno.EADDRINUSE: f"another program uses that port. Choose another {self.key}",
                errno.EADDRNOTAVAIL: "this machine has no such address. Check wyoming.listen",
                errno.EPERM: "systemd forbids it. To open the port, run `sudo systemctl "
                "daemon-reload && sudo systemctl restart roomscribe`",
                errno.EACCES: f"this user may not use that port. Choose a {self.key} from 1024 on",
            }.get(error.errno or 0, one_line(error))
            trouble = f"nobody can connect to {host} port {self.number} for {self.what}: {why}"
            if self.hooks.report(self.key, trouble):
                log.warning("%s", trouble)
            return
        port = opened.getsockname()[1]
        self.address = f"{url_host(host)}:{port}"
        self.hooks.report(self.key, None)
        log.info("%s (Wyoming) on %s", self.what, self.address)
        if self.hooks.advertise:
            self._advertising = asyncio.create_task(self.hooks.advertise(self.key, port))

    def close(self) -> None:
        """Stop listening. What is under way ends with the loop."""
        if self._server:
            self._server.close()
        self.address = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = _address(writer)
        if peer is None or not self._is_allowed(peer):
            writer.transport.abort()
            return
        await self.serve(reader, writer, peer)

    def _is_allowed(self, peer: Address) -> bool:
        """Return True for an allowed address; log any other one, once."""
        if any(peer in parse_network(one) for one in self.settings.allow):
            return True
        self.hooks.count("wyoming_refused")
        if peer not in self._reported and len(self._reported) < REPORTED_ADDRESSES:
            self._reported.add(peer)
            log.warning("refused %s, which is not in wyoming.allow", peer)
        return False


async def next_event(reader: asyncio.StreamReader, within_s: float) -> Event | None:
    """Return the next event; None at the end. Raises ProtocolError, OSError, TimeoutError, and
    asyncio.IncompleteReadError within an event."""
    try:
        async with asyncio.timeout(within_s):
            return await read_event(reader)
    except asyncio.LimitOverrunError:
        raise ProtocolError(f"expected a header of at most {LARGEST} bytes") from None
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None


async def send(writer: asyncio.StreamWriter, events: bytes, within_s: float) -> None:
    """Send events. Raises TimeoutError if the client does not read them in time."""
    writer.write(events)
    async with asyncio.timeout(within_s):
        await writer.drain()


async def linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Signal the end of our data, and read what is still on its way."""
    writer.write_eof()
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while await reader.read(LARGEST):
                pass


def pong(event: Event) -> bytes:
    """Return the answer to a ping."""
    text = event.data.get("text")
    return pack(Event("pong", {"text": text if isinstance(text, str) else None}))


def pack_error(code: str, text: str) -> bytes:
    """Return an error as an event; `code` is for programs."""
    return pack(Event("error", {"text": text, "code": code}))


def _open(host: str, port: int) -> socket.socket:
    """Return a listening socket; `::` includes IPv4. Raises OSError."""
    if ":" not in host:
        return socket.create_server((host, port), backlog=16)
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(
        (host, port), family=socket.AF_INET6, backlog=16, dualstack_ipv6=both
    )


def _address(writer: asyncio.StreamWriter) -> Address | None:
    peer = writer.get_extra_info("peername")
    if not peer:
        return None
    address = ip_address(peer[0].partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
