"""The Wyoming server: transcribes the audio that clients such as Home Assistant send.

It runs in one thread with its own asyncio loop. The protocol has neither passwords nor encryption,
so `wyoming.allow` decides by address who may connect. The page of this machine connects over a UNIX
socket. Each connection has its own limits, and an error on one connection ends only that one.

Over 500 lines because a connection and the server's limits on all of them share one loop's state.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

from appliance import HOMEPAGE, build_version
from appliance.capture import VoiceDetector
from appliance.config import WORDS_AT_MOST, Settings
from appliance.infer import Model
from appliance.system import one_line
from appliance.wyoming.protocol import LARGEST, Event, ProtocolError, pack, read_event
from appliance.wyoming.request import (
    LONGEST_FILE_S,
    Hints,
    Hooks,
    RequestError,
    SoundFormat,
    TranscriptionRequest,
)

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
LINGER_S = 1.0
"""Before a connection is closed, incoming data is read for this long: if it stayed unread, the
kernel would reset the connection and drop our last answer."""
HEARTBEAT_S = 1.0
"""Longest time between two heartbeats of the thread."""
REPORTED_ADDRESSES = 64
"""Refused addresses that are logged, each once."""

Address = IPv4Address | IPv6Address
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
    ) -> None:
        """Open nothing yet; `run` listens and calls the hooks. At `socket_path` users of its group
        connect; they say themselves where their sound ends, and nothing of it is stored."""
        self.settings, self.node, self.hooks, self.timeouts = settings, node, hooks, timeouts
        self._socket_path = socket_path
        self._allowed = [ip_network(one, strict=False) for one in settings.wyoming.allow]
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.address: str | None = None
        """Where it listens; None while it does not."""
        self._tasks: set[asyncio.Task[None]] = set()
        """All connections, also those that are refused or being closed."""
        self._open: dict[asyncio.Task[None], ClientConnection] = {}
        """Accepted connections, the oldest first."""
        self._crowded_s = -math.inf
        """When it was last logged that an idle connection was closed for another one."""
        self._advertising: asyncio.Task[None] | None = None
        self._detectors = list[VoiceDetector]()
        self.requests = 0
        """Requests that send sound or wait for its text."""
        self._reported: set[Address] = set()
        """Refused addresses that were logged."""

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
        if self._loop:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    async def _serve(self, heartbeat: Callable[[], None]) -> None:
        self._free, self._woken = asyncio.Semaphore(SEGMENTED_AT_ONCE), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        local = await self._listen_locally()
        server: asyncio.Server | None = None
        try_s = 0.0 if self.settings.wyoming.enabled else math.inf
        while not self._stopping.is_set():
            heartbeat()
            if server is None and time.monotonic() >= try_s:
                server = await self._listen()
                try_s = time.monotonic() + self.timeouts.listen_again_s
            with suppress(TimeoutError):
                async with asyncio.timeout(min(HEARTBEAT_S, self.timeouts.listen_again_s)):
                    await self._woken.wait()
        for listening in filter(None, (server, local)):
            listening.close()
        self.address = None
        if local and self._socket_path:
            self._socket_path.unlink(missing_ok=True)
        tasks = {*self._tasks, *filter(None, [self._advertising])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LINGER_S)

    async def _listen_locally(self) -> asyncio.Server | None:
        """Open the UNIX socket; log why and return None if that fails."""
        path = self._socket_path
        if path is None:
            return None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            path.chmod(0o660)
        except OSError as error:
            listener.close()
            log.warning("%s: programs cannot send sound: %s", path, one_line(error))
            return None
        return await asyncio.start_unix_server(self._on_connect, sock=listener, limit=LARGEST)

    async def _listen(self) -> asyncio.Server | None:
        """Open the port; report why and return None if that fails."""
        host, port = self.settings.wyoming.listen, self.settings.wyoming.port
        try:
            opened = _open(host, port)
            server = await asyncio.start_server(self._on_connect, sock=opened, limit=LARGEST)
        except OSError as error:
            why = {
                errno.EADDRINUSE: "another program uses that port. Choose another wyoming.port",
                errno.EADDRNOTAVAIL: "this machine has no such address. Check wyoming.listen",
                errno.EPERM: "systemd forbids it. To open the port, run `sudo systemctl "
                "daemon-reload && sudo systemctl restart roomscribe`",
                errno.EACCES: "this user may not use that port. Choose a wyoming.port from 1024 on",
            }.get(error.errno or 0, one_line(error))
            self._report(f"nobody can connect to {host} port {port} for speech to text: {why}")
            return None
        port = opened.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._report(None)
        log.info("speech to text (Wyoming) on %s", self.address)
        if self.hooks.advertise:
            self._advertising = asyncio.create_task(self.hooks.advertise(port))
        return server

    def _report(self, trouble: str | None) -> None:
        if self.hooks.report(trouble) and trouble:
            log.warning("%s", trouble)

    async def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection to its end. Raises nothing."""
        task = asyncio.current_task()
        peer = _address(writer)
        local = writer.get_extra_info("socket").family == socket.AF_UNIX
        if local:
            peer = LOCAL
        if task is None or peer is None or not (local or self._is_allowed(peer)):
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            if len(self._open) < CONNECTIONS or self._make_room():
                connection = ClientConnection(self, reader, writer, peer, is_local=local)
                self._open[task] = connection
                await connection.serve()
            else:
                self.hooks.count("wyoming_refused")
                await _send(writer, CROWDED, self.timeouts.idle_s)
            await _linger(reader, writer)
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

    def _is_allowed(self, peer: Address) -> bool:
        """Return True for an allowed address; log any other one, once."""
        if any(peer in network for network in self._allowed):
            return True
        self.hooks.count("wyoming_refused")
        if peer not in self._reported and len(self._reported) < REPORTED_ADDRESSES:
            self._reported.add(peer)
            log.warning("refused %s, which is not in wyoming.allow", peer)
        return False


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
            async with asyncio.timeout(self._server.timeouts.idle_s):
                return await read_event(self._reader)
        except asyncio.LimitOverrunError:
            raise ProtocolError(f"expected a header of at most {LARGEST} bytes") from None
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return None
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
                text = event.data.get("text")
                text = text if isinstance(text, str) else None
                await self._send(pack(Event("pong", {"text": text})))
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
        """Add sound to the request; send the new parts of its text."""
        request = self._request or await self._begin(SoundFormat.parse(event.data))
        if "rate" in event.data and SoundFormat.parse(event.data) != request.form:
            raise RequestError("bad_sound", "expected sound of one format, found another in it")
        async with _in_time(self._until_s - asyncio.get_running_loop().time()):
            await request.push(event.payload)
        if request.new_texts:
            await self._send(self._pack_new_texts(request))

    async def _answer(self) -> None:
        """Send the whole text as soon as it is complete; empty if nothing was said."""
        request = self._request
        if request:
            async with _in_time(self._server.timeouts.request_s):
                await request.stop()
                self._release_detector()
                await request.finish()
        self._server.hooks.count("wyoming_requests")
        whole = {"text": request.text if request else "", "language": self._language(request)}
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
        await _send(self._writer, events, self._server.timeouts.idle_s)

    async def _fail(self, code: str, text: str) -> None:
        """Send why there is no answer. The connection ends then, which is all that programs older
        than the event `error` understand."""
        self._server.hooks.count("wyoming_refused" if code == "busy" else "wyoming_failed")
        await self._send(_error(code, text))

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
        self._request, self._text_begun = None, False


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


def _open(host: str, port: int) -> socket.socket:
    """Return a listening socket; `::` includes IPv4. Raises OSError."""
    if ":" not in host:
        return socket.create_server((host, port), backlog=CONNECTIONS)
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(
        (host, port), family=socket.AF_INET6, backlog=CONNECTIONS, dualstack_ipv6=both
    )


def _address(writer: asyncio.StreamWriter) -> Address | None:
    peer = writer.get_extra_info("peername")
    if not peer:
        return None
    address = ip_address(peer[0].partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _error(code: str, text: str) -> bytes:
    return pack(Event("error", {"text": text, "code": code}))


CROWDED = _error("busy", "too many connections; try again")


async def _send(writer: asyncio.StreamWriter, events: bytes, within_s: float) -> None:
    """Send events. Raises TimeoutError if the client does not read them in time."""
    writer.write(events)
    async with asyncio.timeout(within_s):
        await writer.drain()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Signal the end of our data, and read what is still on its way."""
    writer.write_eof()
    async with asyncio.timeout(LINGER_S):
        while await reader.read(LARGEST):
            pass
