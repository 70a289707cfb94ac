"""The control socket's server: JSON lines on a UNIX socket (docs/control.md).

One thread serves all clients and waits for none of them: each has few unsent lines in memory, and
is disconnected if it does not read. `daemon/controls` provides the events and commands.
"""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from appliance.control.connection import (
    LIMITS,
    ClientState,
    ConnectionLimits,
    ControlConnection,
    encode_line,
    error_answer,
)
from appliance.errors import RoomscribeError
from appliance.system import shorten

log = logging.getLogger("roomscribe.control")

SOCKET_NAME = "control"
EVENTS = (
    "transcript", "discarded", "state", "stats", "speech", "level", "partial", "correction",
    "heard_in",
)  # fmt: skip
EVENTS_QUEUED = 1024
"""Most events that wait for the server's thread; the oldest are dropped first."""
LINES_PER_TURN = 8
"""Lines of one client that are executed before it is the others' turn."""
PAGE = 50
"""Transcripts that are read at once, and most that wait for one client."""
STATE_EVERY_S, STATS_EVERY_S = 1.0, 10.0
STORE_RETRY_S = 1.0


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


class ControlServer(contextlib.AbstractContextManager["ControlServer"]):
    """The open socket. One thread calls `run`; any thread may call what is above it."""

    def __init__(
        self, path: Path, feed: Feed, limits: ConnectionLimits = LIMITS, idle_s: float = 1.0
    ):
        """Listen at `path`, in a folder that exists. Raises OSError.

        Only one daemon can have it, so a socket that is there was left by one that was killed.
        """
        self.path, self._feed, self._limits, self._idle_s = path, feed, limits, idle_s
        self.wanted: frozenset[str] = frozenset()
        """The events that any client subscribes to. Any thread may read it."""
        self._queued: deque[tuple[str, Answer]] = deque(maxlen=EVENTS_QUEUED)
        self._late: deque[tuple[ControlConnection, object, Future[Answer]]] = deque()
        """Late answers that are there."""
        self._unanswered = 0
        """Late answers that are not there yet."""
        self._connections: list[ControlConnection] = []
        self._inode = 0
        self._stopping = False
        self._new_transcript = self._new_state = False
        self._highest, self._store_due_s, self._state_due_s = 0, 0.0, 0.0
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._inode = _listen(self._listener, path, limits.connections)
        except OSError:
            self.close()
            raise
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

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
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    # the server's thread

    def run(self, heartbeat: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`; what is queued by then is sent as far as the clients take it."""
        while True:
            stopping = self._stopping
            heartbeat()
            waiting = stopping or any(one.has_line for one in self._connections)
            for key, _ in self._selector.select(0 if waiting else self._idle_s):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    with contextlib.suppress(OSError):
                        while self._woken.recv(4096):
                            pass
                elif key.data in self._connections:
                    key.data.receive()
            for connection in tuple(self._connections):
                self._execute_lines(connection)
            self._answer_late()
            self._send_events()
            for connection in tuple(self._connections):
                self._flush(connection)
            if stopping:
                return

    def close(self) -> None:
        """End every connection and remove the socket."""
        for connection in tuple(self._connections):
            self._drop(connection)
        with contextlib.suppress(OSError):
            if self._inode and self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        for end in (self._listener, self._woken, self._waker):
            end.close()
        self._selector.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        try:
            opened, _ = self._listener.accept()
        except OSError:
            return
        opened.setblocking(False)
        connection = ControlConnection(opened, self._limits)
        if len(self._connections) >= self._limits.connections and not self._make_room():
            why = f"expected at most {self._limits.connections} connections, found them all in use"
            connection.put({"id": None, **error_answer("too_many", why)})
            connection.send()
            opened.close()
            return
        self._connections.append(connection)
        self._selector.register(opened, selectors.EVENT_READ, connection)

    def _make_room(self) -> bool:
        """Drop the connection that has been silent longest; False if none has been for long."""
        silent = [one for one in self._connections if not one.events and not one.outbox]
        longest = min(silent, key=lambda one: one.last_line_s, default=None)
        if longest is None or time.monotonic() - longest.last_line_s < self._limits.silent_s:
            return False
        log.info("disconnected a silent client of the control socket to make room for another")
        self._drop(longest)
        return True

    def _execute_lines(self, connection: ControlConnection) -> None:
        """Execute the next lines of a connection, in order."""
        for _ in range(LINES_PER_TURN):
            if connection.state is ClientState.CLOSED:
                return
            try:
                line = connection.next_line()
            except ValueError as error:
                connection.put({"id": None, **error_answer("bad_request", str(error))})
                connection.finish()
                return
            if line is None:
                break
            if line.strip():
                self._execute(connection, line)
        if connection.state is ClientState.FINISHED and not connection.has_line:
            connection.finish()

    def _execute(self, connection: ControlConnection, line: bytes) -> None:
        number: object = None

        def queue_late(done: Future[Answer]) -> None:  # any thread
            self._late.append((connection, number, done))
            self.wake()

        try:
            request = _parse(line)
            number = request.pop("id")
            name = request.pop("command")
            if name == "subscribe":
                answer: Answer | Future[Answer] = self._subscribe(connection, request)
            elif name in self._feed.commands:
                answer = self._feed.commands[name](request)
            else:
                known = ", ".join(("subscribe", *self._feed.commands))
                raise ControlError("bad_request", f"unknown command; expected one of {known}")
        except Exception as error:
            connection.put({"id": number, **_failure(error)})
            return
        if isinstance(answer, Future):
            self._unanswered += 1
            answer.add_done_callback(queue_late)
        else:
            connection.put({"id": number, "ok": True, "result": answer})

    def _answer_late(self) -> None:
        if self._unanswered:
            self._feed.poll()
        while self._late:
            connection, number, future = self._late.popleft()
            self._unanswered -= 1
            if connection.state is ClientState.CLOSED:
                continue
            if error := future.exception():
                connection.put({"id": number, **_failure(error)})
            else:
                connection.put({"id": number, "ok": True, "result": future.result()})

    def _subscribe(self, connection: ControlConnection, request: Mapping[str, Any]) -> Answer:
        """Replace a connection's subscription. Raises ControlError and StoreError."""
        if unknown := request.keys() - {"events", "after"}:
            raise ControlError("bad_request", f"unknown argument {shorten(min(unknown))}")
        events, after = request.get("events"), request.get("after")
        if not isinstance(events, list) or not all(name in EVENTS for name in map(str, events)):
            raise ControlError("bad_request", f"events: expected a list of {', '.join(EVENTS)}")
        if after is not None and (type(after) is not int or not 0 <= after < 1 << 63):
            raise ControlError("bad_request", "after: expected the seq of a transcript, or null")
        self._highest = highest = self._feed.highest()
        connection.events, connection.seq = frozenset(map(str, events)), None
        if "transcript" in connection.events:
            start = highest if after is None or after > highest else after
            connection.seq = max(start, highest - self._limits.replayed)
        connection.shown_state, connection.stats_due_s, self._state_due_s = None, 0.0, 0.0
        self._count_wanted()
        if "speech" in connection.events:
            self._queued.append(("speech", {"speaking": self._feed.speaking()}))
        return {"events": sorted(connection.events), "seq": highest}

    def _count_wanted(self) -> None:
        self.wanted = frozenset().union(*(one.events for one in self._connections))

    def _send_events(self) -> None:
        """Queue everything new for its subscribers."""
        now_s = time.monotonic()
        self._send_queued()
        if now_s < self._store_due_s or not self.wanted:
            return
        try:
            self._send_transcripts()
            self._send_state(now_s)
            due = [one for one in self._connections if one.stats_due_s <= now_s]
            if due := [one for one in due if "stats" in one.events]:
                self._send_event("stats", self._feed.stats(), due)
                for connection in due:
                    connection.stats_due_s = now_s + STATS_EVERY_S
        except RoomscribeError as error:
            log.debug("the control socket waits for the log: %s", error)
            self._store_due_s = now_s + STORE_RETRY_S

    def _send_queued(self) -> None:
        while self._queued:
            self._send_event(*self._queued.popleft(), self._connections)

    def _send_event(
        self, event: str, data: Answer, connections: Iterable[ControlConnection]
    ) -> None:
        line = encode_line({"event": event, "data": data})
        if len(line) > self._limits.line_bytes:
            log.error("event %s not sent: %d bytes are too many", event, len(line))
            return
        for connection in connections:
            if event in connection.events:
                connection.outbox.append(line)

    def _send_transcripts(self) -> None:
        """Queue a page of transcripts for each subscriber that lacks some; those that a slow one
        lacks stay in the store. Raises StoreError."""
        if self._new_transcript:
            self._new_transcript = False
            try:
                self._highest = self._feed.highest()
            except RoomscribeError:
                self._new_transcript = True
                raise
        subscribers = [(one, one.seq) for one in self._connections if one.seq is not None]
        # a log that was started anew has lower numbers, and none of it has been sent
        behind = [(one, seq if seq <= self._highest else 0) for one, seq in subscribers]
        for connection, seq in behind:
            connection.seq = seq
        due = [(o, seq) for o, seq in behind if seq < self._highest and len(o.outbox) < PAGE]
        if not due:
            return
        found = self._feed.transcripts(min(seq for _, seq in due), PAGE)
        self._send_queued()  # no partial text may come after its transcript
        for event in found:
            self._send_event("transcript", event, [o for o, seq in due if seq < event["seq"]])
        complete = len(found) < PAGE
        for connection, seq in due:
            last = found[-1]["seq"] if found else 0
            connection.seq = max(seq, last, self._highest if complete else 0)
        if not complete:
            self.wake()

    def _send_state(self, now_s: float) -> None:
        """Queue the state for the subscribers to which it is new. Raises StoreError."""
        if "state" not in self.wanted or not (self._new_state or now_s >= self._state_due_s):
            return
        self._new_state, self._state_due_s = False, now_s + STATE_EVERY_S
        state = self._feed.state()
        shown = tuple(value for name, value in state.items() if name != "uptime_s")
        due = [one for one in self._connections if one.shown_state != shown]
        self._send_event("state", state, due)
        for connection in due:
            connection.shown_state = shown

    def _flush(self, connection: ControlConnection) -> None:
        """Send what a client takes now; drop it if it is closed, or does not read."""
        connection.send()
        if connection.state is not ClientState.CLOSED and connection.is_stalled:
            log.info("disconnected a client of the control socket that does not read")
            connection.state = ClientState.CLOSED
        if connection.state is ClientState.CLOSED:
            self._drop(connection)
            return
        interest = selectors.EVENT_READ if connection.state is ClientState.OPEN else 0
        interest |= selectors.EVENT_WRITE if connection.outbox else 0
        self._selector.modify(connection.socket, interest or selectors.EVENT_READ, connection)

    def _drop(self, connection: ControlConnection) -> None:
        connection.state = ClientState.CLOSED
        self._connections.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._count_wanted()


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
    try:
        request = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
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


def _failure(error: BaseException) -> dict[str, Any]:
    """Return the answer to a command that failed; log an unexpected error."""
    if isinstance(error, ControlError):
        return {**error_answer(error.code, str(error)), **error.more}
    if not isinstance(error, RoomscribeError):
        log.error("a command of the control socket failed: %s", error, exc_info=error)
    return error_answer("unavailable", shorten(error, 400) or type(error).__name__)
