"""The Wyoming server: transcribes the audio that clients such as Home Assistant send.

It runs in one thread with its own asyncio loop, in which the satellite's port is served, too. The
page of this machine connects over a UNIX socket. Each connection has its own limits, and an error
on one connection ends only that one.
"""

import asyncio
import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from appliance import HOMEPAGE, build_version
from appliance.capture import VoiceDetector
from appliance.config import WORDS_AT_MOST, Settings
from appliance.infer import Model
from appliance.records import SAMPLE_RATE
from appliance.system import call_in, one_line
from appliance.wyoming.port import (
    LINGER_S,
    Address,
    Port,
    linger,
    next_event,
    pack_error,
    pong,
    send,
)
from appliance.wyoming.protocol import LARGEST, Event, ProtocolError, pack
from appliance.wyoming.request import (
    LONGEST_FILE_S,
    Hints,
    Hooks,
    RequestError,
    SoundFormat,
    TranscriptionRequest,
)
from appliance.wyoming.satellite import VoiceSatellite

log = logging.getLogger("roomscribe.wyoming")

REQUESTS = 8
"""Requests that may send sound at once."""
CONNECTIONS = 16
"""Open at once; for one more, an idle one is closed. There must be room for clients that only send
`describe`, as Home Assistant does every 30 s: without an answer, it treats the service as gone."""
CROWDED_EVERY_S = 60.0
"""Least time between two log lines about too many connections."""
SEGMENTED_AT_ONCE = 5
"""A voice detector takes 2.5 MB; the sound of further requests waits in the network. Two files of
the page may take an hour."""
HEARTBEAT_S = 1.0
"""Longest time between two heartbeats of the thread."""

LOCAL = ip_address("127.0.0.1")
"""Stands for who connects over the UNIX socket."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of the server, in seconds."""

    idle_s: float = 15.0
    """A connection is closed if no whole event arrives, or none is taken, for this long."""
    request_s: float = 120.0
    """Longest time for a request's sound, and again for its text: the microphone goes first."""
    file_s: float = 3 * LONGEST_FILE_S
    """Longest time for the sound of the page."""
    listen_again_s: float = 5.0
    """Pause after the port could not be opened."""


TIMEOUTS = Timeouts()


