"""A speech-to-text server that answers as it is told, or misbehaves."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from appliance.wyoming.protocol import Event, Header, pack

INFO: dict[str, Any] = {
    "asr": [
        {
            "name": "stand-in",
            "installed": True,
            "models": [
                {"name": "away", "installed": False, "languages": ["en"]},
                {"name": "large", "installed": True, "languages": ["en", "de"]},
            ],
        }
    ]
}

Answer = Callable[[socket.socket, bytes], None]


def says(text: object, **more: object) -> Answer:
    """Answers every window with `text`."""

    def answer(connection: socket.socket, _sound: bytes) -> None:
        connection.sendall(pack(Event("transcript", {"text": text, **more})))

    return answer


def sends(*raw: bytes) -> Answer:
    """Answers every window with these bytes, and closes the connection."""

    def answer(connection: socket.socket, _sound: bytes) -> None:
        for part in raw:
            connection.sendall(part)

    return answer


def errs(code: str = "failed", text: str = "out of memory") -> Answer:
    """Answers every window with an `error`."""
    return sends(pack(Event("error", {"code": code, "text": text})))


def resets(connection: socket.socket, _sound: bytes) -> None:
    """Breaks the connection off."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class SpeechServer:
    """Runs from `start` to `stop`, on one port; every connection has a thread."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer or says("turn on the light")
        self.info: dict[str, Any] | bytes = INFO
        self.asked: list[dict[str, Any]] = []
        """Data of each `transcribe`."""
        self.heard: list[bytes] = []
        """Sound of each window that was answered."""
        self.over = threading.Event()
        """Set by `stop`: for answers that hang until then."""
        self._open: set[socket.socket] = set()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]

    def start(self) -> None:
        self.over.clear()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in tuple(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def hang(self, _connection: socket.socket, _sound: bytes) -> None:
        """An answer that does not come."""
        self.over.wait()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        self._open.add(connection)
        sound = b""
        with suppress(OSError), connection, connection.makefile("rb") as stream:
            while line := stream.readline():
                header = Header.parse(line)
                event = header.event(
                    stream.read(header.data_length), stream.read(header.payload_length)
                )
                if event.type == "describe":
                    info = self.info
                    connection.sendall(
                        info if isinstance(info, bytes) else pack(Event("info", info))
                    )
                elif event.type == "transcribe":
                    self.asked.append(dict(event.data))
                elif event.type == "audio-chunk":
                    sound += event.payload
                elif event.type == "audio-stop":
                    self.heard.append(sound)
                    self.answer(connection, sound)
                    break
        self._open.discard(connection)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
