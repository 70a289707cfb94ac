"""Transcribes windows with a speech-to-text server; `infer/remote` handles its outages."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable

from appliance.config import Settings
from appliance.infer import (
    AnyTranscriber,
    Backend,
    Model,
    RemoteBackend,
    RemoteModel,
    RemoteTranscriber,
    Transcriber,
    compression_ratio,
    lacking_runtime,
    open_transcriber as open_model,
)
from appliance.model import WINDOW_S, chosen_model
from appliance.records import Transcription, Window
from appliance.wyoming.client import Info, Reply, WyomingClient

TIMEOUT_S = 10.0
"""Time that the server has for each window, besides the length of the speech itself."""
SERVER = "wyoming"
"""The `encoder` in the event of such a text."""
UNKNOWN_LANGUAGE = "und"
"""ISO 639-2's code if neither server nor configuration tells the language."""


class ServedBackend(RemoteBackend[Info, Reply]):
    """The state of the server."""

    remote_name = SERVER

    def __init__(
        self,
        client: WyomingClient,
        timeout_s: float,
        local: Backend | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send the first request, without waiting. `local` encodes while the server is offline."""
        self._client, self._timeout_s = client, timeout_s
        self.away = (
            f"the speech-to-text server {client.address}: its name is still being looked up; use "
            "its IP address in [transcriber] host"
        )
        super().__init__(local, clock)

    def describe(self) -> Info:
        """Return the server's description."""
        return self._client.describe()

    def prove(self) -> Info:
        """Return the same, after the server has transcribed a second of silence."""
        info = self._client.describe()
        self._client.transcribe(self.silence, 1.0 + self._timeout_s)
        return info

    def request(self, window: Window, within_s: float) -> Reply:
        """Return the server's text."""
        return self._client.transcribe(window.samples, within_s)

    def within_s(self, window: Window, failures: int) -> float:
        """Return the length of the speech plus `timeout_s`, doubled with each failure."""
        return (window.duration_s + self._timeout_s) * 2.0**failures

    def hang_up(self) -> None:
        """Cancel all requests."""
        self._client.hang_up()


class ServedTranscriber(RemoteTranscriber[Info, Reply]):
    """Transcribes windows with a server."""

    def __init__(
        self, settings: Settings, local: Transcriber | None, client: WyomingClient | None = None
    ) -> None:
        """`client` replaces the one that the settings name."""
        chosen = settings.transcriber
        self._language = chosen.language
        self._server_name = f"{chosen.host}:{chosen.port}"
        backend = ServedBackend(
            client or WyomingClient(chosen), TIMEOUT_S, local.backend if local else None
        )
        super().__init__(
            backend, local, local.gates if local else settings.gates, settings.vocabulary.replace
        )

    @property
    def bundle(self) -> Model:
        """The model that transcribes at present."""
        if self._local and self.backend.fault:
            return self._local.bundle
        info = self.backend.info or Info(self._server_name, ())
        window_s = self._local.bundle.window_s if self._local else WINDOW_S
        language = self._language or (info.languages[0] if len(info.languages) == 1 else "")
        return RemoteModel(info.model, language or UNKNOWN_LANGUAGE, info.languages, window_s)

    def transcription(self, window: Window, reply: Reply) -> Transcription:
        """Return the server's text as a transcription with unknown probabilities."""
        return Transcription(
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


def open_transcriber(settings: Settings) -> AnyTranscriber:
    """Return the transcriber that [transcriber] configures.

    If a model was chosen on this machine, it replaces the server during an outage; the built-in
    one knows too little. Raises as infer's `open_transcriber`, but not for an offline server.
    """
    chosen = settings.transcriber
    if chosen.backend != "wyoming":
        return open_model(settings)
    has_model = chosen.fallback and bool(settings.model.bundle or chosen_model())
    has_model = has_model and not lacking_runtime()
    return ServedTranscriber(settings, open_model(settings) if has_model else None)


def _pieces(text: str) -> tuple[int, ...]:
    """Return a number per word, or per letter without spaces: the gates search these for loops, in
    place of a model's tokens."""
    parts = text.split()
    pieces = parts if len(parts) > 1 or text.isascii() else list(text)
    return tuple(zlib.crc32(piece.casefold().encode()) for piece in pieces)