class WyomingServer:
    """Answers requests from `run` until `stop`."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        hooks: Hooks,
        timeouts: Timeouts = TIMEOUTS,
        socket_path: Path | None = None,
        *,
        satellite: VoiceSatellite | None = None,
    ) -> None:
        """Open nothing yet; `run` listens and calls the hooks. At `socket_path` users of its group
        connect; they say themselves where their sound ends, and nothing of it is stored.
        `satellite` is served at a port of its own."""
        self.settings, self.node, self.hooks, self.timeouts = settings, node, hooks, timeouts
        self._socket_path, self._satellite = socket_path, satellite
        self.ports = list(self._make_ports())
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free, self._woken = asyncio.Semaphore(SEGMENTED_AT_ONCE), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        """All connections, also those that are refused or being closed."""
        self._open: dict[asyncio.Task[None], ClientConnection] = {}
        """Accepted connections, the oldest first."""
        self._crowded_s = -math.inf
        """When it was last logged that an idle connection was closed for another one."""
        self._detectors = list[VoiceDetector]()
        self.requests = 0
        """Requests that send sound or wait for its text."""

    @property
    def address(self) -> str | None:
        """Where it transcribes for others; None while it does not. Any thread."""
        return next((one.address for one in self.ports if one.key == "wyoming.port"), None)

    def _make_ports(self) -> Iterator[Port]:
        """Yield the ports that are configured, not open yet."""
        wyoming, hooks, again_s = self.settings.wyoming, self.hooks, self.timeouts.listen_again_s
        if wyoming.enabled:
            yield Port(
                "speech to text", "wyoming.port", wyoming, wyoming.port, self._serve_client, hooks,
                again_s,
            )  # fmt: skip
        if self._satellite:
            yield Port(
                "satellite", "wyoming.satellite_port", wyoming, wyoming.satellite_port,
                self._satellite.serve, hooks, again_s,
            )  # fmt: skip

    def run(self, heartbeat: Callable[[], None]) -> None:
        """Serve until `stop`; `heartbeat` is called at least every HEARTBEAT_S unless it hangs."""
        asyncio.run(self._serve(heartbeat))

    async def acquire_detector(self) -> VoiceDetector:
        """Wait for a voice detector for one request and return it; see `release_detector`.

        Detectors are reused, because creating them again and again fragments the memory.
        """
        await self._free.acquire()
        return self._detectors.pop() if self._detectors else VoiceDetector(self.settings.voice)

    def release_detector(self, detector: VoiceDetector) -> None:
        """Take back a detector whose request is segmented."""
        detector.reset()
        self._detectors.append(detector)
        self._free.release()

    def stop(self) -> None:
        """Make `run` return; clients that wait for a text get an error. Any thread."""
        self._stopping.set()
        call_in(self._loop, self._woken.set)

    async def _serve(self, heartbeat: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        local = await self._listen_locally()
        while not self._stopping.is_set():
            heartbeat()
            for port in self.ports:
                await port.open_if_due()
            if self._satellite:
                self._satellite.poll()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(HEARTBEAT_S, self.timeouts.listen_again_s)):
                    await self._woken.wait()
        if local and self._socket_path:
            local.close()
            self._socket_path.unlink(missing_ok=True)
        for port in self.ports:
            port.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LINGER_S)

    async def _listen_locally(self) -> asyncio.Server | None:
        """Open the UNIX socket; log why and return None if that fails."""
        path = self._socket_path
        if path is None:
            return None
        serve = partial(self._serve_client, peer=LOCAL, is_local=True)
        try:
            local = await asyncio.start_unix_server(serve, path, limit=LARGEST)
            path.chmod(0o660)
        except OSError as error:
            log.warning("%s: programs cannot send sound: %s", path, one_line(error))
            return None
        return local

    async def _serve_client(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Address,
        *,
        is_local: bool = False,
    ) -> None:
        """Handle one connection to its end. Raises nothing."""
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            if len(self._open) < CONNECTIONS or self._make_room():
                connection = ClientConnection(self, reader, writer, peer, is_local=is_local)
                self._open[task] = connection
                await connection.serve()
            else:
                self.hooks.count("wyoming_refused")
                await send(writer, CROWDED, self.timeouts.idle_s)
            await linger(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has left, or the server stops
        except Exception as error:
            log.error("a connection from %s failed: %s", peer, error, exc_info=error)
        finally:
            self._tasks.discard(task)
            self._open.pop(task, None)
            writer.transport.abort()

    def _make_room(self) -> bool:
        """Close an idle connection and return True; return False if every one is busy.

        It is the oldest idle one of the address with the most connections, so that a client that
        keeps many open does not lock out others.
        """
        count = Counter(one.peer for one in self._open.values())
        idle = [task for task, one in self._open.items() if one.is_idle]
        if not idle:
            return False
        task = max(idle, key=lambda one: count[self._open[one].peer])
        closed = self._open.pop(task)
        peer = closed.peer
        closed.dismiss()
        task.cancel()
        self.hooks.count("wyoming_refused")
        if time.monotonic() >= self._crowded_s + CROWDED_EVERY_S:
            self._crowded_s = time.monotonic()
            log.warning(
                "%d connections, %d of them from %s. Idle ones are closed for new ones. If that "
                "is no device of yours, remove it from wyoming.allow",
                CONNECTIONS,
                count[peer],
                peer,
            )
        return True


class ClientConnection:
    """One client's events and our answers. Owned by one task."""

    def __init__(
        self,
        server: WyomingServer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Address,
        *,
        is_local: bool,
    ) -> None:
        """`is_local`: over the UNIX socket."""
        self._server, self._reader, self._writer = server, reader, writer
        self.peer, self.is_local = peer, is_local
        self._is_reading = False
        self._request: TranscriptionRequest | None = None
        self._detector: VoiceDetector | None = None
        self._known_sound: bytes | None = None
        """The sound so far, while it is one whose text is known."""
        self._begun = False
        """True while there is a request."""
        self._text_begun = False
        """True once part of its text was sent."""
        self._hints = Hints(acts=server.settings.wyoming.acts)
        """Words that are likely in the next request's sound, as the client says."""
        self._until_s = 0.0
        """When the request's sound must be complete, on the loop's clock."""

    @property
    def is_idle(self) -> bool:
        """True while there is no request and no answer is being sent."""
        return self._is_reading and not self._begun

    def dismiss(self) -> None:
        """Tell the client that its connection is closed for another one; does not wait."""
        self._writer.write(CROWDED)

    async def serve(self) -> None:
        """Answer events until the client leaves, or makes a mistake."""
        try:
            while event := await self._next():
                await self._handle(event)
                await asyncio.sleep(0)  # other connections take their turn, whatever waits here
        except ProtocolError as error:
            await self._fail("bad_event", str(error))
        except RequestError as error:
            await self._fail(error.code, str(error))
        except asyncio.CancelledError:
            if self._begun:
                with suppress(OSError, TimeoutError):
                    await self._fail("failed", "Roomscribe is stopping; try again")
            raise
        finally:
            self._end()

    async def _next(self) -> Event | None:
        """Return the next event; None at the end. Raises ProtocolError."""
        self._is_reading = True
        try:
            return await next_event(self._reader, self._server.timeouts.idle_s)
        finally:
            self._is_reading = False

    async def _handle(self, event: Event) -> None:
        """Answer an event; unknown ones are ignored, as the protocol demands."""
        match event.type:
            case "describe":
                server = self._server
                found = info(server.node, server.hooks.model(), self._languages())
                await self._send(pack(Event("info", found)))
            case "ping":
                await self._send(pong(event))
            case "transcribe":
                self._end()
                self._hints = self._read_hints(event.data)
            case "audio-start":
                self._end()
                await self._begin(SoundFormat.parse(event.data))
            case "audio-chunk":
                await self._add_sound(event)
            case "audio-stop":
                await self._answer()

    async def _begin(self, form: SoundFormat) -> TranscriptionRequest:
        server = self._server
        if server.requests >= REQUESTS:
            raise RequestError("busy", f"{REQUESTS} requests are in progress; try again")
        server.requests += 1
        self._begun = True
        async with _in_time(server.timeouts.request_s):
            self._detector = await server.acquire_detector()
        within_s = server.timeouts.file_s if self.is_local else server.timeouts.request_s
        self._until_s = asyncio.get_running_loop().time() + within_s
        self._request = TranscriptionRequest(
            form,
            self._detector,
            replace(server.hooks, keep=None) if self.is_local else server.hooks,
            server.settings.segmenter,
            hints=self._hints,
            is_file=self.is_local,
        )
        self._known_sound = b"" if form == SoundFormat(SAMPLE_RATE, 2, 1) else None
        return self._request

    def _read_hints(self, data: Mapping[str, Any]) -> Hints:
        """Return what a request says of its text. Raises RequestError for a language of the page's
        request that the model does not write; others are told the languages before (`describe`)."""
        known, language = self._languages(), data.get("language")
        if self.is_local and language and language not in known:
            expected = ", ".join(known[:8]) + " ..." * (len(known) > 8)
            raise RequestError("bad_language", f"expected a language of the model ({expected})")
        language = language if language in known else ""
        words = self.is_local and data.get("words") is True
        acts = data.get("acts") is True if self.is_local else self._server.settings.wyoming.acts
        return Hints(_read_names(data), words, language, acts)

    def _languages(self) -> list[str]:
        """Return the languages that a client may choose, the configured one first."""
        hooks = self._server.hooks
        model = hooks.model()
        own = [model.language] if model.language else list(model.languages)
        return list(dict.fromkeys([*own, *hooks.languages()]))

    async def _add_sound(self, event: Event) -> None:
        """Add sound to the request; send the new parts of its text. Nothing is computed while it is
        a sound whose text is known."""
        request = self._request or await self._begin(SoundFormat.parse(event.data))
        if "rate" in event.data and SoundFormat.parse(event.data) != request.form:
            raise RequestError("bad_sound", "expected sound of one format, found another in it")
        sound = event.payload
        if self._known_sound is not None:
            self._known_sound += sound
            if self._server.hooks.known.find(self._known_sound, 0.0) is not None:
                return
            sound, self._known_sound = self._known_sound, None
        async with _in_time(self._until_s - asyncio.get_running_loop().time()):
            await request.push(sound)
        if request.new_texts:
            await self._send(self._pack_new_texts(request))

    async def _answer(self) -> None:
        """Send the whole text as soon as it is complete; empty if nothing was said."""
        request, known = self._request, self._server.hooks.known.find(self._known_sound or b"")
        if request and known is None:
            async with _in_time(self._server.timeouts.request_s):
                await request.push(self._known_sound or b"")
                await request.stop()
                self._release_detector()
                await request.finish()
        self._server.hooks.count("wyoming_requests")
        text = request.text if request else ""
        whole = {"text": text if known is None else known, "language": self._language(request)}
        parts = self._pack_new_texts(request) if request else b""
        await self._send(parts + pack(Event("transcript", whole)) + pack(Event("transcript-stop")))
        self._end()

    def _pack_new_texts(self, request: TranscriptionRequest) -> bytes:
        pieces, request.new_texts = request.new_texts, []
        fields = [piece if self.is_local else {"text": piece["text"]} for piece in pieces]
        events = [Event("transcript-chunk", data) for data in fields]
        if not self._text_begun:
            self._text_begun = True
            start = Event("transcript-start", {"language": self._language(request)})
            events.insert(0, start)
        return b"".join(map(pack, events))

    def _language(self, request: TranscriptionRequest | None) -> str | None:
        spoken = request.language if request else ""
        return spoken or self._server.hooks.model().language or None

    async def _send(self, events: bytes) -> None:
        await send(self._writer, events, self._server.timeouts.idle_s)

    async def _fail(self, code: str, text: str) -> None:
        """Send why there is no answer. The connection ends then, which is all that programs older
        than the event `error` understand."""
        self._server.hooks.count("wyoming_refused" if code == "busy" else "wyoming_failed")
        await self._send(pack_error(code, text))

    def _release_detector(self) -> None:
        if self._detector:
            self._server.release_detector(self._detector)
        self._detector = None

    def _end(self) -> None:
        """End the request, whether it was answered or not."""
        self._release_detector()
        if self._begun:
            self._begun = False
            self._server.requests -= 1
        if self._request:
            self._request.close()
            self._hints = self._read_hints({})
        self._request, self._text_begun, self._known_sound = None, False, None


