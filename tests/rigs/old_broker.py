"""A broker of MQTT 3.1.1: Mosquitto, behind a door that knows no newer version."""

import socket
import threading
from contextlib import suppress
from typing import Self

CONNECT, VERSION_5 = 0x10, 5
REFUSED = b"\x20\x02\x00\x01"
"""CONNACK of MQTT 3.1.1: unacceptable protocol version."""


class OldBroker:
    """Use with `with`; listens on `port`. A client of MQTT 5 is refused, gets no answer (`silent`),
    or is cut off (`rude`), as by amqtt and by hubs of old. `closed` cuts all off, `open` none."""

    def __init__(self, broker_port: int, manner: str = "polite") -> None:
        self._broker_port, self.manner = broker_port, manner
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.versions: list[int] = []
        """Those that clients asked for."""
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._server, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self._open.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            first = client.recv(4096)
            if not first or first[0] != CONNECT:
                return
            version = first[first.index(b"MQTT") + 4]
            self.versions.append(version)
            if self.manner == "closed" or (version == VERSION_5 and self.manner != "open"):
                if self.manner == "polite":
                    client.sendall(REFUSED)
                if self.manner != "silent":
                    client.shutdown(socket.SHUT_RDWR)
                return
            broker = socket.create_connection(("127.0.0.1", self._broker_port))
            self._open.append(broker)
            broker.sendall(first)
            threading.Thread(target=_forward, args=(broker, client), daemon=True).start()
            _forward(client, broker)


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
