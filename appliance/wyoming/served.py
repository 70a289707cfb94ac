"""Windows to transcriptions by a server; while it cannot, by this machine's model, or they wait.

A question is asked by a thread of its own: looking up a name may hang, and the encoder's thread has
to show that it moves. A server that failed is asked again when it has transcribed a second of
silence; with that, a window that alone makes it fail is told from a server that is broken.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from appliance.config import Settings
from appliance.errors import DeviceError, RefusedError, ServerError
from appliance.infer import (
    AnyTranscriber,
    Encoded,
    Errand,
    Model,
    Transcriber,
    Unit,
    compression_ratio,
    lacking_runtime,
    open_transcriber as open_model,
)
from appliance.model import chosen_model
from appliance.records import SAMPLE_RATE, Transcription, Window
from appliance.wyoming.client import CONNECT_S, Client, Info, Reply

SERVER = "wyoming"
"""What an event names as the encoder of such a text."""
WINDOW_S = 10.0
"""Longest window where no model on this machine has a say; the built-in one's length."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 10.0
WATCH_EVERY_S = 30.0
"""Between two looks at a server that is well, so that its end is known before somebody speaks."""
MOST_TRIES = 3
"""A window that fails so often, at a server that does transcribe silence, fails by itself."""
LOOK_S = 0.2
"""Between two looks at whether an answer is still wanted."""
UNKNOWN_LANGUAGE = "und"
"""ISO 639-2's code where neither server nor configuration says."""
SILENCE = np.zeros(SAMPLE_RATE, np.int16)
NO_STATES = np.zeros((0, 0), np.float32)


class UnwantedError(ServerError):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
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


class ServedEncoder:
    """How the server is, in an encoder's place. One thread's; `name`, `trouble` and `facts` may be
    read from any."""

    def __init__(
        self,
        client: Client,
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
        self._client, self._timeout_s, self._local, self._clock = client, timeout_s, local, clock
        self._pause_s, self._look_s = FIRST_PAUSE_S, clock() + WATCH_EVERY_S
        self._failed, self._failures = "", 0
        """The window that failed last, and how often in a row."""
        self._left: Errand | None = None
        """A question that was given up and has not ended: the host's name is being looked up."""
        self._looking: Errand | None = Errand(client.describe, "server")

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

    def ask(self, window: Window) -> Reply:
        """The server's text. Raises ServerError, at once while the server is known to be away, and
        RefusedError where it fails with this window alone."""
        self._watch(self._clock())
        if self.fault:
            raise ServerError(self.fault)
        failures = self._failures if self._failed == window.id else 0
        if failures >= MOST_TRIES:
            raise RefusedError(f"the server failed {failures} times with this window alone")
        try:
            reply = self._reply(window, (window.duration_s + self._timeout_s) * 2**failures)
        except UnwantedError:
            raise
        except ServerError as error:
            if not error.busy:
                self._failed, self._failures = window.id, failures + 1
            self._fail(error)
            raise
        self._failed, self._pause_s = "", FIRST_PAUSE_S
        self._looking = None  # what it may say is older
        self._look_s = self._clock() + WATCH_EVERY_S
        return reply

    def look_after(self, now_s: float) -> None:
        """Begins what is due at `now_s` (time.monotonic()), and takes over what was begun before.

        Does not wait.
        """
        if self._local:
            self._local.look_after(now_s)
        self._watch(now_s)

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
        self._client.hang_up()

    def _watch(self, now_s: float) -> None:
        self._collect()
        if self._looking is None and now_s >= self._look_s:
            look = self._try_out if self.fault else self._client.describe
            self._looking = Errand(look, "server")

    def _reply(self, window: Window, within_s: float) -> Reply:
        """The server's answer, waited for while `goes_on`. Raises ServerError."""
        if self._left and self._left.is_alive():
            raise ServerError(
                f"the speech-to-text server {self._client.address}: its name is still being looked "
                "up; write its address in numbers into [transcriber] host"
            )
        errand = Errand(lambda: self._client.transcribe(window.samples, within_s), "server")
        deadline_s = time.monotonic() + within_s + 1.0
        wanted = True
        while errand.is_alive() and wanted and time.monotonic() < deadline_s:
            errand.join(LOOK_S)
            wanted = self.goes_on()
        if errand.is_alive():
            self._client.hang_up()
            self._left = errand
            if not wanted:
                raise UnwantedError("nobody waits for the answer any more")
            return self._reply(window, within_s)  # says that it hangs
        if errand.error:
            raise errand.error
        reply: Reply = errand.outcome
        return reply

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
        info = self._client.describe()
        self._client.transcribe(SILENCE, 1.0 + self._timeout_s)
        return info


class ServedTranscriber:
    """Has windows transcribed by a server, and by the model on this machine, where there is one,
    while the server cannot. Threads as in `Transcriber`; `encode` has the whole transcription made.
    """

    def __init__(
        self, settings: Settings, local: Transcriber | None, client: Client | None = None
    ) -> None:
        """`client` stands in for the one that the settings name."""
        chosen = settings.transcriber
        self._local, self._language = local, chosen.language
        self._server_name = f"{chosen.host}:{chosen.port}"
        self.encoder = ServedEncoder(
            client or Client(chosen), chosen.timeout_s, local.encoder if local else None
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
            reply = self.encoder.ask(window)
        except UnwantedError:
            raise
        except DeviceError:
            if not self._local:
                raise
            return self._local.encode(window)
        transcription = Transcription(
            text=reply.text,
            tokens=_pieces(reply.text),
            language=reply.language or self.bundle.language,
            avg_logprob=math.nan,
            no_speech_prob=math.nan,
            compression_ratio=compression_ratio(reply.text),
            ended=True,
            encoder=SERVER,
            encode_ms=reply.took_ms,
            decode_ms=0.0,
            confidence=math.nan,
            model=self.bundle.name,
        )
        return Answered(
            NO_STATES, window.duration_s, SERVER, reply.took_ms, transcription=transcription
        )

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
    has_model = has_model and not lacking_runtime()
    return ServedTranscriber(settings, open_model(settings) if has_model else None)


def _pieces(text: str) -> tuple[int, ...]:
    """A number for each word, or for each letter where no spaces are written: what the gates look
    for loops in, in place of a model's tokens."""
    parts = text.split()
    pieces = parts if len(parts) > 1 or text.isascii() else list(text)
    return tuple(zlib.crc32(piece.casefold().encode()) for piece in pieces)
