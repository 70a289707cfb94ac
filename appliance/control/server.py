"""The control socket's server: JSON lines on a UNIX socket (docs/control.md).

One thread serves all clients and waits for none of them: each has few unsent bytes in memory, and
is disconnected if it does not read. `daemon/controls` provides the events and commands.
"""

import asyncio
import contextlib
import json
import logging
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from appliance.errors import RoomscribeError
from appliance.system import Closing, call_in, json_object, shorten

log = logging.getLogger("roomscribe.control")

SOCKET_NAME = "control"
EVENTS = (
    "transcript", "discarded", "state", "stats", "speech", "level", "partial", "correction",
    "heard_in",
)  # fmt: skip
EVENTS_QUEUED = 1024
"""Most events that wait for the server's thread; the oldest are dropped first."""
LINE_BYTES = 65_536
"""Longest line with its end, in both directions."""
PAGE = 50
"""Transcripts that are read at once, and most that wait for one client."""
STATE_EVERY_S, STATS_EVERY_S = 1.0, 10.0
STORE_RETRY_S = 1.0
END_WITHIN_S = 0.2
"""For the connections to end when the server stops."""


@dataclass(frozen=True, slots=True)
class ControlLimits:
    """What clients of the control socket may take up."""

    connections: int = 32
    unsent_bytes: int = 1 << 20
    """A client with more unsent bytes is disconnected."""
    stalled_s: float = 60.0
    """So is one that has read nothing for this long while something is unsent."""
    silent_s: float = 10.0
    """A client without subscription that has completed no line for this long loses its place if
    all are taken."""
    replayed: int = 1000
    """Most transcripts that are sent again to a client that names the last one it has."""


LIMITS = ControlLimits()


class ControlError(Exception):
    """A command that is refused; the message is one line."""

    def __init__(self, code: str, message: str, **more: object) -> None:
        """`code`: bad_request, too_many, unavailable or refused. `more` goes into the answer."""
        super().__init__(message)
        self.code, self.more = code, more


Answer = Mapping[str, Any]
Command = Callable[[Mapping[str, Any]], Answer | Future[Answer]]
"""Takes the arguments and returns the answer, or a future. Raises ControlError, RoomscribeError."""


