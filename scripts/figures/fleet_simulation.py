"""Simulate a fleet event by event: one appliance, a house and a large site.

    scripts/measure fleet --simulate 2000 [--service-ms 60] [--per-hour 60] [--check]

The model: each room says sentences at random times (a Poisson process) with lognormal lengths. A
sentence is two windows, a speculative one and the last one. A window passes the room's link, the
link of a leaf node if there are any, the server's core and the server's link, then waits for a
worker. Links and cores work on one window after the other. A worker takes a lognormal time; if it
dies, the server gives its window to another one when the lease ends. Nothing here is measured
except the constants, which name their source; `--check` compares the model with measured points.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

BYTES_PER_S, HEAD_BYTES = 15_000, 500
"""FLAC of a second of speech, and headers: 45 kB for 3 s (docs/fleet.md, How it grows)."""
SERVER_S = 0.05 / 189
"""Seconds of a core per window: a server limited to 5 % of one carried 176 to 189 windows/s."""
HOP_S = 0.0003
"""Latency of a wired hop; on loopback, a round trip over four took 1.7 ms (p50)."""
WORKER_S = 0.008
"""Seconds that a worker needs beside the model: on loopback 9.3 ms in all, with the hops."""
LEASE_S, REPORT_S = 3.0, 1.0
"""Of appliance/fleet/worker.py: the server's patience with a worker, and how often it reports."""
PATIENCE_S, BUSY_S = 5.0, 10.0
"""A satellite's patience; a window that waited for twice as long is refused."""
MEMORY, MEMORY_BYTES = "the server's memory", 64_000_000
"""What `fleet join --serve` lets the server keep."""
MEAN_S, SIGMA = 2.7, 0.5
"""Length of a sentence: its mean, and the sigma of its logarithm (assumed)."""
USUAL_LOAD = 0.7
"""Share of the time that workers are busy, at most, when workers are counted."""


Action = Callable[..., None]


@dataclass
class Line:
    """A link or a core: works on one window after the other."""

    bytes_per_s: float = math.inf
    each_s: float = 0.0
    free_s: float = 0.0
    busy_s: float = 0.0

    def passed(self, now_s: float, size: int) -> float:
        """Return when a window that arrives now has passed."""
        takes_s = self.each_s + size / self.bytes_per_s
        self.free_s = max(now_s, self.free_s) + takes_s
        self.busy_s += takes_s
        return self.free_s


@dataclass(frozen=True)
class Plan:
    """What is simulated."""

    rooms: int
    workers: int
    service_s: float
    """Mean seconds of a worker for a window."""
    spread: float = 0.4
    """Sigma of the logarithm of these seconds."""
    worker_s: float = WORKER_S
    per_hour: float = 60.0
    """Sentences of a room in an hour."""
    every_s: float | None = None
    """In place of sentences: a window of 3 s this often, one at a time."""
    room_mbit: float = 20.0
    server_mbit: float = 1000.0
    leaves: int = 0
    """Leaf nodes between rooms and server."""
    leaf_mbit: float = 100.0
    server_share: float = 1.0
    """Share of a core that the server has."""
    deaths: tuple[float, ...] = ()
    """Moments at which a worker dies; it is back 10 s later."""
    for_s: float = 600.0
    seed: int = 1


@dataclass
class Window:
    """A window of a room."""

    room: int
    size: int
    sent_s: float


