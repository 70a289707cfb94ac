"""Rooms of a house, simulated: arbiters, a broker that puts their messages in one order, and time.

Latencies, the ends that rooms find, what they decode and when, kills, restarts and partitions come
from a seed. Nothing sleeps: an hour takes a second.
"""

import functools
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from appliance.house.arbiter import Arbiter, Decision
from appliance.house.claims import Claim, Message
from appliance.house.messages import ClockOffsets, shift

TICK_S = 0.001
DISTURBED_S = 3.5
"""A sentence is disturbed by what happens within this time of its beginning."""


@dataclass
class Room:
    """A node, its clock's offset, and its connection."""

    node: str
    offset_s: float
    arbiter: Arbiter
    latency_s: tuple[float, float] = (0.0005, 0.008)
    up: bool = True
    connected: bool = True
    stalled_until_s: float = 0.0
    """Nothing passes over its link until then, and nobody notices."""
    arrives_s: dict[str, float] = field(default_factory=dict)
    """When the last message in each direction arrives: a connection keeps the order."""
    life: int = 0
    clocks: ClockOffsets = field(default_factory=ClockOffsets)


@dataclass
class Outcome:
    """What came of one sentence."""

    rooms: list[str]
    spoken_s: float
    acted: list[tuple[str, Decision]] = field(default_factory=list)
    decided: dict[str, Decision] = field(default_factory=dict)
    disturbed: bool = False
    """A room was killed or separated while it was heard."""


