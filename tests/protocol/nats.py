"""A nats-server with one work queue in memory, for the state machine: nothing happens by itself.

Workers get a window, answer and confirm when the machine says so; answers stay under way until it
delivers them. Requests for workers are answered at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from protocol.fakes import Clock

from appliance.fleet.messages import ID_HEADER, pack_presence, read_answer, read_window
from appliance.fleet.worker import WAITING_S
from appliance.infer import RemoteModel

Handler = Callable[[Any], Coroutine[Any, Any, None]]

NODE = "kitchen"
PRESENCE = pack_presence("pi5", RemoteModel("fake", "en", ("en",), 10.0))


PASS_S = 1e-6


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time is the clock's, and a little more with each pass.

    asyncio fires a timer up to a nanosecond early: what then waits again for the rest would do so
    for ever if no time passed.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._now, self._passed_s = clock, 0.0

    def time(self) -> float:
        return self._now.now_s + self._passed_s

    def settle(self) -> None:
        """Run what is due now, until nothing is."""
        busy = True
        while busy:
            self._passed_s += PASS_S
            self.call_soon(self.stop)
            self.run_forever()
            timers = [one for one in self._scheduled if not one.cancelled()]  # type: ignore[attr-defined]
            due = any(one.when() <= self.time() for one in timers)
            busy = bool(self._ready) or due  # type: ignore[attr-defined]


@dataclass(eq=False)
class QueuedWindow:
    """A window in the stream; as a worker gets it, it stands for nats-py's message."""

    subject: str
    headers: dict[str, str]
    data: bytes
    since_s: float = 0.0
    deliveries: int = 0
    confirmed: asyncio.Future[None] | None = None
    """Made when the worker confirms; the machine lets it through."""

    @property
    def id(self) -> str:
        return read_window(self.subject, self.headers, self.data).window.id

    @property
    def metadata(self) -> SimpleNamespace:
        return SimpleNamespace(num_delivered=self.deliveries)

    async def ack(self) -> None:
        self.confirmed = asyncio.get_running_loop().create_future()
        await self.confirmed

    async def nak(self) -> None:
        """Nothing: the worker is killed, which sends nothing."""

    async def in_progress(self) -> None:
        """Nothing: the machine decides when a worker is given up."""


class FakeServer:
    """The server, whoever is connected to it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.queue: deque[QueuedWindow] = deque()
        self.answers: list[bytes] = []
        """Under way to the satellite."""
        self.seen: dict[str, float] = {}
        """Since when it has the ids by which it recognises a repeated message."""
        self.satellite: FakeClient | None = None
        self.on_window: Callable[[], object] = lambda: None
        """Called with each window that arrives."""

    def forget(self) -> None:
        """Lose the stream, as a restart does."""
        self.queue.clear()
        self.seen.clear()

    def expire(self) -> None:
        """Drop what has waited too long."""
        since_s = self._clock.now_s - WAITING_S
        self.seen = {name: at_s for name, at_s in self.seen.items() if at_s > since_s}
        self.queue = deque(one for one in self.queue if one.since_s > since_s)

    def take(self, subject: str, headers: Mapping[str, str], data: bytes) -> bytes:
        """Put a window into the queue; return JetStream's answer."""
        self.on_window()
        name = headers[ID_HEADER]
        if name in self.seen:
            return b'{"duplicate": true}'
        self.seen[name] = self._clock.now_s
        self.queue.append(QueuedWindow(subject, dict(headers), data, self._clock.now_s))
        return b'{"seq": 1}'

    def deliver(self, at: int) -> str:
        """Let an answer arrive at the satellite; return the id of its window."""
        data = self.answers.pop(at)
        if self.satellite:
            self.satellite.receive(data)
        return answered_id(data)


def answered_id(data: bytes) -> str:
    """Return the id of an answer's window."""
    return read_answer(data).id


@dataclass(eq=False)
class FakeClient:
    """A connection; stands for nats-py's Client."""

    server: FakeServer
    loop: VirtualLoop
    handlers: dict[str, Handler] = field(default_factory=dict)

    async def subscribe(self, subject: str, cb: Handler) -> None:
        self.handlers[subject] = cb

    async def publish(self, subject: str, data: bytes = b"") -> None:
        if subject.startswith("roomscribe.answer."):
            self.server.answers.append(data)

    async def request(
        self, subject: str, data: bytes, *, timeout: float, headers: Mapping[str, str] | None = None
    ) -> SimpleNamespace:
        if headers is None:  # for workers
            return SimpleNamespace(data=PRESENCE)
        return SimpleNamespace(data=self.server.take(subject, headers, data))

    async def flush(self, timeout: float = 1.0) -> None:
        """Nothing waits."""

    def receive(self, data: bytes) -> None:
        """Let an answer arrive."""
        handler = self.handlers[f"roomscribe.answer.{NODE}"]
        self.loop.create_task(handler(SimpleNamespace(data=data)))


class FakeFleetLink:
    """Stands for the fleet's Link: the machine connects it."""

    def __init__(self, clock: Clock, loop: VirtualLoop, node: str) -> None:
        self.node, self.address, self.trouble = node, "nats://here", None
        self.client: FakeClient | None = None
        self._handler: Handler
        self._clock, self._loop = clock, loop
        self._task: asyncio.Task[None] | None = None

    def start(self, handler: Handler, **_callbacks: object) -> None:
        self._handler = handler

    def call_soon(self, work: Callable[[], object]) -> None:
        self._loop.call_soon(work)

    def reset(self) -> None:
        raise AssertionError("the server always answers")

    def connect(self, server: FakeServer, *, serve: bool) -> FakeClient:
        """Make a connection in place of the one before; `serve`: run the handler on it."""
        self.end()
        self.client = FakeClient(server, self._loop)
        if serve:
            self._task = self._loop.create_task(self._handler(self.client))
        return self.client

    def end(self) -> None:
        """End the connection."""
        if self._task:
            self._task.cancel()
        self._task, self.client = None, None
