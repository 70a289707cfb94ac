"""A TCP connection that can go bad without a word: what a pulled cable or a lost router does."""

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from rigs.waiting import PATIENCE_S

TRANSCRIPT_TOPIC = b"roomscribe/kitchen/transcript"


class Proxy:
    """Use with `with`: stands on `port` before the broker's, and forwards until `freeze`.

    A frozen one still takes connections, and what is sent to it; nothing arrives and nothing comes
    back. `thaw` lets new connections through; the frozen ones stay dead. `cut` ends all there are.
    """

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._frozen = self._cut = False
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._dead: list[socket.socket] = []
        self._over = False
        self._thread = threading.Thread(target=self._forward, daemon=True)

    def freeze(self) -> None:
        """From now on nothing passes."""
        self._frozen = True

    def thaw(self) -> None:
        """New connections pass again."""
        self._frozen = False

    def cut(self) -> None:
        """Ends every connection, as a wireless network does that was away for a moment."""
        self._cut = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join(PATIENCE_S)
        for connection in (self._server, *self._pairs, *self._dead):
            connection.close()

    def _forward(self) -> None:
        while not self._over:
            if self._frozen:
                self._dead += [*self._pairs]
                self._pairs.clear()
            if self._cut:
                for connection in self._pairs:
                    connection.close()
                self._pairs.clear()
                self._cut = False
            ready, _, _ = select.select([self._server, *self._pairs], [], [], 0.05)
            for connection in ready:
                if connection is self._server:
                    self._accept()
                elif not self._frozen and connection in self._pairs:
                    self._pass_on(connection)

    def _accept(self) -> None:
        here, _ = self._server.accept()
        if self._frozen:
            self._dead.append(here)
            return
        try:
            there = socket.create_connection(("127.0.0.1", self._broker_port), 2)
        except OSError:
            here.close()
            return
        self._pairs[here], self._pairs[there] = there, here

    def _pass_on(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(65536)
            if data:
                self._pairs[connection].sendall(data)
                return
        except OSError:
            pass
        other = self._pairs.pop(connection)
        self._pairs.pop(other, None)
        connection.close()
        other.close()


class Lossy(Proxy):
    """A proxy that drops the MQTT packets that `loses` names, and passes all others on."""

    def __init__(self, broker_port: int, loses: Callable[[bytes, bool], bool]) -> None:
        """`loses` gets a packet and whether it goes to the broker."""
        super().__init__(broker_port)
        self._loses, self.lost = loses, 0
        self._rest: dict[socket.socket, bytes] = {}

    def _pass_on(self, connection: socket.socket) -> None:
        with suppress(OSError):
            to_broker = connection.getpeername()[1] != self._broker_port
            received = connection.recv(65536)
            data = self._rest.pop(connection, b"") + received
            while (size := packet_size(data)) and len(data) >= size:
                packet, data = data[:size], data[size:]
                if self._loses(packet, to_broker):
                    self.lost += 1
                    self.lose(packet, connection)
                else:
                    self._pairs[connection].sendall(packet)
            self._rest[connection] = data
            if received:
                return
        other = self._pairs.pop(connection)
        self._pairs.pop(other, None)
        connection.close()
        other.close()

    def lose(self, packet: bytes, connection: socket.socket) -> None:
        """Called for each dropped packet that came from `connection`."""


def packet_size(data: bytes) -> int:
    """Bytes of the first MQTT packet in `data`; 0 if its length is not there yet."""
    length = 0
    for at, byte in enumerate(data[1:5]):
        length += (byte & 127) << 7 * at
        if byte < 128:
            return 2 + at + length
    return 0
