"""`POST /v1/audio/transcriptions`, in the form of OpenAI's API, for programs with a token.

The sound is decoded here, in the page's sandboxed process, and transcribed by the daemon's Wyoming
server over a UNIX socket, after the microphone. Fields: developers.openai.com/api/reference,
transcriptions.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from tornado.httputil import HTTPFile, HTTPInputError, parse_body_arguments
from tornado.web import RequestHandler, stream_request_body

from appliance.config import WYOMING_SOCKET, WebSettings
from appliance.web.access import Access
from appliance.web.daemon import CommandRefusedError, DaemonClient, OfflineError
from appliance.wyoming import Event, ProtocolError, pack, read_event

BODY_BYTES = 12_000_000
"""A minute of 16-bit stereo at 48 kHz. A request holds its body four times while it is decoded."""
REQUESTS = 2
"""Requests at once: each may hold its sound in memory."""
LONGEST_S = 60
CHANNELS = 8
"""A file of 16 kB with 255 channels took 900 MB."""
PART_SAMPLES = 20_000
"""Samples in one event, which has at most 64 kB."""
TEXT_S = 120.0
"""Longest wait for the text of a sound: the microphone goes first."""
UPLOAD_S = 120.0
FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
STATUSES = {"bad_sound": 400, "busy": 429}

Segment = Mapping[str, Any]


class Shared(Protocol):
    """What all requests share: see `server.Page`."""

    settings: WebSettings
    access: Access
    daemon: DaemonClient
    last_request_s: float
    uploads: int


class ApiError(Exception):
    """A refused request."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


class _Api(RequestHandler):
    """A request with a token. Errors have OpenAI's form."""

    @property
    def page(self) -> Shared:
        """What all requests share."""
        found: Shared = self.application.settings["page"]
        return found

    def set_default_headers(self) -> None:
        """Set the headers of every answer."""
        self.set_header("Server", "roomscribe")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")

    def check(self) -> None:
        """Raise ApiError without a valid token."""
        self.page.last_request_s = asyncio.get_running_loop().time()
        if not self.page.settings.api:
            raise ApiError(404, "This interface is off. Set `api = true` under [web].")
        if not self.page.access.is_own_host(self.request.headers.get("Host", "")):
            raise ApiError(421, "This host name is not accepted. Add it to `hosts` under [web].")
        kind, _, token = self.request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not self.page.access.is_api_token(token.strip()):
            raise ApiError(401, "Wrong token. `sudo roomscribe web token` makes a new one.")

    def refuse(self, error: Exception) -> None:
        """Answer with an error and close the connection."""
        status = error.status if isinstance(error, ApiError) else 503
        if isinstance(error, CommandRefusedError):
            status = STATUSES.get(error.code, 503)
        if status in (429, 503):
            self.set_header("Retry-After", "5")
        self.set_status(status)
        self.set_header("Connection", "close")
        kind = "server_error" if status >= 500 else "invalid_request_error"
        param = error.param if isinstance(error, ApiError) else None
        self.finish({"error": {"message": str(error), "type": kind, "param": param, "code": None}})


class Models(_Api):
    """`GET /v1/models`: clients may ask for the models before they send a sound."""

    def get(self) -> None:
        """Send the only model, whose name OpenAI's clients know."""
        try:
            self.check()
        except ApiError as error:
            self.refuse(error)
            return
        model = {"id": "whisper-1", "object": "model", "created": 0, "owned_by": "roomscribe"}
        self.finish({"object": "list", "data": [model]})


