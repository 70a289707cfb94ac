"""Client of a Wyoming speech-to-text server: reads its description, transcribes windows.

Each request is a connection of its own with a deadline. Nothing that a server sends is trusted: a
header, its data and its payload are limited to 64 KiB each, a text to what anybody can say in time.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from appliance.config import TranscriberSettings
from appliance.errors import ServerError
from appliance.infer import clean_text, is_language, longest_text
from appliance.records import SAMPLE_RATE, Samples
from appliance.system import one_line, shorten
from appliance.wyoming.protocol import LARGEST, Event, Header, ProtocolError, pack

CONNECT_S = 3.0
"""A host in the local network answers within some ms, or is offline."""
DESCRIBE_S = 5.0
"""Home Assistant waits as long (wyoming/data.py)."""
CHUNK = 2 * SAMPLE_RATE
"""Bytes of sound per event: 1 s."""
FORMAT = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}
KINDS = ("asr", "tts", "handle", "intent", "wake", "mic", "snd")
"""Services that a server may offer (wyoming/info.py)."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Info:
    """A server's description."""

    model: str
    languages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's text."""

    text: str
    language: str
    took_ms: float


class WyomingClient:
    """Sends requests to a server. Any thread.

    Each request takes at most `within_s`, plus the time to look up the host's name, and raises
    ServerError.
    """

    def __init__(self, settings: TranscriberSettings) -> None:
        self.address = f"{settings.host}:{settings.port}"
        self._host, self._port = settings.host, settings.port
        self._language = settings.language
        self._open: set[socket.socket] = set()

    def describe(self, within_s: float = DESCRIBE_S) -> Info:
        """Return the server's description."""

        def converse(conversation: _Conversation) -> Info:
            conversation.send(Event("describe"))
            return _info(conversation.wait_for("info").data, self._language)

        return self._request(converse, within_s)

    def transcribe(self, samples: Samples, within_s: float) -> Reply:
        """Return the text of (n,) int16 mono at 16 kHz."""
        begun_s = time.monotonic()
        sound = samples.astype("<i2", copy=False).tobytes()

        def converse(conversation: _Conversation) -> Reply:
            with suppress(BrokenPipeError, ConnectionResetError):  # it may have answered early
                conversation.send(
                    Event("transcribe", {"language": self._language} if self._language else {}),
                    Event("audio-start", FORMAT),
                    *(
                        Event("audio-chunk", FORMAT, sound[start : start + CHUNK])
                        for start in range(0, len(sound), CHUNK)
                    ),
                    Event("audio-stop"),
                )
            answer = conversation.wait_for("transcript").data
            text = _clean(answer.get("text"), len(samples) / SAMPLE_RATE)
            language = answer.get("language")
            if not is_language(language):
                language = self._language
            return Reply(text, language, 1000 * (time.monotonic() - begun_s))

        return self._request(converse, within_s)

    def hang_up(self) -> None:
        """Cancel all requests. Any thread."""
        for connection in tuple(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _request(self, converse: Callable[[_Conversation], Result], within_s: float) -> Result:
        """Return the result of `converse` on a new connection. Raises ServerError."""
        deadline_s = time.monotonic() + within_s
        where, connected = f"the speech-to-text server {self.address}", False
        try:
            address = (self._host, self._port)
            with socket.create_connection(address, min(CONNECT_S, within_s)) as connection:
                connected = True
                self._open.add(connection)
                try:
                    return converse(_Conversation(connection, deadline_s))
                finally:
                    self._open.discard(connection)
        except ProtocolError as error:
            fix = "check that a Wyoming speech-to-text server uses that port, and see its log"
            busy = isinstance(error, _ReportedError) and error.busy
            raise ServerError(f"{where}: {error}; {fix}", busy=busy) from None
        except TimeoutError:
            if connected:
                found = f"no answer within {within_s:g} s"
                fix = "use a smaller model there, or check its load"
            else:
                found = "it does not answer"
                fix = "check that its machine is on, [transcriber] host and port, and its firewall"
        except (OSError, UnicodeError) as error:  # UnicodeError: an impossible host name
            found = getattr(error, "strerror", "") or one_line(error)
            fix = (
                "see its log"
                if connected
                else "check that it runs, and [transcriber] host and port"
            )
        raise ServerError(f"{where}: {found}; {fix}")


class _Conversation:
    """Events over a connection, until a deadline on time.monotonic()'s clock."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self._connection, self._deadline_s = connection, deadline_s
        self._received = bytearray()

    def send(self, *events: Event) -> None:
        """Send events. Raises OSError."""
        for event in events:
            self._connection.settimeout(self._left_s())
            self._connection.sendall(pack(event))

    def wait_for(self, kind: str) -> Event:
        """Return the first event of a kind; all others except `error` are ignored.

        Raises ProtocolError and OSError.
        """
        while True:
            event = self._read()
            if event.type == kind:
                return event
            if event.type == "error":
                raise _ReportedError(event.data)

    def _read(self) -> Event:
        """Return the next event; header, data and payload have at most 64 KiB each."""
        while (end := self._received.find(b"\n", 0, LARGEST)) < 0:
            if len(self._received) >= LARGEST:
                raise ProtocolError(f"expected a line of at most {LARGEST} bytes, found more")
            self._receive()
        header = Header.parse(bytes(self._received[:end]))
        whole = end + 1 + header.data_length + header.payload_length
        while len(self._received) < whole:
            self._receive()
        rest = bytes(self._received[end + 1 : whole])
        del self._received[:whole]
        return header.event(rest[: header.data_length], rest[header.data_length :])

    def _receive(self) -> None:
        self._connection.settimeout(self._left_s())
        received = self._connection.recv(1 << 16)
        if not received:
            raise ProtocolError("it closed the connection without an answer")
        self._received += received

    def _left_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


class _ReportedError(ProtocolError):
    """The server's `error` event."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        code, text = data.get("code"), data.get("text")
        super().__init__(f"it reports {shorten(text or code or 'an error', 120)}")
        self.busy = code == "busy"


def _info(data: Mapping[str, Any], language: str) -> Info:
    """Return the first installed program and model, preferably one for the language.

    Raises ProtocolError.
    """
    found = []
    for program in _tables(data.get("asr")):
        for model in _tables(program.get("models")):
            if program.get("installed") and model.get("installed"):
                spoken = model.get("languages")
                known = (
                    [one for one in spoken if isinstance(one, str)]
                    if isinstance(spoken, list)
                    else []
                )
                name = shorten(model.get("name") or "unnamed", 100)
                found.append(Info(name, tuple(shorten(one, 20) for one in known[:200])))
    if not found:
        offers = ", ".join(sorted(kind for kind in KINDS if _tables(data.get(kind)))) or "nothing"
        raise ProtocolError(f"expected an installed speech-to-text model (asr), found {offers}")
    return min(found, key=lambda one: bool(language) and language not in one.languages)


def _tables(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _clean(text: object, duration_s: float) -> str:
    """Return a server's text on one line, without unprintable characters. Raises ProtocolError."""
    if not isinstance(text, str):
        raise ProtocolError("expected a transcript with a text, found none")
    if len(text) > longest_text(duration_s):
        raise ProtocolError(f"its text for {duration_s:.1f} s of speech has {len(text)} letters")
    return clean_text(text)
