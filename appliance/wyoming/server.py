"""The Wyoming server: transcribes the audio that clients such as Home Assistant send.

It runs in one thread with its own asyncio loop. The protocol has neither passwords nor encryption,
so `wyoming.allow` decides by address who may connect. Each connection has its own limits, and an
error on one connection ends only that one.

Over 500 lines because a connection and the server's limits on all of them share one loop's state.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import itertools
import logging
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from appliance import HOMEPAGE, __version__
from appliance.capture import VoiceDetector
from appliance.config import WORDS_AT_MOST, GateSettings, Settings
from appliance.infer import Model
from appliance.system import one_line
from appliance.wyoming.protocol import LARGEST, Event, Header, ProtocolError, pack
from appliance.wyoming.request import Ask, Hearing, Keep, RequestError, SoundFormat

log = logging.getLogger("roomscribe.wyoming")

REQUESTS = 8
"""So many may send sound at once."""
CONNECTIONS = 16
"""Open at once; for one more, an idle one is closed. Besides the requests there must be room for
those who only ask what we are, as Home Assistant does every 30 s: it takes a service without an
answer for gone."""
CROWDED_EVERY_S = 60.0
"""Least time between two lines in the log that say so."""
SEGMENTED_AT_ONCE = 3
"""A voice detector takes 2.5 MB; the sound of further requests waits in the network."""
IDLE_S = 15.0
"""A connection from which no whole event comes, or that takes none from us, for so long is over."""
REQUEST_WITHIN_S = 120.0
"""So long a request may send sound, and so long, again, its text may take; the microphone's own
windows go first."""
LINGER_S = 1.0
"""So long what is still on its way to us is read before a connection is closed: unread, it would
take our last words with it (a reset)."""
LOOK_S = 1.0
"""The thread shows that it moves, and looks whether it is to end."""
LISTEN_AGAIN_S = 5.0
"""After the port could not be had."""
TOLD = 64
"""So many refused addresses are logged, each once."""

Address = IPv4Address | IPv6Address


class Server:
    """Answers requests from `run` until `stop`."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        model: Callable[[], Model],
        gates: GateSettings,
        ask: Ask,
        *,
        keep: Keep | None = None,
        count: Callable[[str], None] = lambda _name: None,
        trouble: Callable[[str | None], object] = lambda _text: None,
        advertise: Callable[[int], Coroutine[None, None, None]] | None = None,
        room_busy: Callable[[], bool] = lambda: False,
        idle_s: float = IDLE_S,
        within_s: float = REQUEST_WITHIN_S,
        listen_again_s: float = LISTEN_AGAIN_S,
    ) -> None:
        """`model` is the one in use, which may change. `ask` has a window transcribed, `keep` is
        given the texts that are to be written down, `count` is told what becomes of each request,
        `trouble` why nobody can connect, or None. `advertise` tells the house of the port, as long
        as it is not cancelled. While `room_busy`, sound is heard no faster than it was spoken."""
        self.idle_s, self.within_s, self._listen_again_s = idle_s, within_s, listen_again_s
        self._settings, self.external_vad = settings.wyoming, settings.wyoming.external_vad
        self.count, self._trouble = count, trouble
        self._allowed = [ip_network(one, strict=False) for one in self._settings.allow]
        self.model, self.node, self._advertise = model, node, advertise
        self._hear = functools.partial(
            Hearing,
            segmenter=settings.segmenter,
            gates=gates,
            ask=ask,
            keep=keep,
            confidence=settings.wyoming.confidence,
            room_busy=room_busy,
        )
        self._asked_to_stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.address: str | None = None
        """Where it listens; None while it does not."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Connections, and those that are refused or closed."""
        self._open: dict[asyncio.Task[None], Connection] = {}
        """Connections, the oldest first."""
        self._crowded_s = -math.inf
        """When it was last logged that an idle connection was closed for another."""
        self._advertising: asyncio.Task[None] | None = None
        self._voice, self._detectors = settings.voice, list[VoiceDetector]()
        self.requests = 0
        """How many send sound or wait for its text."""
        self._told: set[Address] = set()

    def run(self, moved: Callable[[], None]) -> None:
        """The thread's body; `moved` is called at least every LOOK_S, unless something hangs."""
        asyncio.run(self._serve(moved))

    async def detector(self) -> VoiceDetector:
        """A voice detector for one request, as soon as there is one; see `give_back`.

        They are kept: making and dropping them again and again leaves holes in the memory.
        """
        await self._free.acquire()
        return self._detectors.pop() if self._detectors else VoiceDetector(self._voice)

    def give_back(self, detector: VoiceDetector) -> None:
        """The request's sound is segmented."""
        detector.reset()
        self._detectors.append(detector)
        self._free.release()

    def hear(
        self, form: SoundFormat, detector: VoiceDetector, names: tuple[str, ...] = ()
    ) -> Hearing:
        """What takes a request's sound; `names` are words that are likely in it."""
        return self._hear(form, detector, window_s=self.model().window_s, names=names)

    def stop(self) -> None:
        """Any thread. Who waits for a text is told that there will be none."""
        self._asked_to_stop.set()
        if self._loop:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    async def _serve(self, moved: Callable[[], None]) -> None:
        self._free, self._woken = asyncio.Semaphore(SEGMENTED_AT_ONCE), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        server: asyncio.Server | None = None
        try_s = 0.0
        while not self._asked_to_stop.is_set():
            moved()
            if server is None and time.monotonic() >= try_s:
                server = await self._listen()
                try_s = time.monotonic() + self._listen_again_s
            with suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_S, self._listen_again_s)):
                    await self._woken.wait()
        if server:
            server.close()
            self.address = None
        tasks = {*self._tasks, *filter(None, [self._advertising])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LINGER_S)

    async def _listen(self) -> asyncio.Server | None:
        """The open port; None, and why, when it cannot be had."""
        host, port = self._settings.listen, self._settings.port
        try:
            opened = _open(host, port)
            server = await asyncio.start_server(self._connected, sock=opened, limit=LARGEST)
        except OSError as error:
            why = {
                errno.EADDRINUSE: "another program has that port: give it another wyoming.port",
                errno.EADDRNOTAVAIL: "this machine has no such address: see wyoming.listen",
                errno.EPERM: "systemd forbids it: `sudo systemctl daemon-reload && sudo systemctl "
                "restart roomscribe` opens the port for the unit",
                errno.EACCES: "this user may not listen there: wyoming.port from 1024 on",
            }.get(error.errno or 0, one_line(error))
            self._say(f"nobody can connect to {host} port {port} for speech to text: {why}")
            return None
        port = opened.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._say(None)
        log.info("speech to text (Wyoming) on %s", self.address)
        if self._advertise:
            self._advertising = asyncio.create_task(self._advertise(port))
        return server

    def _say(self, trouble: str | None) -> None:
        if self._trouble(trouble) and trouble:
            log.warning("%s", trouble)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its beginning to its end; never raises."""
        task = asyncio.current_task()
        peer = _address(writer)
        if task is None or peer is None or not self._may(peer):
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            if len(self._open) < CONNECTIONS or self._make_room():
                self._open[task] = connection = Connection(self, reader, writer, peer)
                await connection.serve()
            else:
                self.count("wyoming_refused")
                await _tell(writer, CROWDED)
            await _linger(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # it has gone, or we go
        except Exception as error:
            log.error("a connection from %s failed: %s", peer, error, exc_info=error)
        finally:
            self._tasks.discard(task)
            self._open.pop(task, None)
            writer.transport.abort()

    def _make_room(self) -> bool:
        """Closes an idle connection, and returns True; False if every one is busy.

        It is the oldest idle one of the address that has the most connections, so that a client
        that keeps many open takes none from others.
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
        self.count("wyoming_refused")
        if time.monotonic() >= self._crowded_s + CROWDED_EVERY_S:
            self._crowded_s = time.monotonic()
            log.warning(
                "%d connections, %d of them from %s: idle ones are closed for new ones; if that "
                "is no device of yours, leave it out of wyoming.allow",
                CONNECTIONS,
                count[peer],
                peer,
            )
        return True

    def _may(self, peer: Address) -> bool:
        """True for an address that is allowed; another one is logged, once."""
        if any(peer in network for network in self._allowed):
            return True
        self.count("wyoming_refused")
        if peer not in self._told and len(self._told) < TOLD:
            self._told.add(peer)
            log.warning("refused %s, which is not among wyoming.allow", peer)
        return False