@stream_request_body
class Transcriptions(_Api):
    """`POST /v1/audio/transcriptions`."""

    _counted = False

    def prepare(self) -> None:
        """Refuse a request before its body is read; else allow a long body."""
        self._body = bytearray()
        try:
            self.check()
            if self.request.method != "POST":
                raise ApiError(405, "Expected POST.")
            if self.page.uploads >= REQUESTS:
                raise ApiError(429, f"{REQUESTS} sounds are being transcribed. Try again later.")
        except ApiError as error:
            self.refuse(error)
            return
        self.page.uploads += 1
        self._counted = True
        connection: Any = self.request.connection
        connection.set_max_body_size(BODY_BYTES)
        connection.set_body_timeout(UPLOAD_S)

    def data_received(self, chunk: bytes) -> None:
        """Take in a part of the body."""
        if self._counted:
            self._body += chunk

    def on_finish(self) -> None:
        """Make room for the next request."""
        self._release()

    def on_connection_close(self) -> None:
        """Make room for the next request."""
        self._release()

    async def post(self) -> None:
        """Send the text in the requested form."""
        if not self._counted:
            return
        try:
            fields, file = self._parse()
            form = fields.get("response_format", "json")
            if form not in FORMATS:
                raise ApiError(400, f"expected one of {', '.join(FORMATS)}", "response_format")
            samples, rate_hz = await asyncio.to_thread(decode, file.body)
            pieces = self._transcribe(samples, rate_hz)
            if fields.get("stream", "").lower() in ("true", "1"):
                await self._stream(pieces)
                return
            self._send(form, [piece async for piece in pieces], len(samples) / rate_hz)
        except (ApiError, OfflineError, CommandRefusedError) as error:
            self.refuse(error)

    def _release(self) -> None:
        if self._counted:
            self._counted = False
            self.page.uploads -= 1

    def _parse(self) -> tuple[dict[str, str], HTTPFile]:
        """Return the form's fields and its file. Raises ApiError."""
        arguments: dict[str, list[bytes]] = {}
        files: dict[str, list[HTTPFile]] = {}
        kind = self.request.headers.get("Content-Type", "")
        if not kind.startswith("multipart/form-data"):
            raise ApiError(415, "Expected multipart/form-data.")
        try:
            parse_body_arguments(kind, bytes(self._body), arguments, files)
            self._body.clear()
        except HTTPInputError:
            raise ApiError(400, "The form cannot be read.") from None
        if not files.get("file"):
            raise ApiError(400, "Expected a sound file in the field `file`.", "file")
        fields = {name: values[-1].decode("utf-8", "replace") for name, values in arguments.items()}
        return fields, files["file"][0]

    async def _transcribe(self, samples: Any, rate_hz: int) -> AsyncIterator[Segment]:
        """Yield the pieces of the text, as they are ready; `text` joined is the text."""
        async with self.page.daemon.connected(WYOMING_SOCKET) as (reader, writer):
            sending = asyncio.ensure_future(_send(writer, samples, rate_hz))
            try:
                async with asyncio.timeout(TEXT_S):
                    while (event := await read_event(reader)).type != "transcript":
                        if event.type == "error":
                            text, code = (str(event.data.get(name)) for name in ("text", "code"))
                            raise CommandRefusedError(text, code)
                        if event.type == "transcript-chunk":
                            yield event.data
            except (OSError, EOFError, ProtocolError, TimeoutError) as error:
                raise OfflineError("Roomscribe does not answer. It may be restarting.") from error
            finally:
                sending.cancel()

    async def _stream(self, pieces: AsyncIterator[Segment]) -> None:
        """Send the text as events, a piece at a time."""
        text = ""
        async for piece in pieces:
            text += piece["text"]
            await self._event({"type": "transcript.text.delta", "delta": piece["text"]})
        await self._event({"type": "transcript.text.done", "text": text})
        self.finish()

    async def _event(self, data: Mapping[str, Any]) -> None:
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.write(f"data: {json.dumps(data, ensure_ascii=False)}\n\n")
        await self.flush()

    def _send(self, form: str, segments: list[Segment], duration_s: float) -> None:
        text = "".join(str(one["text"]) for one in segments)
        if form == "json":
            self.finish({"text": text})
        elif form == "verbose_json":
            self.finish(_verbose(text, segments, duration_s))
        else:
            kind = "text/vtt" if form == "vtt" else "text/plain"
            self.set_header("Content-Type", f"{kind}; charset=utf-8")
            self.finish(f"{text}\n" if form == "text" else subtitles(segments, form))


