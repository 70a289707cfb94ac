"""systemd's end of the notification socket."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from rigs.waiting import PATIENCE_S


class Systemd:
    """Receives a daemon's notifications."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        Path(self.address).unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.settimeout(PATIENCE_S)

    def told(self, beginning: str) -> str:
        """Return the next message that starts with `beginning`. Raises TimeoutError."""
        while True:
            message = self._socket.recv(4096).decode()
            if message.startswith(beginning):
                return message

    def everything(self) -> list[str]:
        """Return the messages that have arrived, without waiting for more."""
        self._socket.setblocking(False)
        found = []
        try:
            while True:
                found.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            self._socket.settimeout(PATIENCE_S)
            return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    """A notification socket; its address belongs into the daemon's $NOTIFY_SOCKET."""
    listener = Systemd(tmp_path)
    yield listener
    listener.close()
