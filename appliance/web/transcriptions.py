"""`/v1`: OpenAI's speech-to-text interface, for programs with a token.

A sound is decoded here, in the page's sandboxed process, and transcribed by the daemon's Wyoming
server over a UNIX socket, after the microphone. It is in memory only, once, whatever its size.
Fields and errors: developers.openai.com/api/reference, transcriptions.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import islice
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import stream_request_body

from appliance.config import LANGUAGES, WYOMING_SOCKET
from appliance.errors import AudioError, DeviceError
from appliance.web.connections import Handler
from appliance.web.daemon import CommandRefusedError, OfflineError
from appliance.web.form import ApiError, read_form
from appliance.web.subtitles import Segment, make_subtitles
from appliance.wyoming import Event, ProtocolError, pack, read_event

FILE_BYTES = 25 << 20
"""OpenAI's limit."""
BODY_BYTES = FILE_BYTES + (64 << 10)
"""With the form around the file."""
DISCARDED_BYTES = 1 << 40
"""A refused body is read all the same: many clients read an answer only after they have sent it."""
REQUESTS = 2
"""Requests at once: each holds its file in memory."""
BATCH, FRAME_S = 33, 0.03
"""Frames in one event, and their length."""
UPLOAD_S = 120.0
RELOAD_S = 15.0
"""Longest wait for a daemon that loads its settings again."""
MODEL = "whisper-1"
"""The name that OpenAI's clients know."""
FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
GRANULARITIES = ("word", "segment")
NO_LANGUAGE = ("auto", "null", "none", "undefined")
"""What clients send in place of no language."""
STATUSES = {"bad_sound": 400, "bad_language": 400, "busy": 429}
NAME = re.compile(r"[^\W_][\w'-]*")
SENTENCE_START = re.compile(r"(^|[.!?])\s*[\w'-]+(?=\s+[^\W\dA-Z])")
"""A word with a capital that may be no name, before one without."""
SOUND_FORMAT = {"rate": 16_000, "width": 2, "channels": 1}


@stream_request_body
class Api(Handler):
    """A request with a token to a path where nothing is. Errors have OpenAI's form."""

    method = ""
    """The only one that is answered; "": none."""
    _refusal: ApiError | None = None
    _work: asyncio.Task[None] | None = None

    def set_default_headers(self) -> None:
        """Set the headers of every answer, errors included."""
        super().set_default_headers()
        origin, allowed = self.request.headers.get("Origin"), self.page.settings.cors.split()
        if allowed:
            self.set_header("Vary", "Origin")
        if origin and (origin in allowed or "*" in allowed):
            self.set_header("Access-Control-Allow-Origin", origin)
            self.set_header("Access-Control-Allow-Methods", "GET, POST")
            wanted = self.request.headers.get("Access-Control-Request-Headers", "")
            self.set_header("Access-Control-Allow-Headers", wanted)

    def prepare(self) -> None:
        """Decide whether the request is refused, before its body if the client waits for that."""
        connection: Any = self.request.connection
        connection.set_max_body_size(DISCARDED_BYTES)
        connection.set_body_timeout(UPLOAD_S)
        self.note_request()
        try:
            self.check()
            self.note_request(logged_in=self.request.method != "OPTIONS")  # which shows no token
        except ApiError as error:
            self._refusal = error
            if self.request.headers.get("Expect") == "100-continue":
                self.refuse(error)

    def check(self) -> None:
        """Raise ApiError for a request that must not be answered."""
        if not self.page.settings.api:
            raise ApiError(404, "This interface is off. Set `api = true` under [web].")
        if not self.page.access.is_own_host(self.request.headers.get("Host", "")):
            raise ApiError(421, "This host name is not accepted. Add it to `hosts` under [web].")
        if self.request.method == "OPTIONS" and self.page.settings.cors:
            return  # browsers ask without a token
        kind, _, token = self.request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not self.page.access.is_api_token(token.strip()):
            raise ApiError(
                401,
                "Wrong token. `sudo roomscribe web token` makes a new one.",
                code="invalid_api_key",
            )
        if not self.method:
            raise ApiError(404, f"Unknown path {self.request.path}.", code="unknown_url")
        if self.request.method != self.method:
            raise ApiError(405, f"Expected {self.method}.", code="method_not_supported")

    def data_received(self, chunk: bytes) -> None:
        """Discard a part of the body."""

    async def _answer_or_refuse(self, *path: str) -> None:
        """Answer; stop working on it when the client leaves."""
        self._work = asyncio.ensure_future(self._answered(*path))
        with suppress(asyncio.CancelledError):
            await self._work

    get = head = post = put = patch = delete = options = _answer_or_refuse

    def on_connection_close(self) -> None:
        """Stop."""
        if self._work:
            self._work.cancel()

    async def _answered(self, *path: str) -> None:
        try:
            if self._refusal:
                raise self._refusal
            if self.request.method == "OPTIONS":
                self.set_status(204)
                self.finish()
                return
            await self.answer(*path)
        except (ApiError, OfflineError, CommandRefusedError) as error:
            self.refuse(error)
        except StreamClosedError:
            pass  # the client has left

    async def answer(self, *path: str) -> None:
        """Answer a request that is not refused. Raises ApiError, OfflineError,
        CommandRefusedError."""

    def refuse(self, error: Exception) -> None:
        """Answer with an error and close the connection."""
        status = error.status if isinstance(error, ApiError) else 503
        if isinstance(error, CommandRefusedError):
            status = STATUSES.get(error.code, 503)
        if status in (429, 503):
            self.set_header("Retry-After", "5")
        self.set_header("Connection", "close")
        self.set_status(status)
        self.write_error(status, error=error)

    def write_error(self, status_code: int, error: Exception | None = None, **_: Any) -> None:
        """Answer with an error in OpenAI's form; without one it was unexpected."""
        self.finish({
            "error": {
                "message": str(error or self._reason),
                "type": "server_error" if status_code >= 500 else "invalid_request_error",
                "param": getattr(error, "param", None),
                "code": getattr(error, "code", None),
            }
        })  # fmt: skip