class Connection:
    """One client's events and our answers. One task."""

    def __init__(
        self,
        server: Server,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Address,
    ) -> None:
        self._server, self._reader, self._writer = server, reader, writer
        self.peer = peer
        self._is_reading = False
        self._hearing: Hearing | None = None
        self._detector: VoiceDetector | None = None
        self._begun = self._told = self._answered = False
        """There is a request; a part of its text was told; all of it was, and what still comes of
        its sound counts for nothing."""
        self._names: tuple[str, ...] = ()
        """Words that are likely in the next request's sound, as who asks says."""
        self._until_s = 0.0
        """When the request's sound must have come, on the loop's clock."""

    @property
    def is_idle(self) -> bool:
        """True while there is no request, and no answer on its way."""
        return self._is_reading and not self._begun

    def dismiss(self) -> None:
        """Says that the connection is closed for another one; does not wait."""
        self._writer.write(CROWDED)

    async def serve(self) -> None:
        """Answers event after event until the client goes, or makes a mistake."""
        try:
            while event := await self._next():
                await self._on(event)
                await asyncio.sleep(0)  # the turn of the others, whatever waits here
        except ProtocolError as error:
            await self._fail("bad_event", str(error))
        except RequestError as error:
            await self._fail(error.code, str(error))
        except asyncio.CancelledError:
            if self._begun:
                with suppress(OSError, TimeoutError):
                    await self._fail("failed", "roomscribe is being stopped; try again")
            raise
        finally:
            self._end()

    async def _next(self) -> Event | None:
        """The next event; None at the end. Raises ProtocolError."""
        self._is_reading = True
        try:
            return await self._read()
        finally:
            self._is_reading = False

    async def _read(self) -> Event | None:
        """The next event; None at the end. Raises ProtocolError."""
        async with asyncio.timeout(self._server.idle_s):
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                raise ProtocolError(f"expected a header of at most {LARGEST} bytes") from None
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise
                return None
            header = Header.parse(line)
            data = await self._reader.readexactly(header.data_length)
            payload = await self._reader.readexactly(header.payload_length)
        return header.event(data, payload)

    async def _on(self, event: Event) -> None:
        """Answers an event; one that nobody here knows is left alone, as the protocol wants it."""
        match event.type:
            case "describe":
                server = self._server
                found = info(server.node, server.model(), external_vad=server.external_vad)
                await self._tell(pack(Event("info", found)))
            case "ping":
                text = event.data.get("text")
                text = text if isinstance(text, str) else None
                await self._tell(pack(Event("pong", {"text": text})))
            case "transcribe":
                self._end()
                self._names = _names(event.data)
            case "audio-start":
                self._end()
                await self._begin(SoundFormat.of(event.data))
            case "audio-chunk" if not self._answered:
                await self._hear(event)
            case "audio-chunk" if asyncio.get_running_loop().time() > self._until_s:
                raise RequestError("bad_sound", "expected the sound to end, found more of it")
            case "audio-stop":
                if not self._answered:
                    await self._answer()
                self._end()

    async def _begin(self, form: SoundFormat) -> Hearing:
        """A request of its own, as soon as there is room to segment its sound."""
        server = self._server
        if server.requests >= REQUESTS:
            raise RequestError("busy", f"{REQUESTS} others have speech transcribed; try again")
        server.requests += 1
        self._begun = True
        async with _in_time(server.within_s):
            self._detector = await server.detector()
        self._until_s = asyncio.get_running_loop().time() + server.within_s
        self._hearing = server.hear(form, self._detector, self._names)
        return self._hearing

    async def _hear(self, event: Event) -> None:
        """Takes in more sound; tells what is known of the text."""
        hearing = self._hearing or await self._begin(SoundFormat.of(event.data))
        if "rate" in event.data and SoundFormat.of(event.data) != hearing.form:
            raise RequestError("bad_sound", "expected sound of one format, found another in it")
        async with _in_time(self._until_s - asyncio.get_running_loop().time()):
            await hearing.push(event.payload)
        if hearing.texts:
            await self._tell(self._parts(hearing))
        if hearing.over and not self._server.external_vad:
            await self._answer()
            self._answered = True

    async def _answer(self) -> None:
        """Send the text of all that came, as soon as it is known; empty if nothing was said, or if
        the model was not sure enough of it."""
        hearing = self._hearing
        if hearing:
            async with _in_time(self._server.within_s):
                await hearing.stop()
                self._segmented()
                await hearing.finish()
        self._server.count("wyoming_requests")
        whole = {"text": hearing.text if hearing else "", "language": self._language(hearing)}
        parts = self._parts(hearing) if hearing else b""
        await _tell(
            self._writer, parts + pack(Event("transcript", whole)) + pack(Event("transcript-stop"))
        )
        self._end()

    def _parts(self, hearing: Hearing) -> bytes:
        """What is known of the text and was not told, as events."""
        pieces, hearing.texts = hearing.texts, []
        events = [Event("transcript-chunk", {"text": one}) for one in pieces]
        if not self._told:
            self._told = True
            start = Event("transcript-start", {"language": self._language(hearing)})
            events.insert(0, start)
        return b"".join(map(pack, events))

    def _language(self, hearing: Hearing | None) -> str | None:
        """What was spoken, or what the model writes."""
        heard = hearing.language if hearing else ""
        return heard or self._server.model().language or None

    async def _tell(self, events: bytes) -> None:
        await _tell(self._writer, events, self._server.idle_s)

    async def _fail(self, code: str, text: str) -> None:
        """Says why there is no answer; the connection ends with it, which is all that programs
        made before the event `error` understand."""
        self._server.count("wyoming_refused" if code == "busy" else "wyoming_failed")
        await self._tell(_error(code, text))

    def _segmented(self) -> None:
        """Somebody else's sound may be segmented."""
        if self._detector:
            self._server.give_back(self._detector)
        self._detector = None

    def _end(self) -> None:
        """The request is over, whatever has become of it."""
        self._segmented()
        if self._begun:
            self._begun = False
            self._server.requests -= 1
        if self._hearing:
            self._hearing.close()
            self._names = ()
        self._hearing, self._told, self._answered = None, False, False


