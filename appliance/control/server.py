"""The control socket's server: JSON lines on a UNIX socket, docs/control.md.

One thread serves all readers and waits for none of them: each has its lines in memory, few of them,
and is dropped when it does not read. What is told and asked is the feed's affair (daemon/controls);
here are lines, limits and subscriptions.

Over 500 lines because its limits and its loop are one thing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from appliance.errors import RoomscribeError
from appliance.system import shorten

log = logging.getLogger("roomscribe.control")

SOCKET_NAME = "control"
EVENTS = ("transcript", "discarded", "state", "stats", "speech", "level", "partial")
TOLD_MOST = 1024
"""So many events wait for the server's thread at most; the oldest go first."""
LINES_A_TURN = 8
"""So many lines of one reader are obeyed before it is the others' turn."""
PAGE = 50
"""So many transcripts are read at once, and lie ready for one reader."""
STATE_EVERY_S, STATS_EVERY_S = 1.0, 10.0
_BUFFER = 1 << 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reader may take up."""

    readers: int = 32
    line_bytes: int = 65_536
    """Of a line, its end included, in both directions."""
    waiting: int = 256
    """A reader for whom more lines wait is dropped."""
    stalled_s: float = 60.0
    """So is one that has read nothing for so long while lines wait."""
    silent_s: float = 10.0
    """One that subscribes to nothing and has completed no line for so long loses its place to a new
    one when all places are taken."""
    caught_up: int = 1000
    """No more transcripts than this are sent again to one that names the last that it has."""


LIMITS = Limits()


class RefusalError(Exception):
    """A command that is not obeyed; the message is one line."""

    def __init__(self, code: str, message: str, **more: object) -> None:
        """`code`: bad_request, too_many, unavailable or refused. `more` goes into the answer."""
        super().__init__(message)
        self.code, self.more = code, more


Answer = Mapping[str, Any]
Command = Callable[[Mapping[str, Any]], Answer | Future[Answer]]
"""Is given the arguments; its answer, or one that comes later. Raises RefusalError, and what else
is a RoomscribeError."""


class Feed(Protocol):
    """What there is to be told, and the commands. Called by the server's thread alone."""

    @property
    def commands(self) -> Mapping[str, Command]:
        """By name."""

    def state(self) -> Answer:
        """How the appliance is. May raise StoreError."""

    def stats(self) -> Answer:
        """Counters and readings. May raise StoreError."""

    def speaking(self) -> bool:
        """True while somebody speaks."""

    def transcripts(self, after: int, limit: int) -> list[dict[str, Any]]:
        """At most `limit`, with a `seq` above `after`, in order. May raise StoreError."""

    def highest(self) -> int:
        """The highest `seq` that was ever given. May raise StoreError."""

    def poll(self) -> None:
        """Complete late answers. Called at least once a second while a client waits for one."""


@dataclass(slots=True, eq=False)
class _Reader:
    """One connection."""

    socket: socket.socket
    moved_s: float
    """When it last read something, or had read all."""
    asked_s: float
    """When it connected, or completed a line."""
    inbox: bytearray = field(default_factory=bytearray)
    lines: deque[bytes] = field(default_factory=deque)
    sent: int = 0
    """Of the first of the lines."""
    events: frozenset[str] = frozenset()
    seq: int | None = None
    """The last transcript that it was sent; None while it wants none."""
    state: tuple[object, ...] | None = None
    """What it was last told of the state."""
    stats_s: float = 0.0
    """When the statistics are next due."""
    ended: bool = False
    """It sends nothing more."""