class Models(Api):
    """`GET /v1/models` and `/v1/models/{id}`: clients may ask before they send a sound."""

    method = "GET"

    async def answer(self, *path: str) -> None:
        """Send the only model, whatever it is: OpenAI's clients know its name."""
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "roomscribe"}
        if not path:
            self.finish({"object": "list", "data": [model]})
        elif path[0] == MODEL:
            self.finish(model)
        else:
            message = f"The only model here is {MODEL}."
            raise ApiError(404, message, "model", "model_not_found")


class Transcriptions(Api):
    """`POST /v1/audio/transcriptions`."""

    method = "POST"
    _body: int | None = None
    """The descriptor of the memory with the body, then with its file alone."""
    _size = 0

    def prepare(self) -> None:
        """Make room for the body, unless the request is refused."""
        super().prepare()
        if not self._refusal and self.request.method == self.method:
            self.page.uploads += 1
            self._body = os.memfd_create("sound")

    def check(self) -> None:
        """Raise ApiError for a request that must not be answered."""
        super().check()
        if self.request.method == self.method and self.page.uploads >= REQUESTS:
            raise ApiError(
                429,
                f"{REQUESTS} sounds are being transcribed. Try again later.",
                code="rate_limit_exceeded",
            )

    def data_received(self, chunk: bytes) -> None:
        """Take in a part of the body."""
        if self._body is None:
            return
        self._size += len(chunk)
        if self._size > BODY_BYTES:
            message = f"Expected a file of at most {FILE_BYTES >> 20} MB, found more."
            self._refusal = ApiError(413, message, "file")
            self._release()
            return
        os.write(self._body, chunk)

    def on_finish(self) -> None:
        """Make room for the next request."""
        self._release()

    def on_connection_close(self) -> None:
        """Make room for the next request."""
        super().on_connection_close()
        if not self._work:
            self._release()

    def _release(self) -> None:
        if self._body is not None:
            self.page.uploads -= 1
            self.page.last_request_s = asyncio.get_running_loop().time()
            os.close(self._body)
            self._body = None

    async def answer(self, *path: str) -> None:
        """Send the text in the requested form."""
        try:
            fields = await asyncio.to_thread(self._parse, os.dup(self._body or 0))
            form = fields.get("response_format", ["json"])[-1]
            if form not in FORMATS:
                expected = ", ".join(FORMATS)
                raise ApiError(400, f"Expected one of {expected}.", "response_format")
            details = fields.get("timestamp_granularities", ["segment"])
            if not set(details) <= {*GRANULARITIES}:
                expected = " or ".join(GRANULARITIES)
                raise ApiError(400, f"Expected {expected}.", "timestamp_granularities[]")
            if any(fields.get("include", ())):
                raise ApiError(400, "`include[]` is not supported: leave it out.", "include[]")
            words = "word" in details or form in ("srt", "vtt")
            sound = Sound(self._body or 0)
            request = _daemon_request(fields, words=words)
            async with aclosing(self._transcribe(sound, request)) as pieces:
                if fields.get("stream", [""])[-1].lower() in ("true", "1"):
                    await self._stream(pieces)
                else:
                    self._send(form, [piece async for piece in pieces], sound, details)
        finally:
            self._release()

    def _parse(self, body: int) -> dict[str, list[str]]:
        """Return the form's fields, and leave its file alone in the memory. Runs in a thread, with
        a descriptor of its own: a client that leaves ends the request. Raises ApiError."""
        try:
            return read_form(body, self.request.headers.get("Content-Type", ""))
        finally:
            os.close(body)

    async def _transcribe(
        self, sound: Sound, wanted: Mapping[str, Any]
    ) -> AsyncGenerator[Segment, None]:
        """Yield the pieces of the text, as they are ready; `text` joined is the text."""
        async with self.page.daemon.connected(WYOMING_SOCKET, RELOAD_S) as (reader, writer):
            sending = asyncio.ensure_future(sound.send(writer, wanted))
            try:
                while (event := await read_event(reader)).type != "transcript":
                    if event.type == "error":
                        text, code = (str(event.data.get(name)) for name in ("text", "code"))
                        raise CommandRefusedError(text, code)
                    if event.type == "transcript-chunk":
                        yield event.data
            except (OSError, EOFError, ProtocolError) as error:
                if sound.trouble:
                    raise sound.trouble from None
                raise OfflineError("Roomscribe does not answer. It may be restarting.") from error
            finally:
                writer.close()
                await asyncio.wait([sending])

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
        self.set_header("X-Accel-Buffering", "no")
        self.write(f"data: {json.dumps(data, ensure_ascii=False)}\n\n")
        await self.flush()

    def _send(
        self, form: str, segments: list[Segment], sound: Sound, details: Sequence[str]
    ) -> None:
        text = "".join(str(one["text"]) for one in segments)
        if form == "json":
            self.finish({"text": text})
        elif form == "verbose_json":
            self.finish(_verbose(text, segments, sound.duration_s, details))
        else:
            kind = "text/vtt" if form == "vtt" else "text/plain"
            self.set_header("Content-Type", f"{kind}; charset=utf-8")
            self.finish(f"{text}\n" if form == "text" else _all_subtitles(segments, form))


