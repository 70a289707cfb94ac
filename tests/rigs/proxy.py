"""A TCP connection that can go bad without a word: what a pulled cable or a lost router does."""

from __future__ import annotations

import select
import socket
import threading


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

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join(5)
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