class Server:
    """The open socket. `run` is one thread's; what has things told, and `stop`, any thread's."""

    def __init__(self, path: Path, feed: Feed, limits: Limits = LIMITS, idle_s: float = 1.0):
        """Listens at `path`, which only this daemon can have: a socket that is there was left by
        one that was killed. Its folder is there. Raises OSError."""
        self.path, self._feed, self._limits, self._idle_s = path, feed, limits, idle_s
        self.wanted: frozenset[str] = frozenset()
        """The events that somebody subscribes to. Any thread may look."""
        self._told: deque[tuple[str, Answer]] = deque(maxlen=TOLD_MOST)
        self._done: deque[tuple[_Reader, object, Future[Answer]]] = deque()
        self._unanswered = 0
        self._readers: dict[int, _Reader] = {}
        self._inode = 0
        self._stopping = False
        self._news = self._changed = False
        self._highest, self._store_s, self._state_s = 0, 0.0, 0.0
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._bind()
        except OSError:
            self.close()
            raise
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def _bind(self) -> None:
        """The name leads to a socket that listens, for user and group, or to the one before."""
        beside = self.path.with_name(f"{self.path.name}.new")
        beside.unlink(missing_ok=True)
        try:
            self._listener.bind(str(beside))
            beside.chmod(0o660)
            self._listener.listen(self._limits.readers)
            self._inode = beside.lstat().st_ino
            beside.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise

    # any thread

    def tell(self, event: str, data: Answer) -> None:
        """Sends an event to those who subscribe to it."""
        if event in self.wanted:
            self._told.append((event, data))
            self.wake()

    def notify(self) -> None:
        """There is a new transcript."""
        self._news = True
        if "transcript" in self.wanted:
            self.wake()

    def change(self) -> None:
        """The state has changed."""
        self._changed = True
        if "state" in self.wanted:
            self.wake()

    def stop(self) -> None:
        """Makes `run` end soon."""
        self._stopping = True
        self.wake()

    def wake(self) -> None:
        """Has the server's thread look around."""
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    # the server's thread

    def run(self, moved: Callable[[], None] = lambda: None) -> None:
        """Serves until `stop`; what is known by then is sent as far as its readers take it."""
        while True:
            stopping = self._stopping
            moved()
            more = any(b"\n" in reader.inbox for reader in self._readers.values())
            for key, _ in self._selector.select(0 if more or stopping else self._idle_s):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    with contextlib.suppress(OSError):
                        while self._woken.recv(4096):
                            pass
                elif key.data in self._readers.values():
                    self._receive(key.data)
            for reader in tuple(self._readers.values()):
                self._obey(reader)
            self._answer_late()
            self._tell_all()
            for reader in tuple(self._readers.values()):
                self._send(reader)
            if stopping:
                return

    def close(self) -> None:
        """Ends every connection and takes the socket away."""
        for reader in tuple(self._readers.values()):
            self._drop(reader)
        with contextlib.suppress(OSError):
            if self._inode and self.path.lstat().st_ino == self._inode:
                self.path.unlink()
        for end in (self._listener, self._woken, self._waker):
            end.close()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        try:
            opened, _ = self._listener.accept()
        except OSError:
            return
        opened.setblocking(False)
        if len(self._readers) >= self._limits.readers and not self._make_room():
            why = f"expected at most {self._limits.readers} connections, found them all in use"
            with contextlib.suppress(OSError):
                opened.send(_line({"id": None, **_error("too_many", why)}))
            opened.close()
            return
        now_s = time.monotonic()
        reader = _Reader(opened, now_s, now_s)
        self._readers[opened.fileno()] = reader
        self._selector.register(opened, selectors.EVENT_READ, reader)

    def _make_room(self) -> bool:
        """Drop the reader that has been silent longest; False if none has been for silent_s."""
        silent = [one for one in self._readers.values() if not one.events and not one.lines]
        longest = min(silent, key=lambda one: one.asked_s, default=None)
        if longest is None or time.monotonic() - longest.asked_s < self._limits.silent_s:
            return False
        log.info("a reader of the control socket is dropped: it is silent, and others wait")
        self._drop(longest)
        return True

    def _receive(self, reader: _Reader) -> None:
        """Reads on, unless a line waits to be obeyed."""
        if reader.ended or b"\n" in reader.inbox:
            return
        try:
            data = reader.socket.recv(_BUFFER)
        except BlockingIOError:
            return
        except OSError:
            self._drop(reader)
            return
        reader.ended = not data
        reader.inbox += data

    def _obey(self, reader: _Reader) -> None:
        """Obeys the next lines of a reader, in order."""
        for _ in range(LINES_A_TURN):
            line, end, rest = reader.inbox.partition(b"\n")
            if len(line) >= self._limits.line_bytes:
                why = f"expected at most {self._limits.line_bytes} bytes a line, found more"
                self._put(reader, {"id": None, **_error("bad_request", why)})
                self._send(reader)
                self._drop(reader)
                return
            if not end:
                break
            reader.inbox, reader.asked_s = rest, time.monotonic()
            if line.strip():
                self._command(reader, bytes(line))
            if reader.socket.fileno() < 0:
                return
        if reader.ended and b"\n" not in reader.inbox:
            self._send(reader)
            self._drop(reader)

    def _command(self, reader: _Reader, line: bytes) -> None:
        """One line: a command is obeyed, anything else refused."""
        number: object = None
        try:
            request = _parse(line)
            number = request.pop("id")
            name = request.pop("command")
            if name == "subscribe":
                answer: Answer | Future[Answer] = self._subscribe(reader, request)
            elif name in self._feed.commands:
                answer = self._feed.commands[name](request)
            else:
                known = ", ".join(("subscribe", *self._feed.commands))
                raise RefusalError("bad_request", f"unknown command; expected one of {known}")
        except Exception as error:
            self._put(reader, {"id": number, **_failure(error)})
            return
        if isinstance(answer, Future):
            self._unanswered += 1
            later = answer
            later.add_done_callback(lambda _: self._finish(reader, number, later))
        else:
            self._put(reader, {"id": number, "ok": True, "result": answer})

    def _finish(self, reader: _Reader, number: object, answer: Future[Answer]) -> None:
        """A late answer is there. Any thread."""
        self._done.append((reader, number, answer))
        self.wake()

    def _answer_late(self) -> None:
        if self._unanswered:
            self._feed.poll()
        while self._done:
            reader, number, future = self._done.popleft()
            self._unanswered -= 1
            if reader.socket.fileno() < 0:
                continue
            if error := future.exception():
                self._put(reader, {"id": number, **_failure(error)})
            else:
                self._put(reader, {"id": number, "ok": True, "result": future.result()})

    def _subscribe(self, reader: _Reader, request: Mapping[str, Any]) -> Answer:
        """In place of what it subscribed to before. Raises RefusalError and StoreError."""
        if unknown := request.keys() - {"events", "after"}:
            raise RefusalError("bad_request", f"unknown argument {shorten(min(unknown))}")
        wanted, after = request.get("events"), request.get("after")
        if not isinstance(wanted, list) or not all(one in EVENTS for one in map(str, wanted)):
            raise RefusalError("bad_request", f"events: expected a list of {', '.join(EVENTS)}")
        if after is not None and (type(after) is not int or not 0 <= after < 1 << 63):
            raise RefusalError("bad_request", "after: expected the seq of a transcript, or null")
        highest = self._feed.highest()
        self._highest = highest
        reader.events = frozenset(map(str, wanted))
        reader.seq = None
        if "transcript" in reader.events:
            behind = highest if after is None or after > highest else after
            reader.seq = max(behind, highest - self._limits.caught_up)
        reader.state, reader.stats_s, self._state_s = None, 0.0, 0.0
        self._count_wanted()
        if "speech" in reader.events:
            self._told.append(("speech", {"speaking": self._feed.speaking()}))
        return {"events": sorted(reader.events), "seq": highest}

    def _count_wanted(self) -> None:
        self.wanted = frozenset().union(*(reader.events for reader in self._readers.values()))

    def _tell_all(self) -> None:
        """Everything that is new goes into its readers' lines."""
        now_s = time.monotonic()
        self._tell_live()
        if now_s < self._store_s or not self.wanted:
            return
        try:
            self._tell_transcripts()
            self._tell_state(now_s)
            due = [one for one in self._readers.values() if one.stats_s <= now_s]
            if due := [one for one in due if "stats" in one.events]:
                self._tell_some("stats", self._feed.stats(), due)
                for reader in due:
                    reader.stats_s = now_s + STATS_EVERY_S
        except RoomscribeError as error:
            log.debug("the control socket waits for the log: %s", error)
            self._store_s = now_s + 1.0

    def _tell_live(self) -> None:
        while self._told:
            event, data = self._told.popleft()
            self._tell_some(event, data, self._readers.values())

    def _tell_some(self, event: str, data: Answer, readers: Any) -> None:
        line = _line({"event": event, "data": data})
        if len(line) > self._limits.line_bytes:
            log.error("an event %s of %d bytes is too long to be told", event, len(line))
            return
        for reader in tuple(readers):
            if event in reader.events:
                reader.lines.append(line)

    def _tell_transcripts(self) -> None:
        """Those that readers have not been sent, a page at a time: what a slow one lacks stays in
        the log. Raises StoreError."""
        if self._news:
            self._news = False
            try:
                self._highest = self._feed.highest()
            except RoomscribeError:
                self._news = True
                raise
        following = [one for one in self._readers.values() if one.seq is not None]
        for reader in following:
            if (reader.seq or 0) > self._highest:
                reader.seq = 0  # the log was begun anew: nothing of it has been sent
        due = [one for one in following if (one.seq or 0) < self._highest and len(one.lines) < PAGE]
        if not due:
            return
        found = self._feed.transcripts(min(one.seq or 0 for one in due), PAGE)
        self._tell_live()  # no partial text comes after the transcript that it is of
        for event in found:
            behind = [one for one in due if (one.seq or 0) < event["seq"]]
            self._tell_some("transcript", event, behind)
            for reader in behind:
                reader.seq = event["seq"]
        if len(found) < PAGE:
            for reader in due:
                reader.seq = max(reader.seq or 0, self._highest)
        else:
            self.wake()

    def _tell_state(self, now_s: float) -> None:
        """The state, where it is news. Raises StoreError."""
        if "state" not in self.wanted or not (self._changed or now_s >= self._state_s):
            return
        self._changed, self._state_s = False, now_s + STATE_EVERY_S
        state = self._feed.state()
        news = tuple(value for name, value in state.items() if name != "uptime_s")
        due = [one for one in self._readers.values() if one.state != news]
        self._tell_some("state", state, due)
        for reader in due:
            reader.state = news

    def _put(self, reader: _Reader, message: Mapping[str, Any]) -> None:
        """An answer."""
        line = _line(message)
        if len(line) > self._limits.line_bytes:
            why = f"the answer would be longer than {self._limits.line_bytes} bytes; ask for less"
            line = _line({"id": message["id"], **_error("unavailable", why)})
        reader.lines.append(line)

    def _send(self, reader: _Reader) -> None:
        """Sends what the reader takes now; drops it when too much is left for too long."""
        now_s = time.monotonic()
        while reader.lines and reader.socket.fileno() >= 0:
            line = reader.lines[0]
            try:
                sent = reader.socket.send(line[reader.sent :])
            except BlockingIOError:
                break
            except OSError:
                self._drop(reader)
                return
            reader.moved_s = now_s
            reader.sent += sent
            if reader.sent == len(line):
                reader.lines.popleft()
                reader.sent = 0
        if not reader.lines:
            reader.moved_s = now_s
        too_many = len(reader.lines) > self._limits.waiting
        if too_many or now_s - reader.moved_s > self._limits.stalled_s:
            log.info("a reader of the control socket is dropped: it does not read")
            self._drop(reader)
        elif reader.socket.fileno() >= 0:
            interest = selectors.EVENT_READ if not reader.ended else 0
            interest |= selectors.EVENT_WRITE if reader.lines else 0
            self._selector.modify(reader.socket, interest or selectors.EVENT_READ, reader)

    def _drop(self, reader: _Reader) -> None:
        """Ends the connection."""
        if self._readers.pop(reader.socket.fileno(), None):
            self._selector.unregister(reader.socket)
        reader.socket.close()
        self._count_wanted()