@dataclass
class Simulation:
    """Runs a plan; each answer is a room, its time of sending and its delay, in seconds."""

    plan: Plan
    answers: list[tuple[int, float, float]] = field(default_factory=list)
    sent: int = 0
    bytes: int = 0
    refused: int = 0
    peak_bytes: int = 0
    """Most bytes that waited at the server."""
    busy_s: float = 0.0

    def __post_init__(self) -> None:
        plan = self.plan
        self.chance = random.Random(plan.seed)
        self.now_s, self._count = 0.0, 0
        self._events: list[tuple[float, int, Action, tuple[object, ...]]] = []
        self._queue: deque[Window] = deque()
        self._waiting_bytes = 0
        self._working: list[Window | None] = [None] * plan.workers
        self._began_s = [0.0] * plan.workers
        self._life = [0] * plan.workers
        self._dead = [False] * plan.workers
        self.rooms = [Line(plan.room_mbit * 125_000) for _ in range(plan.rooms)]
        self.leaves = [Line(plan.leaf_mbit * 125_000, SERVER_S) for _ in range(plan.leaves)]
        self.core = Line(each_s=SERVER_S / plan.server_share)
        self.arriving, self.leaving = (Line(plan.server_mbit * 125_000) for _ in range(2))

    def run(self) -> Simulation:
        """Simulate, and return itself."""
        plan = self.plan
        for room in range(plan.rooms):
            if plan.every_s is not None:
                first_s = self.chance.uniform(0, plan.every_s)
            else:  # from the first second on, as many sentences as later
                first_s = self.chance.expovariate(plan.per_hour / 3600)
            self._at(first_s, self._speak, room)
        for number, moment_s in enumerate(plan.deaths):
            self._at(moment_s, self._die, number % plan.workers)
        while self._events and self._events[0][0] < plan.for_s:
            self.now_s, _, action, given = heapq.heappop(self._events)
            action(*given)
        return self

    def _at(self, moment_s: float, action: Action, *given: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (moment_s, self._count, action, given))

    def _speak(self, room: int) -> None:
        """A room sends: one window, or both of a sentence and then plans the next sentence."""
        if self.plan.every_s is not None:
            self._send(room, 3.0)
            if self.plan.every_s >= PATIENCE_S:
                self._at(self.now_s + self.plan.every_s, self._speak, room)
            return
        length_s = min(10.0, self.chance.lognormvariate(math.log(MEAN_S) - SIGMA**2 / 2, SIGMA))
        self._at(self.now_s + length_s + 0.2, self._send, room, length_s)
        self._at(self.now_s + length_s + 0.6, self._send, room, length_s)
        pause_s = self.chance.expovariate(1 / max(0.5, 3600 / self.plan.per_hour - MEAN_S))
        self._at(self.now_s + length_s + pause_s, self._speak, room)

    def _send(self, room: int, length_s: float) -> None:
        window = Window(room, int(length_s * BYTES_PER_S) + HEAD_BYTES, self.now_s)
        self.sent += 1
        self.bytes += window.size
        self._at(self.rooms[room].passed(self.now_s, window.size) + HOP_S, self._arrive, window)

    def _arrive(self, window: Window, at_leaf: bool = True) -> None:
        """A window reaches its leaf node, if it has one, or the server."""
        if at_leaf and self.leaves:
            leaf = self.leaves[window.room % len(self.leaves)]
            done_s = leaf.passed(self.now_s, window.size) + HOP_S
            self._at(done_s, self._arrive, window, False)
            return
        done_s = self.core.passed(self.arriving.passed(self.now_s, window.size), 0)
        self._at(done_s, self._wait, window)

    def _wait(self, window: Window, first: bool = False) -> None:
        """A window waits at the server; a window whose worker died is the `first` one."""
        (self._queue.appendleft if first else self._queue.append)(window)
        self._waiting_bytes += window.size
        self.peak_bytes = max(self.peak_bytes, self._waiting_bytes)
        self._give()

    def _give(self) -> None:
        """Give waiting windows to idle workers."""
        idle = [
            one for one, window in enumerate(self._working) if not window and not self._dead[one]
        ]
        while idle and self._queue:
            window = self._queue.popleft()
            self._waiting_bytes -= window.size
            if self.now_s - window.sent_s > BUSY_S:
                self.refused += 1
                continue
            worker = idle.pop(self.chance.randrange(len(idle)))
            mean_s, spread = self.plan.service_s, self.plan.spread
            takes_s = mean_s * self.chance.lognormvariate(-(spread**2) / 2, spread)
            takes_s += self.plan.worker_s
            begin_s = self.leaving.passed(self.now_s, window.size) + 2 * HOP_S
            self._working[worker], self._began_s[worker] = window, begin_s
            self.busy_s += takes_s
            self._at(begin_s + takes_s, self._done, worker, self._life[worker])

    def _done(self, worker: int, life: int) -> None:
        window = self._working[worker]
        if life != self._life[worker] or window is None:
            return
        self._working[worker] = None
        delay_s = self.now_s + 2 * HOP_S - window.sent_s
        self.answers.append((window.room, window.sent_s, delay_s))
        if self.plan.every_s is not None and self.plan.every_s < PATIENCE_S:
            self._at(max(self.now_s, window.sent_s + self.plan.every_s), self._speak, window.room)
        self._give()

    def _die(self, worker: int) -> None:
        """A worker dies; its window waits for the end of the lease."""
        window, self._working[worker] = self._working[worker], None
        self._dead[worker] = True
        self._life[worker] += 1
        if window:
            reports = max(0.0, self.now_s - self._began_s[worker]) // REPORT_S
            lease_ends_s = self._began_s[worker] + reports * REPORT_S + LEASE_S
            self._at(lease_ends_s, self._wait, window, True)
        self._at(self.now_s + 10.0, self._return, worker)

    def _return(self, worker: int) -> None:
        self._dead[worker] = False
        self._give()

    def delays(self, since_s: float = 0.0, until_s: float = math.inf) -> list[float]:
        """Return the delays of windows sent between two moments, sorted."""
        return sorted(delay for _, sent, delay in self.answers if since_s <= sent < until_s)

    def late_share(self) -> float:
        """Return the share of windows without an answer within a satellite's patience."""
        due = self.sent * (1 - PATIENCE_S / self.plan.for_s)
        in_time = sum(delay <= PATIENCE_S for _, _, delay in self.answers)
        return max(0.0, 1 - in_time / max(1.0, due))

    def loads(self) -> dict[str, float]:
        """Return the busy share of each part."""
        plan = self.plan
        parts = {
            "the workers": self.busy_s / plan.workers,
            "a room's link": max(one.busy_s for one in self.rooms),
            "the server's link": max(self.arriving.busy_s, self.leaving.busy_s),
            "the server's core": self.core.busy_s,
        }
        if self.leaves:
            parts["a leaf node's link"] = max(one.busy_s for one in self.leaves)
        loads = {name: min(1.0, busy_s / plan.for_s) for name, busy_s in parts.items()}
        return loads | {MEMORY: min(1.0, self.peak_bytes / MEMORY_BYTES)}


