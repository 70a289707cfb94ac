"""A TCP connection over a bad network: slow, far, losing packets, cut; and what went over it.

What TCP makes of a lost packet is a pause, in which what came behind it waits, too: the link makes
that pause. (Real losses need a network namespace and root.)
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

PACKET = 1460
"""Bytes in a packet of Ethernet."""
WAITING = 262_144
"""Bytes on their way at most, in each direction; more are not read, as by a full socket."""


@dataclass(frozen=True)
class Quality:
    """Of a network; the default is a perfect one."""

    mbit_s: float = 0.0
    """Each way; 0: as fast as it goes."""
    delay_s: float = 0.0
    """Each way."""
    loss: float = 0.0
    """Share of the packets that come a round trip (at least 0.2 s) late."""


class Link:
    """Use with `with`: stands on `port` before a server's port of this machine."""

    host = "127.0.0.1"

    def __init__(self, port: int, quality: Quality = Quality(), seed: int = 0) -> None:
        self._there, self._quality, self._chance = port, quality, random.Random(seed)
        self._server = socket.create_server((self.host, 0), backlog=128)
        self.port: int = self._server.getsockname()[1]
        self.url = f"nats://{self.host}:{self.port}"
        self.sent = bytearray()
        """All that clients sent."""
        self.returned = 0
        """Bytes that came back to them."""
        self.watch: Callable[[bytes], object] = lambda _: None
        """Called with all that comes back, in the order of each connection, before it goes on."""
        self.cuts = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._over = self._down = False

    def cut(self, for_s: float = 0.0) -> None:
        """Breaks every connection off, and takes none for a while."""
        self._down = for_s > 0
        self.cuts += 1
        self._end_all()
        if for_s:
            time.sleep(for_s)
            self._down = False

    def _end_all(self) -> None:
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._over:
                here, _ = self._server.accept()
                if self._down:
                    here.close()
                    continue
                try:
                    there = socket.create_connection((self.host, self._there), 2)
                except OSError:
                    here.close()
                    continue
                there.settimeout(None)
                with self._lock:
                    self._open |= {here, there}
                _Way(self, here, there, up=True)
                _Way(self, there, here, up=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._end_all()
        self._thread.join(30)


class _Way:
    """One direction of a connection: a thread that reads and one that writes what is due."""

    def __init__(self, link: Link, source: socket.socket, sink: socket.socket, *, up: bool) -> None:
        self._link, self._source, self._sink, self._up = link, source, sink, up
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._news = threading.Condition()
        self._free_s = self._last_s = 0.0
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def _read(self) -> None:
        quality = self._link._quality
        while True:
            try:
                data = self._source.recv(PACKET if quality != Quality() else 65536)
            except OSError:
                data = b""
            if self._up:
                self._link.sent += data
            else:
                self._link.returned += len(data)
                self._link.watch(data)
            with self._news:
                self._news.wait_for(lambda: self._size < WAITING)
                self._waiting.append((self._due_s(len(data)), data))
                self._size += len(data)
                self._news.notify_all()
            if not data:
                return

    def _due_s(self, size: int) -> float:
        """When so many bytes, sent now, arrive."""
        quality = self._link._quality
        self._free_s = max(self._free_s, time.monotonic())
        if quality.mbit_s:
            self._free_s += 8 * size / (1e6 * quality.mbit_s)
        due_s = self._free_s + quality.delay_s
        if self._link._chance.random() < quality.loss:
            due_s += max(0.2, 2 * quality.delay_s)
        self._last_s = max(self._last_s, due_s)
        return self._last_s

    def _write(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting)
                due_s, data = self._waiting[0]
            time.sleep(max(0.0, due_s - time.monotonic()))
            with suppress(OSError):
                if data:
                    self._sink.sendall(data)
                else:
                    self._sink.shutdown(socket.SHUT_WR)
            with self._news:
                self._waiting.popleft()
                self._size -= len(data)
                self._news.notify_all()
            if not data:
                break
        with self._link._lock:
            self._link._open.discard(self._sink)
        self._sink.close()