def _read_names(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of a request, names first; none if they are no lists of texts."""
    given = (data.get(key) for key in ("transcript_names", "transcript_terms"))
    lists = (one for one in given if isinstance(one, list))
    texts = (text for one in lists for text in one if isinstance(text, str))
    return tuple(dict.fromkeys(itertools.islice(texts, WORDS_AT_MOST)))


def info(node: str, model: Model, languages: list[str]) -> dict[str, Any]:
    """Return the answer to `describe`, which every release of the protocol's library can read."""
    made_by = {"name": "Roomscribe", "url": HOMEPAGE}
    installed = {
        "name": model.name,
        "description": model.title,
        "attribution": made_by,
        "installed": True,
        "version": None,
        "languages": languages,
    }
    # Home Assistant names its entity after the program; we want the sound unprocessed
    program = {
        "name": f"Roomscribe {node}",
        "description": "Speech to text on the appliance",
        "attribution": made_by,
        "installed": True,
        "version": build_version(),
        "models": [installed],
        "supports_transcript_streaming": True,
        "requires_external_vad": True,
        "prefers_auto_gain_enabled": False,
        "prefers_noise_reduction_enabled": False,
    }
    others = ("tts", "handle", "intent", "wake", "mic", "snd")
    return {"asr": [program], **{name: [] for name in others}}


@asynccontextmanager
async def _in_time(within_s: float) -> AsyncIterator[None]:
    """Limit the time of a block. Raises RequestError if it takes longer."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except TimeoutError:
        raise RequestError("busy", "too many requests are waiting; try again") from None


CROWDED = pack_error("busy", "too many connections; try again")