def _names(data: Mapping[str, Any]) -> tuple[str, ...]:
    """The words of a request, those that are names first; none where they are no lists of texts."""
    given = (data.get(key) for key in ("transcript_names", "transcript_terms"))
    lists = (one for one in given if isinstance(one, list))
    texts = (text for one in lists for text in one if isinstance(text, str))
    return tuple(dict.fromkeys(itertools.islice(texts, WORDS_AT_MOST)))


def info(node: str, model: Model, *, external_vad: bool) -> dict[str, Any]:
    """What we are, for `describe`: every release of the protocol's library reads it."""
    made_by = {"name": "Roomscribe", "url": HOMEPAGE}
    installed = {
        "name": model.name,
        "description": f"Whisper, {model.name}",
        "attribution": made_by,
        "installed": True,
        "version": None,
        # those that one model knows do not help: it was told, when it was built, which to write
        "languages": [model.language] if model.language else list(model.languages),
    }
    # Home Assistant calls its entity by the program's name; the path wants the sound as it is
    program = {
        "name": f"Roomscribe {node}",
        "description": "Speech to text on the appliance",
        "attribution": made_by,
        "installed": True,
        "version": __version__,
        "models": [installed],
        "supports_transcript_streaming": True,
        "requires_external_vad": external_vad,
        "prefers_auto_gain_enabled": False,
        "prefers_noise_reduction_enabled": False,
    }
    others = ("tts", "handle", "intent", "wake", "mic", "snd")
    return {"asr": [program], **{name: [] for name in others}}