class Feed(Protocol):
    """What the server serves. Called by its thread alone."""

    @property
    def commands(self) -> Mapping[str, Command]:
        """By name."""

    def state(self) -> Answer:
        """Return the appliance's state. May raise StoreError."""

    def stats(self) -> Answer:
        """Return counters and readings. May raise StoreError."""

    def speaking(self) -> bool:
        """Return True while someone speaks."""

    def transcripts(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Return at most `limit` with a `seq` above `after`, in order. May raise StoreError."""

    def highest(self) -> int:
        """Return the highest `seq` that was ever given. May raise StoreError."""

    def poll(self) -> None:
        """Complete late answers. Called at least once a second while a client waits for one."""


@dataclass(slots=True, eq=False)
class _Client:
    """One connection, and what it subscribes to. The server's thread."""

    writer: asyncio.StreamWriter
    unsent_bytes: int
    """As in ControlLimits."""
    behind: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it may lack transcripts."""
    events: frozenset[str] = frozenset()
    seq: int | None = None
    """Number of the last transcript that it was sent; None: it wants none."""
    shown_state: tuple[object, ...] | None = None
    """The appliance's state as it was last sent."""
    stats_due_s: float = 0.0
    last_line_s: float = field(default_factory=time.monotonic)
    """When it connected, or last completed a line."""
    unread_s: float = math.inf
    """Since when something is unsent."""

    def answer(self, message: Mapping[str, Any]) -> None:
        """Send an answer."""
        line = _encode_line(message)
        if len(line) > LINE_BYTES:
            why = f"the answer would be longer than {LINE_BYTES} bytes; ask for less"
            line = _encode_line({"id": message["id"], **_refusal("unavailable", why)})
        self.send(line)

    def send(self, line: bytes) -> None:
        """Send a line without waiting; disconnect a client that does not read."""
        transport = self.writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > self.unsent_bytes:
            self.drop()
        else:
            self.writer.write(line)

    def drop(self) -> None:
        """Disconnect a client that does not read."""
        log.info("disconnected a client of the control socket that does not read")
        self.writer.transport.abort()


class ControlServer(Closing):
    """The open socket. One thread calls `run`; any thread may call what is above it."""

    def __init__(self, path: Path, limits: ControlLimits = LIMITS, idle_s: float = 1.0) -> None:
        """Listen at `path`, in a folder that exists. Raises OSError.

        Only one daemon can have it, so a socket that is there was left by one that was killed.
        """
        self.path, self._limits, self._idle_s = path, limits, idle_s
        self.wanted: frozenset[str] = frozenset()
        """The events that any client subscribes to. Any thread may read it."""
        self._queued: deque[tuple[str, Answer]] = deque(maxlen=EVENTS_QUEUED)
        self._unanswered = 0
        """Late answers that are not there yet."""
        self._clients: dict[_Client, asyncio.Task[None] | None] = {}
        """The connections, and their tasks."""
        self._stopping = False
        self._new_transcript = self._new_state = False
        self._highest, self._store_due_s, self._state_due_s = 0, 0.0, 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._inode = _listen(self._listener, path, limits.connections)
        except OSError:
            self._listener.close()
            raise

    def publish(self, event: str, data: Answer) -> None:
        """Send an event to the clients that subscribe to it."""
        if event in self.wanted:
            self._queued.append((event, data))
            self.wake()

    def announce_transcript(self) -> None:
        """Have the new transcripts read from the store and sent."""
        self._new_transcript = True
        if "transcript" in self.wanted:
            self.wake()

    def announce_state(self) -> None:
        """Have the state sent, if it has changed."""
        self._new_state = True
        if "state" in self.wanted:
            self.wake()

    def stop(self) -> None:
        """Make `run` end soon."""
        self._stopping = True
        self.wake()

    def wake(self) -> None:
        """Make the server's thread poll now."""
        call_in(self._loop, self._woken.set)

    # the server's thread

    def run(self, feed: Feed, heartbeat: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`; what is queued by then is sent as far as the clients take it."""
        self._feed = feed
        asyncio.run(self._serve(heartbeat))

    def close(self) -> None:
        """Remove the socket, once `run` has ended."""
        with contextlib.suppress(OSError):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        self._listener.close()

    async def _serve(self, heartbeat: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_unix_server(
            self._serve_client, sock=self._listener, limit=LINE_BYTES - 1
        )
        while not self._stopping:
            heartbeat()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._idle_s):
                    await self._woken.wait()
            self._woken.clear()
            if self._unanswered:
                self._feed.poll()
            self._send_events()
            self._drop_stalled(time.monotonic())
        self._send_events()
        await asyncio.sleep(0)  # for the transcripts
        server.close()
        for client in self._clients:
            client.writer.close()
        await self._await_ends()
        for client in self._clients:
            client.writer.transport.abort()
        await self._await_ends()

    async def _await_ends(self) -> None:
        """Wait for the connections to end, END_WITHIN_S at most."""
        if tasks := [task for task in self._clients.values() if task]:
            await asyncio.wait(tasks, timeout=END_WITHIN_S)

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer a client's lines in their order until its connection ends."""
        client = _Client(writer, self._limits.unsent_bytes)
        if len(self._clients) >= self._limits.connections and not self._make_room():
            why = f"expected at most {self._limits.connections} connections, found them all in use"
            client.answer({"id": None, **_refusal("too_many", why)})
            writer.close()
            return
        self._clients[client] = asyncio.current_task()
        follower = asyncio.ensure_future(self._send_transcripts(client))
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                client.last_line_s = time.monotonic()
                if line.strip():
                    self._execute(client, line)
                await writer.drain()
                await asyncio.sleep(0)  # the others' turn
        except ValueError:
            why = f"expected at most {LINE_BYTES} bytes a line, found more"
            client.answer({"id": None, **_refusal("bad_request", why)})
        except OSError:
            pass  # it has gone
        finally:
            follower.cancel()
            del self._clients[client]
            self._count_wanted()
            writer.close()

    def _make_room(self) -> bool:
        """Drop the client that has been silent longest; False if none has been for long."""
        silent = [one for one in self._clients if not one.events]
        longest = min(silent, key=lambda one: one.last_line_s, default=None)
        if longest is None or time.monotonic() - longest.last_line_s < self._limits.silent_s:
            return False
        log.info("disconnected a silent client of the control socket to make room for another")
        longest.writer.transport.abort()
        return True

    def _drop_stalled(self, now_s: float) -> None:
        """Drop the clients that have read nothing for too long."""
        for client in self._clients:
            unsent = client.writer.transport.get_write_buffer_size()
            client.unread_s = min(client.unread_s, now_s) if unsent else math.inf
            if now_s - client.unread_s > self._limits.stalled_s:
                client.drop()

    def _execute(self, client: _Client, line: bytes) -> None:
        number: object = None

        def answer_late(done: Future[Answer]) -> None:
            self._unanswered -= 1
            if error := done.exception():
                client.answer({"id": number, **_failure(error)})
            else:
                client.answer({"id": number, "ok": True, "result": done.result()})

        def pass_on(done: Future[Answer]) -> None:  # any thread
            call_in(self._loop, answer_late, done)

        try:
            request = _parse(line)
            number = request.pop("id")
            name = request.pop("command")
            if name == "subscribe":
                answer: Answer | Future[Answer] = self._subscribe(client, request)
            elif name in self._feed.commands:
                answer = self._feed.commands[name](request)
            else:
                known = ", ".join(("subscribe", *self._feed.commands))
                raise ControlError("bad_request", f"unknown command; expected one of {known}")
        except Exception as error:
            client.answer({"id": number, **_failure(error)})
            return
        if isinstance(answer, Future):
            self._unanswered += 1
            answer.add_done_callback(pass_on)
        else:
            client.answer({"id": number, "ok": True, "result": answer})

    def _subscribe(self, client: _Client, request: Mapping[str, Any]) -> Answer:
        """Replace a client's subscription. Raises ControlError and StoreError."""
        if unknown := request.keys() - {"events", "after"}:
            raise ControlError("bad_request", f"unknown argument {shorten(min(unknown))}")
        events, after = request.get("events"), request.get("after")
        if not isinstance(events, list) or not all(name in EVENTS for name in map(str, events)):
            raise ControlError("bad_request", f"events: expected a list of {', '.join(EVENTS)}")
        if after is not None and (type(after) is not int or not 0 <= after < 1 << 63):
            raise ControlError("bad_request", "after: expected the seq of a transcript, or null")
        self._highest = highest = self._feed.highest()
        client.events, client.seq = frozenset(map(str, events)), None
        if "transcript" in client.events:
            start = highest if after is None or after > highest else after
            client.seq = max(start, highest - self._limits.replayed)
            client.behind.set()
        client.shown_state, client.stats_due_s, self._state_due_s = None, 0.0, 0.0
        self._count_wanted()
        if "speech" in client.events:
            self._queued.append(("speech", {"speaking": self._feed.speaking()}))
        self._woken.set()
        return {"events": sorted(client.events), "seq": highest}

    def _count_wanted(self) -> None:
        self.wanted = frozenset().union(*(one.events for one in self._clients))

    def _send_events(self) -> None:
        """Send everything new to its subscribers."""
        now_s = time.monotonic()
        self._send_queued()
        if now_s < self._store_due_s or not self.wanted:
            return
        try:
            if self._new_transcript:
                self._highest = self._feed.highest()
                self._new_transcript = False
                for client in self._clients:
                    client.behind.set()
            self._send_state(now_s)
            due = [one for one in self._clients if one.stats_due_s <= now_s]
            if due := [one for one in due if "stats" in one.events]:
                self._send_event("stats", self._feed.stats(), due)
                for client in due:
                    client.stats_due_s = now_s + STATS_EVERY_S
        except RoomscribeError as error:
            log.debug("the control socket waits for the log: %s", error)
            self._store_due_s = now_s + STORE_RETRY_S

    def _send_queued(self) -> None:
        while self._queued:
            self._send_event(*self._queued.popleft(), self._clients)

    def _send_event(self, event: str, data: Answer, clients: Iterable[_Client]) -> None:
        line = _encode_line({"event": event, "data": data})
        if len(line) > LINE_BYTES:
            log.error("event %s not sent: %d bytes are too many", event, len(line))
            return
        for client in clients:
            if event in client.events:
                client.send(line)

    async def _send_transcripts(self, client: _Client) -> None:
        """Send a client what it lacks, a page at a time; what a slow one lacks stays in the store.
        Ends with its connection."""
        while True:
            await client.behind.wait()
            client.behind.clear()
            # a log that was started anew has lower numbers, and none of it has been sent
            if client.seq is not None and client.seq > self._highest:
                client.seq = 0
            while client.seq is not None and client.seq < self._highest:
                try:
                    found = self._feed.transcripts(client.seq, PAGE)
                except RoomscribeError as error:
                    log.debug("the control socket waits for the log: %s", error)
                    await asyncio.sleep(STORE_RETRY_S)
                    continue
                except Exception as error:
                    log.error("the control socket reads the log: %s", error, exc_info=error)
                    client.writer.transport.abort()
                    return
                self._send_queued()  # no partial text may come after its transcript
                for event in found:
                    self._send_event("transcript", event, (client,))
                client.seq = found[-1]["seq"] if found else self._highest
                with contextlib.suppress(OSError):  # it has gone
                    await client.writer.drain()

    def _send_state(self, now_s: float) -> None:
        """Send the state to the subscribers to which it is new. Raises StoreError."""
        if "state" not in self.wanted or not (self._new_state or now_s >= self._state_due_s):
            return
        self._new_state, self._state_due_s = False, now_s + STATE_EVERY_S
        state = self._feed.state()
        shown = tuple(value for name, value in state.items() if name != "uptime_s")
        due = [one for one in self._clients if one.shown_state != shown]
        self._send_event("state", state, due)
        for client in due:
            client.shown_state = shown


def _listen(listener: socket.socket, path: Path, backlog: int) -> int:
    """Replace what is at `path` by a socket that listens already, for user and group.

    Return its inode. Raises OSError.
    """
    beside = path.with_name(f"{path.name}.new")
    beside.unlink(missing_ok=True)
    try:
        listener.bind(str(beside))
        beside.chmod(0o660)
        listener.listen(backlog)
        inode = beside.lstat().st_ino
        beside.replace(path)
        return inode
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _parse(line: bytes) -> dict[str, Any]:
    """Return the request in a line, with an id and a command. Raises ControlError."""
    request = json_object(line, parse_constant=_refuse_constant)
    if request is None:
        raise ControlError(
            "bad_request", 'expected a JSON object such as {"id": 1, "command": "state"}'
        )
    number = request.setdefault("id", None)
    fits = type(number) is int and abs(number) < 1 << 53
    if not (number is None or fits or (isinstance(number, str) and len(number) <= 64)):
        raise ControlError("bad_request", "id: expected a whole number, or a text of 64 letters")
    if not isinstance(request.get("command"), str):
        raise ControlError("bad_request", "command: expected a name")
    return request


def _refuse_constant(name: str) -> object:
    """Refuse NaN and the infinities, which JSON does not have."""
    raise ValueError(name)


def _encode_line(message: Mapping[str, Any]) -> bytes:
    """Return a message as it is sent; letters that UTF-8 cannot hold become question marks."""
    text = json.dumps(message, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


def _refusal(code: str, message: str) -> dict[str, Any]:
    """Return what a refused command is answered, without its id."""
    return {"ok": False, "code": code, "error": message}


def _failure(error: BaseException) -> dict[str, Any]:
    """Return the answer to a command that failed; log an unexpected error."""
    if isinstance(error, ControlError):
        return {**_refusal(error.code, str(error)), **error.more}
    if not isinstance(error, RoomscribeError):
        log.error("a command of the control socket failed: %s", error, exc_info=error)
    return _refusal("unavailable", shorten(error, 400) or type(error).__name__)
