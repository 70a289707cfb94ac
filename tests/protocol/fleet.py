"""Drives the fleet's real satellite and workers at random, between a fake server and the spool.

The appliance is the one of machine.py; its windows are transcribed by two workers. Time passes for
them only when the machine lets it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from protocol.house import text_of
from protocol.machine import PAUSES_S, BrokerMachine
from protocol.nats import (
    NODE,
    FakeClient,
    FakeFleetLink,
    FakeServer,
    QueuedWindow,
    VirtualLoop,
)
from rigs.transcriber import HEARD

from appliance.config import GateSettings
from appliance.errors import ServerError
from appliance.fleet.link import Link
from appliance.fleet.messages import Job, Refusal
from appliance.fleet.satellite import AGAIN_S, Satellite
from appliance.fleet.worker import DELIVERIES, FleetWorker, OwnRoom
from appliance.infer import Deliver, Model as SpeechModel, Pending, Request
from appliance.records import Transcription, Window

SPEECH_MODEL = cast(
    "SpeechModel",
    SimpleNamespace(name="fake", title="Fake", language="en", languages=("en",), window_s=10.0),
)
WHICH = st.integers(0, 3)


class Post:
    """A worker and the window that it has."""

    def __init__(self, machine: FleetMachine, name: str) -> None:
        self._machine, self.name = machine, name
        self.window: QueuedWindow | None = None
        self.answered = False
        self._submitted: Window | None = None
        self._answer: Callable[[Transcription], object] | None = None
        self._task: asyncio.Task[None] | None = None
        self._begin()

    def _begin(self) -> None:
        machine = self._machine
        link = FakeFleetLink(machine.house.clock, machine.loop, self.name)
        room = OwnRoom(
            lambda: SPEECH_MODEL, self._submit, lambda: 0, lambda _: None, lambda _: None
        )
        self._worker = FleetWorker(cast("Link", link), room, GateSettings())
        self._client: FakeClient = link.connect(machine.server, serve=False)

    def _submit(self, request: Request, deliver: Deliver) -> Pending:
        self._submitted, self._answer = request.window, partial(deliver, request)
        return Pending()

    def fetch(self) -> None:
        """Get the next window."""
        self.window = self._machine.server.queue.popleft()
        self.window.deliveries += 1
        self.window.confirmed = None
        work = self._worker._process(cast("Any", self._client), cast("Any", self.window))
        self._task = self._machine.loop.create_task(work)

    @property
    def works(self) -> bool:
        """True while it transcribes."""
        return self.window is not None and not self.answered and self._submitted is not None

    def transcribe(self) -> None:
        """Say what was spoken."""
        assert self._submitted and self._answer
        text = text_of(self._submitted.id)
        self._submitted = None
        self._answer(replace(HEARD, text=text))

    def confirm(self) -> None:
        """Let its confirmation through."""
        assert self.window and self.window.confirmed
        self.window.confirmed.set_result(None)
        self._free()

    def die(self) -> None:
        """End without a word; its window waits again, unless the server has lost it."""
        if self._task:
            self._task.cancel()
        self._free()
        self._begin()

    def _free(self) -> None:
        self.window, self.answered, self._submitted = None, False, None


class FleetMachine(BrokerMachine):
    """Microphone to subscriber, by two workers."""

    workers = 2

    def __init__(self) -> None:
        super().__init__()
        for name in ("satellite", "worker", "messages"):
            self.patch.setattr(sys.modules[f"appliance.fleet.{name}"], "time", self.house.clock)
        self.loop = VirtualLoop(self.house.clock)
        self.server = FakeServer(self.house.clock)
        self.server.on_window = self.on_window
        self.asked: asyncio.Task[Transcription | Refusal] | None = None
        self.posts = [Post(self, name) for name in ("attic", "cellar")]
        self.on_up()

    def close(self) -> None:
        """Take the fakes back."""
        self.on_down()
        for post in self.posts:
            post.die()
        self.loop.settle()
        self.loop.close()
        super().close()

    def on_window(self) -> None:
        """Check a window at the moment when it leaves."""
        assert not self.ledger.muted, "[mute] sound leaves while it is muted"

    # the satellite

    def on_up(self) -> None:
        """Connect the new process."""
        if not hasattr(self, "posts"):
            return
        self.link = FakeFleetLink(self.house.clock, self.loop, NODE)
        self.satellite = Satellite(cast("Link", self.link), is_muted=lambda: self.house.up.mute.on)
        self.satellite.start()
        self.server.satellite = self.link.connect(self.server, serve=True)
        self.loop.settle()

    def on_down(self) -> None:
        """End what the process was doing."""
        self.server.satellite = None
        self.link.end()
        if self.asked:
            self.asked.cancel()
            self.asked = None
        self.loop.settle()

    def _ask(self) -> None:
        lease = self.house.up.lease
        assert lease
        window = replace(lease.window, utterance_id=f"utterance-{lease.window.id}")
        self.asked = self.loop.create_task(self.satellite._exchange(Job(window, NODE)))

    def run_fleet(self) -> None:
        """Let satellite and workers do what is due."""
        self.server.expire()
        self.loop.settle()
        if self.asked and self.asked.done() and self._answer() is None:
            self._ask()  # as the daemon does after each failure
            self.loop.settle()
        for post in self.posts:
            if post.window and post.window.confirmed and not post.answered:
                post.answered = True

    def _answer(self) -> Transcription | None:
        """Return the text that the satellite got; None for a failure or a refusal."""
        assert self.asked
        try:
            result = self.asked.result()
        except (ServerError, TimeoutError):
            return None
        return None if isinstance(result, Refusal) else result

    @precondition(lambda self: self.up and not self.leased and bool(self.house.up.backlog))
    @rule()
    def lease(self) -> None:
        """The oldest window is leased, and sent."""
        self.house.lease()
        self.house.tick()
        self._ask()
        self.run_fleet()

    @rule(seconds=st.sampled_from(PAUSES_S))
    def wait(self, seconds: float) -> None:
        """Time passes; a worker may give up its window."""
        self.house.tick(seconds)
        self.run_fleet()

    @rule()
    def fleet_goes_on(self) -> None:
        """Satellite and workers do what is due."""
        self.run_fleet()

    def may_hang(self) -> bool:
        """Return True if no window is on its way through the fleet."""
        return not (self.leased or self.server.queue or self._busy())

    # workers

    def _busy(self) -> list[Post]:
        return [one for one in self.posts if one.window]

    @precondition(lambda self: self.server.queue and len(self._busy()) < len(self.posts))
    @rule()
    def worker_fetches(self) -> None:
        """A worker gets the oldest window."""
        idle = next(one for one in self.posts if not one.window)
        idle.fetch()
        self.run_fleet()

    @precondition(lambda self: any(one.works for one in self.posts))
    @rule(which=WHICH)
    def worker_answers(self, which: int) -> None:
        """A worker has transcribed its window."""
        at_work = [one for one in self.posts if one.works]
        at_work[which % len(at_work)].transcribe()
        self.run_fleet()

    @precondition(lambda self: any(one.answered for one in self.posts))
    @rule(which=WHICH)
    def worker_confirms(self, which: int) -> None:
        """The server gets a worker's confirmation."""
        ready = [one for one in self.posts if one.answered]
        ready[which % len(ready)].confirm()
        self.run_fleet()

    @precondition(
        lambda self: any(
            one.window and one.window.deliveries < DELIVERIES - 1 for one in self.posts
        )
    )
    @rule(which=WHICH)
    def worker_dies(self, which: int) -> None:
        """A worker dies, and another one takes its place."""
        busy = [one for one in self.posts if one.window and one.window.deliveries < DELIVERIES - 1]
        post = busy[which % len(busy)]
        assert post.window
        window = post.window
        post.die()
        self.server.queue.appendleft(window)
        self.run_fleet()

    # server and network

    @precondition(lambda self: self.leased and self.server.answers)
    @rule(which=WHICH)
    def answer_arrives(self, which: int) -> None:
        """An answer arrives at the satellite, in any order."""
        arrived = self.server.deliver(which % len(self.server.answers))
        self.loop.settle()
        lease = self.house.up.lease
        assert lease and self.asked
        if arrived == lease.window.id and not self.asked.done():
            self.house.clock.advance(AGAIN_S)  # it has the answer, and pauses between two sendings
            self.loop.settle()
        if self.asked.done() and (text := self._answer()):
            self._finish(text)
            self.house.tick()
        else:
            self.run_fleet()

    def _finish(self, text: Transcription) -> None:
        """Store the text of the leased window."""
        self.asked = None
        writer = self.house.up.writer
        writer.text = text.text
        self.house.transcribe()
        if self.up:
            writer.text = None

    @precondition(lambda self: self.server.answers)
    @rule(which=WHICH)
    def answer_is_lost(self, which: int) -> None:
        """The network loses an answer."""
        self.server.answers.pop(which % len(self.server.answers))
        self.run_fleet()

    @precondition(lambda self: 0 < len(self.server.answers) < 3)
    @rule(which=WHICH)
    def answer_is_doubled(self, which: int) -> None:
        """The network doubles an answer."""
        again = self.server.answers[which % len(self.server.answers)]
        self.server.answers.append(again)
        self.run_fleet()

    @precondition(lambda self: self.up and self.leased)
    @rule()
    def satellite_reconnects(self) -> None:
        """The satellite's connection breaks, and it makes another."""
        self.server.satellite = self.link.connect(self.server, serve=True)
        self.house.clock.advance(0.2)
        self.run_fleet()

    @precondition(lambda self: self.server.queue or self._busy())
    @rule()
    def server_restarts(self) -> None:
        """The server loses its stream, and everybody connects again."""
        self.server.forget()
        for post in self._busy():
            post.die()
        self.house.clock.advance(0.2)
        if self.up:
            self.server.satellite = self.link.connect(self.server, serve=True)
        self.run_fleet()

    # the end

    def transcribe_leased(self) -> None:
        """Let workers and network do their work until the leased window has its text."""
        for _ in range(200):
            if not self.asked:
                self._ask()
            self.run_fleet()
            assert self.asked
            if self.asked.done() and (text := self._answer()):
                self._finish(text)
                return
            for post in self.posts:
                if post.answered:
                    post.confirm()
                elif post.works:
                    post.transcribe()
                elif not post.window and self.server.queue:
                    post.fetch()
            while self.server.answers:
                self.server.deliver(0)
            self.house.clock.advance(0.5)
        raise AssertionError("[delivery] the leased window gets no text")
