"""Windows to transcriptions by a Wyoming speech-to-text server elsewhere in the house.

Each question is a connection of its own with a deadline, asked by a thread of its own: looking up a
name may hang, and the encoder's thread has to show that it moves. A server that fails is asked
again when it has transcribed a second of silence; meanwhile the model on this machine stands in,
where there is one, and else the windows wait. Nothing that a server sends is trusted: see `_read`.
"""

from __future__ import annotations

import math
import re
import socket
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np

from appliance.config import Settings, TranscriberSettings
from appliance.errors import DeviceError
from appliance.infer import (
    AnyTranscriber,
    Encoded,
    Errand,
    Model,
    Transcriber,
    Unit,
    compression_ratio,
    open_transcriber as open_model,
)
from appliance.model import chosen_model
from appliance.records import SAMPLE_RATE, Samples, Transcription, Window
from appliance.system import one_line, shorten
from appliance.wyoming.protocol import LARGEST, Event, Header, ProtocolError, pack

SERVER = "wyoming"
"""What an event names as the encoder of such a text."""
WINDOW_S = 10.0
"""Longest window where no model on this machine has a say; the built-in one's length."""
CONNECT_S = 3.0
"""A host of this house answers within some ms, or is away."""
DESCRIBE_S = 5.0
"""Home Assistant gives a server as long (wyoming/data.py)."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 10.0
WATCH_EVERY_S = 30.0
"""Between two looks at a server that is well, so that its end is known before somebody speaks."""
MOST_TRIES = 3
"""A window that fails so often, at a server that does transcribe silence, fails by itself."""
LOOK_S = 0.2
"""Between two looks at whether an answer is still wanted."""
CHUNK = 2 * SAMPLE_RATE
"""Bytes of sound in an event: 1 s."""
LETTERS_PER_S, LETTERS = 100, 200
"""More than a hundred letters a second, and these, nobody says: five times what people do."""
FORMAT = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}
LANGUAGE = re.compile(r"[A-Za-z]{2,3}([_-][0-9A-Za-z]{2,8})*")
UNKNOWN_LANGUAGE = "und"
"""ISO 639-2's code where neither server nor configuration says."""
SILENCE = np.zeros(SAMPLE_RATE, np.int16)
NO_STATES = np.zeros((0, 0), np.float32)
KINDS = ("asr", "tts", "handle", "intent", "wake", "mic", "snd")
"""What a server may offer (wyoming/info.py)."""


Asked = TypeVar("Asked")


class ServerError(DeviceError):
    """The server is out of reach, refuses, or answers what is no answer: the window waits."""

    def __init__(self, trouble: str, *, busy: bool = False) -> None:
        super().__init__(trouble)
        self.busy = busy
        """True when it has too much to do: no window's fault."""


class UnwantedError(ServerError):
    """Nobody waits for the answer any more."""


class RefusedError(DeviceError):
    """The server, which is well, fails with this one window."""


@dataclass(frozen=True, slots=True)
class Info:
    """What a server says of itself."""

    model: str
    languages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's text."""

    text: str
    language: str
    took_ms: float


@dataclass(frozen=True, slots=True)
class Answered(Encoded):
    """A window that the server has transcribed; it has no states."""

    transcription: Transcription


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Stands where a bundle's facts are asked for and there is no bundle."""

    name: str
    language: str
    languages: tuple[str, ...]
    window_s: float = WINDOW_S
    demo_model: bool = False