def quantile(ordered: list[float], share: float) -> float:
    """Return the smallest value that `share` of the sorted values do not exceed; NaN for none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def enough_workers(rooms: int, service_s: float, per_hour: float) -> int:
    """Return how many workers `rooms` need; from two rooms on one more than that, as a spare."""
    busy = rooms * 2 * per_hour / 3600 * (service_s + WORKER_S)
    return max(1, math.ceil(busy / USUAL_LOAD)) + (rooms > 1)


def limit(plan: Plan) -> str:
    """Return what fails first if people speak more, and at how many times the sentences."""
    for times in (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
        more = replace(plan, per_hour=plan.per_hour * times, for_s=120.0, deaths=())
        found = Simulation(more).run()
        if found.late_share() > 0.01 or quantile(found.delays(), 0.95) > 2.0:
            loads = found.loads()
            if sorted(loads.values())[-2] > 0.9:
                del loads[MEMORY]  # it fills because another part is too slow
            return f"{max(loads, key=lambda name: loads[name])}, at {times:g} times the speech"
        if plan.per_hour * times * MEAN_S > 3600:
            return "nothing: every room speaks without a pause"
    return "nothing up to 64 times the speech"


def described(name: str, plan: Plan) -> str:
    """Return lines about a plan; with several workers, also with a death once a minute."""
    found = Simulation(plan).run()
    all_ms = [1000 * delay_s for delay_s in found.delays()]
    worst = sorted(found.loads().items(), key=lambda one: -one[1])[:2]
    lines = [
        f"{name}: {plan.workers} worker(s) of {1000 * plan.service_s:g} ms, "
        f"{found.sent / plan.for_s:.2f} windows/s",
        f"  the server receives and sends {found.bytes * 8e-6 / plan.for_s:.2f} Mbit/s",
        f"  delay p50 {quantile(all_ms, 0.5):.0f} ms, p95 {quantile(all_ms, 0.95):.0f} ms",
        f"  busiest: {', '.join(f'{part} {busy:.1%}' for part, busy in worst)}",
        f"  fails first: {limit(plan)}",
    ]
    if plan.workers > 1:
        deaths = tuple(30.0 + 60.0 * number for number in range(int(plan.for_s // 60)))
        dying = Simulation(replace(plan, deaths=deaths)).run()
        near_s = sorted(delay for one in deaths for delay in dying.delays(one - 1, one + 10))
        death = f"p95 {1000 * quantile(near_s, 0.95):.0f} ms, at most {near_s[-1]:.1f} s"
        lines.insert(3, f"  while a worker dies: {death}")
    return "\n".join(lines)


def simulate(rooms: int, service_ms: float, per_hour: float) -> Iterator[str]:
    """Yield a line for one appliance, a house and sites of `rooms` rooms."""
    service_s = service_ms / 1000

    def plan(rooms: int, **more: float) -> Plan:
        workers = enough_workers(rooms, service_s, per_hour)
        return Plan(rooms, workers, service_s, per_hour=per_hour, **more)  # type: ignore[arg-type]

    here = plan(1, room_mbit=math.inf, server_mbit=math.inf, server_share=math.inf)
    yield described("one appliance (nothing leaves it)", here)
    house = min(10, rooms)
    yield described(f"a house of {house} rooms", plan(house))
    yield described(f"a site of {rooms} rooms, one server", plan(rooms))
    leaves = max(1, rooms // 200)
    yield described(f"the same with {leaves} leaf nodes", plan(rooms, leaves=leaves))
    each = max(1, rooms // leaves)
    yield described(f"the same as {leaves} sites of {each} rooms, each of them", plan(each))


def compare() -> Iterator[str]:
    """Yield lines that compare the model with measured points (docs/fleet.md, docs/figures.md)."""
    yield "measured -> simulated"
    for rooms, workers, service_s, measured in (
        (3, 1, 0.2, 4.12), (3, 2, 0.2, 8.24),
        (10, 2, 0.3, 6.9), (20, 2, 0.3, 6.4), (40, 2, 0.3, 6.7),
    ):  # fmt: skip
        plan = Plan(rooms, workers, service_s, 0.0, every_s=0.0, for_s=120.0)
        made = len(Simulation(plan).run().answers) / plan.for_s
        yield (
            f"{rooms} satellites, {workers} worker(s) of {1000 * service_s:.0f} ms: "
            f"{measured} -> {made:.1f} windows/s"
        )
    for every_s, share, points in (
        (5.0, 1.0, "39 windows/s, p50 1.7, p95 21"), (1.0, 1.0, "196 windows/s, p50 2.7, p95 55"),
        (2.0, 0.05, "97 windows/s, p50 11, p95 407"), (1.0, 0.05, "176 windows/s, p50 900 to 1000"),
    ):  # fmt: skip
        plan = Plan(200, 16, 0.0, 0.0, 0.0, every_s=every_s, server_share=share, for_s=60.0,
                    room_mbit=math.inf, server_mbit=math.inf)  # fmt: skip
        on = f"{share:.0%} of a core"
        yield f"200 satellites every {every_s:g} s, {on}: {points} ms -> {summary(plan)}"
    for every_s, service_s, points in (
        (30.0, 0.08, "7 windows/s, p50 115, p95 629 ms"),
        (15.0, 0.18, "9 windows/s, p50 476, p95 4300 ms, a third late"),
    ):
        plan = Plan(200, 2, service_s, 1.0, every_s=every_s, for_s=2 * every_s)
        of = f"2 workers of {1000 * service_s:.0f} ms"  # 80: `trip`; 180: fitted
        yield f"200 satellites every {every_s:g} s, {of}: {points} -> {summary(plan)}"
    deaths = tuple(20.0 + 20.0 * number + 0.37 * (number % 7) for number in range(100))
    found = Simulation(Plan(3, 2, 0.08, every_s=0.0, for_s=2030.0, deaths=deaths)).run()
    longest: dict[tuple[int, int], float] = {}
    for room, sent_s, delay_s in found.answers:
        around = int((sent_s - 19.0) // 20.0), room
        longest[around] = max(delay_s, longest.get(around, 0.0))
    waits = sorted(longest.values())
    yield (
        "a satellite's longest wait around a worker's death: p50 0.48, p95 3.4, at most 5.8 s -> "
        f"p50 {quantile(waits, 0.5):.2f}, p95 {quantile(waits, 0.95):.2f}, "
        f"at most {waits[-1]:.1f} s"
    )
    yield "not measured: 50 satellites, more than 200, leaf nodes, several deaths at once"


def summary(plan: Plan) -> str:
    """Return what the simulation of a plan found, in one line."""
    found = Simulation(plan).run()
    in_time_ms = [1000 * delay_s for delay_s in found.delays() if delay_s <= PATIENCE_S]
    return (
        f"{len(in_time_ms) / plan.for_s:.0f} windows/s, p50 {quantile(in_time_ms, 0.5):.1f}, "
        f"p95 {quantile(in_time_ms, 0.95):.1f} ms, {found.late_share():.0%} late"
    )