def _parse(line: bytes) -> dict[str, Any]:
    """The request in a line: a table with an id and a command. Raises RefusalError."""
    try:
        request = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise RefusalError(
            "bad_request", 'expected a JSON object such as {"id": 1, "command": "state"}'
        )
    number = request.setdefault("id", None)
    fits = type(number) is int and abs(number) < 1 << 53
    if not (number is None or fits or (isinstance(number, str) and len(number) <= 64)):
        raise RefusalError("bad_request", "id: expected a whole number, or a text of 64 letters")
    if not isinstance(request.get("command"), str):
        raise RefusalError("bad_request", "command: expected a name")
    return request


def _no_number(name: str) -> object:
    raise ValueError(name)


def _failure(error: BaseException) -> dict[str, Any]:
    """The answer to a command that failed; a fault of ours is logged, and nobody else's trouble."""
    if isinstance(error, RefusalError):
        return {**_error(error.code, str(error)), **error.more}
    if not isinstance(error, RoomscribeError):
        log.error("a command of the control socket failed: %s", error, exc_info=error)
    return _error("unavailable", shorten(error, 400) or type(error).__name__)


def _error(code: str, why: str) -> dict[str, Any]:
    return {"ok": False, "code": code, "error": why}


def _line(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent; letters that UTF-8 does not have are question marks."""
    text = json.dumps(message, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"