@asynccontextmanager
async def _in_time(within_s: float) -> AsyncIterator[None]:
    """Raises RequestError when it takes longer."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except TimeoutError:
        raise RequestError("busy", "too much else is to be transcribed; try again") from None


def _open(host: str, port: int) -> socket.socket:
    """A socket that listens; on `::` for IPv4, too. Raises OSError."""
    if ":" not in host:
        return socket.create_server((host, port), backlog=CONNECTIONS)
    both = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(
        (host, port), family=socket.AF_INET6, backlog=CONNECTIONS, dualstack_ipv6=both
    )


def _address(writer: asyncio.StreamWriter) -> Address | None:
    """Whose connection it is; None when it has gone already."""
    peer = writer.get_extra_info("peername")
    if not peer:
        return None
    address = ip_address(peer[0].partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _error(code: str, text: str) -> bytes:
    return pack(Event("error", {"text": text, "code": code}))


CROWDED = _error("busy", "too many connections; try again")


async def _tell(writer: asyncio.StreamWriter, events: bytes, within_s: float = IDLE_S) -> None:
    """Sends; raises TimeoutError when the client does not take it."""
    writer.write(events)
    async with asyncio.timeout(within_s):
        await writer.drain()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says that nothing follows, and reads what is still on its way."""
    writer.write_eof()
    async with asyncio.timeout(LINGER_S):
        while await reader.read(LARGEST):
            pass