class House:
    """Rooms and their broker."""

    def __init__(self, nodes: int, seed: int = 1, *, offsets_s: tuple[float, ...] = ()) -> None:
        self.now_s = 1000.0
        self.chance = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.broker_up = True
        self.messages: dict[str, int] = {}
        self.outcomes: dict[str, Outcome] = {}
        self._sentence_of: dict[str, str] = {}
        self.rooms: dict[str, Room] = {}
        for at in range(nodes):
            node = f"room{at}"
            offset_s = offsets_s[at] if at < len(offsets_s) else 0.0
            self.rooms[node] = Room(node, offset_s, Arbiter(node))
        for room in self.rooms.values():
            self._connect(room)
        self.run(30.0)

    # time

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        """Do `what` then."""
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._count), what))

    def run(self, seconds: float) -> None:
        """Let the time pass."""
        end_s = self.now_s + seconds
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, what = heapq.heappop(self._events)
            what()
        self.now_s = end_s

    # connections

    def _connect(self, room: Room) -> None:
        if not (room.up and self.broker_up):
            return
        room.connected = True
        self._do(room, lambda now_s: room.arbiter.set_connected(True, now_s))
        for other in self.rooms.values():
            if other is not room and other.connected and other.up:
                self._tell_online(other, room, True)
                self._tell_online(room, other, True)

    def _tell_online(self, who: Room, to: Room, online: bool) -> None:
        life = to.life
        self.later(
            self._delay(to, "in"),
            lambda: (
                self._do(to, lambda now_s: to.arbiter.set_online(who.node, online, now_s))
                if to.connected and to.life == life
                else None
            ),
        )

    def _disconnect(self, room: Room) -> None:
        if not room.connected:
            return
        room.connected = False
        room.life += 1
        self._disturb(room)
        if room.up:
            self._do(room, lambda now_s: room.arbiter.set_connected(False, now_s))
        if self.broker_up:
            for other in self.rooms.values():
                if other is not room and other.connected:
                    self._tell_online(room, other, False)

    def kill(self, node: str, back_s: float) -> None:
        """kill -9, and a restart that forgets everything."""
        room = self.rooms[node]
        if not room.up:
            return
        room.up = False
        self._disturb(room)
        self._disconnect(room)
        room.stalled_until_s = 0.0

        def restart() -> None:
            room.up = True
            room.arbiter = Arbiter(node)
            self.later(self.chance.uniform(0.05, 1.5), lambda: self._connect(room))

        self.later(back_s, restart)

    def restart_broker(self, away_s: float) -> None:
        """Every connection ends; the rooms come back one by one."""
        self.broker_up = False
        for room in self.rooms.values():
            self._disconnect(room)

        def back() -> None:
            self.broker_up = True
            for room in self.rooms.values():
                pause_s = self.chance.uniform(0.0, 1.0)
                self.later(pause_s, functools.partial(self._connect, room))

        self.later(away_s, back)

    def stall(self, node: str, seconds: float) -> None:
        """Nothing passes over a room's link, which stays up."""
        room = self.rooms[node]
        room.stalled_until_s = self.now_s + seconds
        self._disturb(room)

    def _disturb(self, room: Room) -> None:
        for outcome in self.outcomes.values():
            if room.node in outcome.rooms and self.now_s - outcome.spoken_s < DISTURBED_S:
                outcome.disturbed = True

    # messages

    def _delay(self, room: Room, way: str) -> float:
        arrives_s = max(self.now_s, room.stalled_until_s) + self.chance.uniform(*room.latency_s)
        arrives_s = max(arrives_s, room.arrives_s.get(way, 0.0) + 1e-6)
        room.arrives_s[way] = arrives_s
        return arrives_s - self.now_s

    def _do(self, room: Room, what: Callable[[float], None]) -> None:
        """Let a room's arbiter do something, then publish and obey what it says."""
        now_s = self.now_s + room.offset_s
        what(now_s)
        arbiter = room.arbiter
        while arbiter.outgoing:
            message = arbiter.outgoing.popleft()
            if room.connected:
                self.messages[room.node] = self.messages.get(room.node, 0) + 1
                publish = functools.partial(self._publish, room, message, room.life, now_s)
                self.later(self._delay(room, "out"), publish)
        while arbiter.decisions:
            self._obey(room, arbiter.decisions.popleft())
        due_s = arbiter.due_s(now_s) - room.offset_s
        if due_s < self.now_s + 1e6:
            delay_s = max(TICK_S, due_s - self.now_s)
            self.later(delay_s, functools.partial(self._poll, room, arbiter))

    def _poll(self, room: Room, arbiter: Arbiter) -> None:
        if room.up and room.arbiter is arbiter:
            self._do(room, arbiter.poll)

    def _publish(self, room: Room, message: Message, life: int, sent_s: float) -> None:
        if not self.broker_up or not room.connected or room.life != life:
            return
        for other in self.rooms.values():
            if other.connected and other.up:
                self._deliver(other, message, sent_s)

    def _deliver(self, room: Room, message: Message, sent_s: float) -> None:
        life = room.life

        def arrive() -> None:
            if room.connected and room.up and room.life == life:
                now_s = self.now_s + room.offset_s
                moved = shift(message, room.clocks.observe(message.node, sent_s, now_s))
                self._do(room, lambda now_s: room.arbiter.receive(moved, now_s))

        self.later(self._delay(room, "in"), arrive)

    def _obey(self, room: Room, decision: Decision) -> None:
        outcome = self.outcomes[self._sentence_of[decision.id]]
        if decision.first:
            outcome.decided[room.node] = decision
            if decision.acts:
                outcome.acted.append((room.node, decision))

    # speech

    def speak(
        self,
        name: str,
        scores: dict[str, tuple[int, float]],
        *,
        seconds: float = 1.5,
        jitter_s: float = 0.12,
        ready_s: tuple[float, float] = (0.35, 0.9),
        sketch: bytes = b"",
    ) -> None:
        """Let the rooms hear a sentence from now on, with these grades and scores."""
        self.outcomes[name] = outcome = Outcome(list(scores), self.now_s)
        for node, (grade, score) in scores.items():
            room = self.rooms[node]
            outcome.disturbed |= not (room.up and room.connected)
            outcome.disturbed |= room.stalled_until_s > self.now_s
            begin_s = self.now_s + abs(self.chance.gauss(0, jitter_s))
            end_s = self.now_s + seconds + self.chance.uniform(-jitter_s, jitter_s)
            ready = end_s + self.chance.uniform(*ready_s)
            claim = Claim(
                node, f"{name}-{node}", f"u-{name}-{node}", begin_s, end_s, grade, score, sketch
            )
            self._sentence_of[claim.id] = name
            self.later(begin_s + 0.1 - self.now_s, self._hearing(room, claim))
            self.later(ready - self.now_s, self._claiming(room, claim))

    def _hearing(self, room: Room, claim: Claim) -> Callable[[], None]:
        def hear() -> None:
            if room.up:
                start_s = claim.start_s + room.offset_s
                self._do(room, lambda now_s: room.arbiter.hear(claim.utterance, start_s, now_s))

        return hear

    def _claiming(self, room: Room, claim: Claim) -> Callable[[], None]:
        def say() -> None:
            if room.up:
                moved = shift(claim, room.offset_s)
                assert isinstance(moved, Claim)
                self._do(room, lambda now_s: room.arbiter.claim(moved, now_s))
            else:  # the window is in the spool: transcribed after the restart
                self.later(0.5, say)

        return say