class Server:
    """A server's address. Every question may be asked by any thread, takes `within_s` at most, but
    for looking up the host's name, and raises ServerError."""

    def __init__(self, settings: TranscriberSettings) -> None:
        self.address = f"{settings.host}:{settings.port}"
        self._host, self._port = settings.host, settings.port
        self._language = settings.language
        self._open: set[socket.socket] = set()

    def describe(self, within_s: float = DESCRIBE_S) -> Info:
        """What the server says of itself."""

        def converse(conversation: _Conversation) -> Info:
            conversation.send(Event("describe"))
            return _info(conversation.wait_for("info").data, self._language)

        return self._ask(converse, within_s)

    def transcribe(self, samples: Samples, within_s: float) -> Answer:
        """The text of (n,) int16 mono at 16 kHz."""
        begun_s = time.monotonic()
        sound = samples.astype("<i2", copy=False).tobytes()

        def converse(conversation: _Conversation) -> Answer:
            with suppress(BrokenPipeError, ConnectionResetError):  # it may have answered already
                conversation.send(
                    Event("transcribe", {"language": self._language} if self._language else {}),
                    Event("audio-start", FORMAT),
                    *(
                        Event("audio-chunk", FORMAT, sound[at : at + CHUNK])
                        for at in range(0, len(sound), CHUNK)
                    ),
                    Event("audio-stop"),
                )
            answer = conversation.wait_for("transcript").data
            text = _text(answer.get("text"), len(samples) / SAMPLE_RATE)
            language = answer.get("language")
            if not isinstance(language, str) or not LANGUAGE.fullmatch(language):
                language = self._language
            return Answer(text, language, 1000 * (time.monotonic() - begun_s))

        return self._ask(converse, within_s)

    def hang_up(self) -> None:
        """Ends what is being asked. Any thread."""
        for connection in tuple(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _ask(self, converse: Callable[[_Conversation], Asked], within_s: float) -> Asked:
        """What `converse` makes of a connection. Raises ServerError."""
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
            cure = "see that a Wyoming speech-to-text server has that port, and its log"
            busy = isinstance(error, _SaidError) and error.busy
            raise ServerError(f"{where}: {error}; {cure}", busy=busy) from None
        except TimeoutError:
            if connected:
                found = f"expected an answer within {within_s:.0f} s, found none"
                cure = "a smaller model is faster there; see its load, and [transcriber] timeout_s"
            else:
                found = "it does not answer"
                cure = "see that its machine is on, [transcriber] host and port, and its firewall"
        except OSError as error:
            found = error.strerror or one_line(error)
            cure = (
                "see its log" if connected else "see that it runs, and [transcriber] host and port"
            )
        raise ServerError(f"{where}: {found}; {cure}")


class _Conversation:
    """Events over a connection, until a deadline on time.monotonic()'s clock."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self._connection, self._deadline_s = connection, deadline_s
        self._received = bytearray()

    def send(self, *events: Event) -> None:
        """Raises OSError."""
        for event in events:
            self._connection.settimeout(self._left_s())
            self._connection.sendall(pack(event))

    def wait_for(self, kind: str) -> Event:
        """The first event of a kind, all others but `error` passed over.

        Raises ProtocolError and OSError.
        """
        while True:
            event = self._read()
            if event.type == kind:
                return event
            if event.type == "error":
                raise _SaidError(event.data)

    def _read(self) -> Event:
        """The next event: a header's line, data and a payload of 64 KiB each at most."""
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > LARGEST:
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
            raise ProtocolError("expected an answer, found the connection closed")
        self._received += received

    def _left_s(self) -> float:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


class _SaidError(ProtocolError):
    """The server's `error` event."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        code, text = said.get("code"), said.get("text")
        super().__init__(f"it says {shorten(text or code or 'that there is an error', 120)}")
        self.busy = code == "busy"


class ServedEncoder:
    """How the server is, in an encoder's place. One thread's; `name`, `trouble` and `facts` may be
    read from any."""

    def __init__(
        self,
        server: Server,
        timeout_s: float,
        local: Unit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Asks the server for the first time, without waiting. `local` encodes while it cannot."""
        self.info: Info | None = None
        """What it last said of itself."""
        self.fault: str | None = None
        """Why the server is not in use, with the cure; None while it is."""
        self.goes_on: Callable[[], bool] = lambda: True
        """Called several times a second while an answer is awaited; False: not wanted any more."""
        self._server, self._timeout_s, self._local, self._clock = server, timeout_s, local, clock
        self._pause_s, self._look_s = FIRST_PAUSE_S, clock() + WATCH_EVERY_S
        self._failed, self._failures = "", 0
        """The window that failed last, and how often in a row."""
        self._left: Errand | None = None
        """A question that was given up and has not ended: the host's name is being looked up."""
        self._looking: Errand | None = Errand(server.describe, "server")

    @property
    def name(self) -> str:
        """What transcribes now: wyoming, or the encoder on this machine."""
        return self._local.name if self._local and self.fault else SERVER

    @property
    def trouble(self) -> str | None:
        """Why the server is not in use, with the cure; None while it is."""
        if not self.fault:
            return None
        if not self._local:
            return f"{self.fault}; until then what is said waits"
        instead = "until then this machine's model transcribes"
        return "; ".join(filter(None, (self.fault, instead, self._local.trouble)))

    def ask(self, window: Window) -> Answer:
        """The server's text. Raises ServerError, at once while the server is known to be away, and
        RefusedError where it fails with this window alone."""
        self.look_after(self._clock())
        if self.fault:
            raise ServerError(self.fault)
        failures = self._failures if self._failed == window.id else 0
        if failures >= MOST_TRIES:
            raise RefusedError(f"the server failed {failures} times with this window alone")
        try:
            answer = self._answer(window, (window.duration_s + self._timeout_s) * 2**failures)
        except UnwantedError:
            raise
        except ServerError as error:
            if not error.busy:
                self._failed, self._failures = window.id, failures + 1
            self._fail(error)
            raise
        self._failed, self._pause_s = "", FIRST_PAUSE_S
        self._look_s = self._clock() + WATCH_EVERY_S
        return answer

    def look_after(self, now_s: float) -> None:
        """Begins what is due at `now_s` (time.monotonic()), and takes over what was begun before.

        Does not wait.
        """
        if self._local:
            self._local.look_after(now_s)
        self._collect()
        if self._looking is None and now_s >= self._look_s:
            work = self._try_out if self.fault else self._server.describe
            self._looking = Errand(work, "server")

    def settle(self, within_s: float) -> None:
        """Waits for what `look_after` began, and takes it over."""
        if self._looking:
            self._looking.join(within_s)
        self._collect()

    def facts(self) -> dict[str, Any]:
        """What is known of the chip on this machine; empty without one."""
        return self._local.facts() if self._local else {}

    def close(self) -> None:
        """Ends what is being asked."""
        self._server.hang_up()

    def _answer(self, window: Window, within_s: float) -> Answer:
        """The server's answer, waited for while `goes_on`. Raises ServerError."""
        if self._left and self._left.is_alive():
            raise ServerError(
                f"the speech-to-text server {self._server.address}: its name is still being looked "
                "up; write its address in numbers into [transcriber] host"
            )
        errand = Errand(lambda: self._server.transcribe(window.samples, within_s), "server")
        deadline_s = time.monotonic() + within_s + 1.0
        wanted = True
        while errand.is_alive() and wanted and time.monotonic() < deadline_s:
            errand.join(LOOK_S)
            wanted = self.goes_on()
        if errand.is_alive():
            self._server.hang_up()
            self._left = errand
            if not wanted:
                raise UnwantedError("nobody waits for the answer any more")
            return self._answer(window, within_s)  # says that it hangs
        if errand.error:
            raise errand.error
        answer: Answer = errand.outcome
        return answer

    def _collect(self) -> None:
        """Takes over what has come of a look at the server, if it is over."""
        looked = self._looking
        if looked is None or looked.is_alive():
            return
        self._looking = None
        if looked.error is None:
            self.info, self.fault = looked.outcome, None
            self._look_s = self._clock() + WATCH_EVERY_S
        elif not isinstance(looked.error, ServerError):
            raise looked.error
        else:
            self._fail(looked.error)

    def _fail(self, error: ServerError) -> None:
        """The server is out of use."""
        self.fault = str(error)
        self._look_s = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _try_out(self) -> Info:
        """What a server that failed says of itself, once it has transcribed a second of silence.

        Raises ServerError. The thread of a look.
        """
        info = self._server.describe()
        self._server.transcribe(SILENCE, 1.0 + self._timeout_s)
        return info


class ServedTranscriber:
    """Has windows transcribed by a server, and by the model on this machine, where there is one,
    while the server cannot. Threads as in `Transcriber`; `encode` has the whole transcription made.
    """

    def __init__(
        self, settings: Settings, local: Transcriber | None, server: Server | None = None
    ) -> None:
        """`server` stands in for the one that the settings name."""
        chosen = settings.transcriber
        self._local, self._language = local, chosen.language
        self._server_name = f"{chosen.host}:{chosen.port}"
        self.encoder = ServedEncoder(
            server or Server(chosen), chosen.timeout_s, local.encoder if local else None
        )
        self.gates = local.gates if local else settings.gates
        self.trouble = local.trouble if local else ""
        self.in_process = local is not None

    @property
    def bundle(self) -> Model:
        """The model that transcribes now."""
        if self._local and self.encoder.fault:
            return self._local.bundle
        info = self.encoder.info or Info(self._server_name, ())
        window_s = self._local.bundle.window_s if self._local else WINDOW_S
        language = self._language or (info.languages[0] if len(info.languages) == 1 else "")
        return ServedModel(info.model, language or UNKNOWN_LANGUAGE, info.languages, window_s)

    @property
    def goes_on(self) -> Callable[[], bool]:
        """Called several times a second while `encode` waits for the server; False: it is to give
        up, with a ServerError."""
        return self.encoder.goes_on

    @goes_on.setter
    def goes_on(self, goes_on: Callable[[], bool]) -> None:
        self.encoder.goes_on = goes_on

    def transcribe(self, window: Window) -> Transcription:
        """The transcription of a window. Raises as `encode` and `Transcriber.transcribe` do."""
        return self.write(self.encode(window))

    def encode(self, window: Window) -> Encoded:
        """The server's transcription; states, where a model on this machine stands in.

        Raises ServerError when nobody can transcribe now, and RefusedError when the server fails
        with this window alone.
        """
        try:
            answer = self.encoder.ask(window)
        except UnwantedError:
            raise
        except DeviceError:
            if not self._local:
                raise
            return self._local.encode(window)
        transcription = Transcription(
            text=answer.text,
            tokens=_pieces(answer.text),
            language=answer.language or self.bundle.language,
            avg_logprob=math.nan,
            no_speech_prob=math.nan,
            compression_ratio=compression_ratio(answer.text),
            ended=True,
            encoder=SERVER,
            encode_ms=answer.took_ms,
            decode_ms=0.0,
            confidence=math.nan,
            model=self.bundle.name,
        )
        return Answered(NO_STATES, window.duration_s, SERVER, answer.took_ms, transcription)

    def write(self, encoded: Encoded) -> Transcription:
        """The text of what `encode` gave."""
        if isinstance(encoded, Answered):
            return encoded.transcription
        if not self._local:
            raise DeviceError("expected a server's transcription, found encoder states")
        return replace(self._local.write(encoded), model=self._local.bundle.name)

    def warm_up(self) -> None:
        """Warms the model on this machine up, and gives the server a moment to say what it is."""
        if self._local:
            self._local.warm_up()
        self.encoder.settle(CONNECT_S)

    def close(self) -> None:
        """Ends what is being asked, and frees the encoder's device."""
        self.encoder.close()
        if self._local:
            self._local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_transcriber(settings: Settings) -> AnyTranscriber:
    """The transcriber that [transcriber] asks for. With a server the model on this machine stands
    in for it, if one was chosen: the built-in one knows too little to.

    Raises as infer's `open_transcriber` does, but never for a server that is away.
    """
    chosen = settings.transcriber
    if chosen.backend != "wyoming":
        return open_model(settings)
    has_model = chosen.fallback and bool(settings.model.bundle or chosen_model())
    return ServedTranscriber(settings, open_model(settings) if has_model else None)


def _info(data: Mapping[str, Any], language: str) -> Info:
    """The first program and model that are installed, those for the language first. Raises
    ProtocolError."""
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
    """The tables in what should be a list of them."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text(said: object, duration_s: float) -> str:
    """A server's text on one line, without what no text holds. Raises ProtocolError."""
    if not isinstance(said, str):
        raise ProtocolError("expected a transcript with a text, found none")
    if len(said) > LETTERS + LETTERS_PER_S * duration_s:
        raise ProtocolError(
            f"expected what is said in {duration_s:.1f} s, found {len(said)} letters"
        )
    whole = said.encode("utf-8", "replace").decode()
    return " ".join("".join(one if one.isprintable() else " " for one in whole).split())


def _pieces(text: str) -> tuple[int, ...]:
    """A number for each word, or for each letter where no spaces are written: what the gates look
    for loops in, in place of a model's tokens."""
    parts = text.split()
    pieces = parts if len(parts) > 1 or text.isascii() else list(text)
    return tuple(zlib.crc32(piece.casefold().encode()) for piece in pieces)