class Sound:
    """A sound file in memory, on its way to the daemon."""

    def __init__(self, descriptor: int) -> None:
        self._path = f"/proc/self/fd/{descriptor}"
        self.duration_s = 0.0
        """Length of what was sent."""
        self.trouble: ApiError | None = None
        """Why it cannot be decoded."""

    async def send(self, writer: asyncio.StreamWriter, wanted: Mapping[str, Any]) -> None:
        """Decode and send it, as fast as it is taken; at a fault close the connection."""
        loop = asyncio.get_running_loop()

        async def write(*events: Event) -> None:
            writer.write(b"".join(map(pack, events)))
            await writer.drain()

        def decode() -> None:
            """Run in a thread, which alone uses the file, and ends when nobody takes the sound."""
            # not in memory while nobody sends sound
            from appliance.capture import Recording
            from appliance.wyoming import LONGEST_FILE_S

            with Recording(self._path, real_time=False, name="the file") as recording:
                if (found_s := recording.duration_s) > LONGEST_FILE_S:
                    raise AudioError(
                        f"expected at most {LONGEST_FILE_S:g} s of sound, found {found_s:.0f} s"
                    )
                frames = recording.frames()
                while batch := [frame.samples.tobytes() for frame in islice(frames, BATCH)]:
                    self.duration_s += len(batch) * FRAME_S
                    event = Event("audio-chunk", SOUND_FORMAT, b"".join(batch))
                    asyncio.run_coroutine_threadsafe(write(event), loop).result()

        try:
            await write(Event("transcribe", wanted), Event("audio-start", SOUND_FORMAT))
            await asyncio.to_thread(decode)
            await write(Event("audio-stop"))
        except AudioError as error:
            self.trouble = ApiError(400, str(error), "file")
        except DeviceError as error:
            self.trouble = ApiError(503, str(error))
        except OSError:
            pass  # the daemon or the client has left
        if self.trouble:
            writer.close()


def _daemon_request(fields: Mapping[str, list[str]], *, words: bool) -> dict[str, Any]:
    """Return what the daemon is told of a request: its language, and the names in its prompt."""
    prompt = fields.get("prompt", [""])[-1]
    spelled = NAME.findall(SENTENCE_START.sub(" ", prompt))
    names = [word for word in spelled if word != word.lower()]
    language = fields.get("language", [""])[-1].strip().lower()
    codes = {name: code for code, name in LANGUAGES.items()} | dict.fromkeys(NO_LANGUAGE, "")
    language = codes.get(language, re.split("[-_]", language)[0])  # en-US is en
    return {
        "language": language or None,
        "transcript_names": list(dict.fromkeys(names)),
        "words": words,
        "acts": fields.get("acts", [""])[-1].lower() in ("true", "1"),
    }


def _all_subtitles(segments: list[Segment], form: str) -> str:
    vtt = form == "vtt"
    parts = ["WEBVTT\n"] * vtt
    for one in segments:
        parts += make_subtitles(one, len(parts) + 1 - vtt, vtt=vtt)
    return "\n".join(parts)


def _verbose(
    text: str, segments: list[Segment], duration_s: float, details: Sequence[str]
) -> dict[str, Any]:
    """Raises ApiError if words are wanted and the model does not time them."""
    words = [word for one in segments for word in one.get("words", ())]
    if "word" in details and text and not words:
        message = "The model in use has no times of words. Add it again (roomscribe model add)."
        raise ApiError(400, message, "timestamp_granularities[]")
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
    code = segments[-1]["language"] if segments else ""
    head: dict[str, Any] = {"task": "transcribe", "language": LANGUAGES.get(code, code)}
    head |= {"duration": round(duration_s, 3), "text": text}
    return (
        head
        | ({"words": words} if "word" in details else {})
        | ({"segments": shown} if "segment" in details else {})
    )