async def _send(writer: asyncio.StreamWriter, samples: Any, rate_hz: int) -> None:
    """Send (n,) int16 mono."""
    form = {"rate": rate_hz, "width": 2, "channels": 1}
    writer.write(pack(Event("audio-start", form)))
    for at in range(0, len(samples), PART_SAMPLES):
        part = samples[at : at + PART_SAMPLES].tobytes()
        writer.write(pack(Event("audio-chunk", form, part)))
        await writer.drain()
    writer.write(pack(Event("audio-stop")))


def decode(data: bytes) -> tuple[Any, int]:
    """Return a sound file as (n,) int16 mono, and its rate in Hz. Raises ApiError."""
    import numpy as np
    import soundfile

    descriptor = os.memfd_create("sound")  # never a file; and libsndfile needs no callbacks then
    with os.fdopen(descriptor, "w+b") as stream:
        stream.write(data)
        stream.seek(0)
        try:
            with soundfile.SoundFile(os.dup(descriptor)) as file:
                rate_hz = file.samplerate
                if not 4000 <= rate_hz <= 192_000:
                    raise ApiError(400, "Expected a sound of 4 to 192 kHz.", "file")
                if file.channels > CHANNELS:
                    raise ApiError(400, f"Expected at most {CHANNELS} channels.", "file")
                blocks = file.blocks(rate_hz, dtype="float32", always_2d=True)
                parts = [_mix(block) for block in itertools.islice(blocks, LONGEST_S + 1)]
        except (soundfile.SoundFileError, RuntimeError):
            raise ApiError(
                400, "Expected a sound file as WAV, FLAC, OGG or MP3, found another.", "file"
            ) from None
    samples = np.concatenate(parts) if parts else np.zeros(0, "<i2")
    if not len(samples):
        raise ApiError(400, "Expected a sound, found a file without one.", "file")
    if len(samples) > LONGEST_S * rate_hz:
        raise ApiError(400, f"Expected at most {LONGEST_S} s of sound, found more.", "file")
    return samples, rate_hz


def _mix(sound: Any) -> Any:
    """Return (n, channels) float32 as (n,) int16."""
    import numpy as np  # not in the memory of a page that nobody sends sound to

    return (np.clip(np.nan_to_num(sound).mean(axis=1), -1.0, 1.0) * 32767).astype("<i2")


def _verbose(text: str, segments: list[Segment], duration_s: float) -> dict[str, Any]:
    shown = [
        {
            "id": number,
            "seek": 0,
            "start": one["start_s"],
            "end": one["end_s"],
            "text": one["text"].strip(),
            "tokens": [],
            "temperature": 0.0,
            "avg_logprob": one["avg_logprob"],
            "compression_ratio": one["compression_ratio"],
            "no_speech_prob": one["no_speech_prob"],
        }
        for number, one in enumerate(segments)
    ]
    language = segments[-1]["language"] if segments else ""
    duration = round(duration_s, 3)
    head = {"task": "transcribe", "language": language, "duration": duration, "text": text}
    return head | {"segments": shown}


def subtitles(segments: Sequence[Segment], form: str) -> str:
    """Return the segments as SRT or WebVTT."""
    mark = "," if form == "srt" else "."
    lines = ["WEBVTT\n"] if form == "vtt" else []
    for number, one in enumerate(segments, 1):
        times = f"{_clock(one['start_s'], mark)} --> {_clock(one['end_s'], mark)}"
        head = f"{number}\n" if form == "srt" else ""
        lines.append(f"{head}{times}\n{one['text'].strip()}\n")
    return "\n".join(lines)


def _clock(seconds: float, mark: str) -> str:
    whole_s, ms = divmod(round(max(0.0, seconds) * 1000), 1000)
    return f"{whole_s // 3600:02}:{whole_s // 60 % 60:02}:{whole_s % 60:02}{mark}{ms:03}"
