"""Several rooms, of which one or two transcribe for all: workers die and hang, the server is
killed, links are slow and cut, and every sentence is written down once, in order, in the
room where it was said. With real daemons and a real nats-server.

deaths    kill -9 and SIGSTOP of one of two workers at random moments, three satellites
server    the server killed and started again; its streams are gone each time
crowd     eight satellites on one slow worker: bounded queues, the oldest dropped with a count
links     2 Mbit/s, 300 ms, 5 % loss, and cuts, before a satellite and before a worker
"""

from __future__ import annotations

import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from resilience.rooms import House, Room, Satellite, Speaking, all_told, judge
from rigs.fleet import Bus
from rigs.link import Link, Quality
from rigs.nats import NatsServer
from rigs.waiting import holds

ACK_WAIT_S = 3.0
"""The lease of a window: appliance/fleet renews it while it works."""
REDONE_S = ACK_WAIT_S + 1.0


@dataclass
class Outcome:
    """What came of one scene."""

    name: str
    figures: str = ""
    faults: list[str] = field(default_factory=list)
    kills: int = 0

    def must(self, holds_: object, fault: str) -> None:
        """Notes a fault where something does not hold."""
        if not holds_:
            self.faults.append(fault)

    def __str__(self) -> str:
        return f"fleet: {self.name}: {self.figures}" + (
            f"; BROKEN: {'; '.join(self.faults)}" if self.faults else ""
        )


class Plan(NamedTuple):
    """How a scene is played."""

    seed: int
    short: bool
    kills: int | None = None
    """Where many are killed, so many."""


Scene = Callable[[Outcome, Plan], None]
"""What came of it is noted."""


def _told(outcome: Outcome, satellites: Sequence[Satellite], *, within_s: float = 90.0) -> str:
    """Every sentence, once, in order; the figures."""
    in_time = all_told(satellites, within_s)
    found, said = judge(satellites)
    waiting = {one.node: one.waiting() for one in satellites if one.waiting()}
    outcome.must(in_time, f"not told after {within_s:g} s: {waiting}")
    outcome.must(not found.broken, str(found))
    if outcome.faults:
        for one in satellites:
            print(f"--- {one.node}\n{one.log()[-3000:]}")
    return f"{said} sentences of {len(satellites)} satellites: {found}"


@contextmanager
def _alive(outcome: Outcome, rooms: Sequence[Room]) -> Iterator[None]:
    """No daemon ends by itself."""
    yield
    for one in rooms:
        outcome.must(one.daemon and one.daemon.alive(), f"{one.node} ended by itself")
        outcome.must("Traceback" not in one.log(), f"{one.node} wrote a traceback")


def deaths(outcome: Outcome, plan: Plan) -> None:
    """Workers die and hang."""
    chance, moments = random.Random(plan.seed), plan.kills or (3 if plan.short else 100)
    killed, hung = 0, 0
    stalls_s: list[float] = []
    with (
        House(plan.seed, 12 if plan.short else 40) as house,
        NatsServer() as server,
        Bus(server.url) as bus,
    ):
        workers = [house.worker(f"worker{one}", [server.url]) for one in (1, 2)]
        satellites = house.satellites(3, [server.url])
        outcome.must(house.serving(bus, *workers), "the workers do not serve")
        with Speaking(satellites) as speaking:
            outcome.must(
                holds(lambda: all(one.heard_s() for one in satellites), 60),
                "no satellite was heard",
            )
            for moment in range(moments):
                time.sleep(chance.uniform(0.0, 1.0))
                worker, begun_s = workers[moment % 2], time.monotonic()
                if moment % 3 == 2 and worker.daemon:
                    hung += 1
                    worker.daemon.process.send_signal(signal.SIGSTOP)
                    time.sleep(chance.uniform(0.5, ACK_WAIT_S + 1.5))
                    worker.daemon.process.send_signal(signal.SIGCONT)
                else:
                    killed += 1
                    worker.kill()
                    time.sleep(chance.uniform(0.0, 0.5))
                    worker.start()
                outcome.must(house.serving(bus, *workers), f"{worker.node} does not come back")
                holds(lambda: all(max(e.heard_s()) > begun_s for e in satellites), 2 * REDONE_S)  # noqa: B023
                stalls_s += [_stall_s(one.heard_s(), begun_s) for one in satellites]
                if speaking.trouble:
                    break
        outcome.must(not speaking.trouble, speaking.trouble)
        with _alive(outcome, [*workers, *satellites]):
            figures = _told(outcome, satellites)
        again = sum(one.counters().get("fleet_redone", 0) for one in satellites)
        late = sum(one.counters().get("fleet_late", 0) for one in satellites)
    stalls_s.sort()
    usual_s = stalls_s[int(0.95 * (len(stalls_s) - 1))]
    outcome.must(
        plan.short or usual_s <= REDONE_S, f"a satellite in twenty waited for {usual_s:.1f} s"
    )
    outcome.kills = killed
    outcome.figures = (
        f"{killed} kills and {hung} stops of workers: {figures}; sent again {again}, late answers "
        f"{late}; longest wait of a satellite around each: median "
        f"{statistics.median(stalls_s):.2f} s, p95 {usual_s:.2f}, longest {stalls_s[-1]:.2f} s"
    )


def _stall_s(heard_s: Sequence[float], moment_s: float) -> float:
    """The pause between two transcripts that has this moment in it, or comes next."""
    before = max((one for one in heard_s if one <= moment_s), default=moment_s)
    after = [one for one in heard_s if one > moment_s]
    gaps = [b - a for a, b in zip([before, *after], after, strict=False)]
    return max(gaps, default=0.0)


def server(outcome: Outcome, plan: Plan) -> None:
    """The server dies, and its streams with it."""
    chance, kills = random.Random(plan.seed), plan.kills or (3 if plan.short else 20)
    back_s: list[float] = []
    with (
        House(plan.seed, 12 if plan.short else 40) as house,
        NatsServer() as server,
        Bus(server.url) as bus,
    ):
        workers = [house.worker(f"worker{one}", [server.url]) for one in (1, 2)]
        satellites = house.satellites(3, [server.url])
        outcome.must(house.serving(bus, *workers), "the workers do not serve")
        with Speaking(satellites) as speaking:
            for _ in range(kills):
                time.sleep(chance.uniform(0.2, 2.0))
                server.kill()
                time.sleep(chance.uniform(0.0, 3.0))
                server.start()
                begun_s = time.monotonic()
                holds(lambda: all(max(e.heard_s(), default=0) > begun_s for e in satellites), 30)  # noqa: B023
                back_s += [
                    min((at for at in one.heard_s() if at > begun_s), default=begun_s + 30)
                    - begun_s
                    for one in satellites
                ]
        outcome.must(not speaking.trouble, speaking.trouble)
        with _alive(outcome, [*workers, *satellites]):
            figures = _told(outcome, satellites)
    outcome.must(max(back_s) < 30, "no transcript within 30 s of the server's return")
    outcome.kills = kills
    outcome.figures = (
        f"{kills} kills of the server: {figures}; first transcript after its return: median "
        f"{statistics.median(back_s):.2f} s, longest {max(back_s):.2f} s"
    )


def crowd(outcome: Outcome, plan: Plan) -> None:
    """More speech than the only worker can digest."""
    number, most = 8, 16 if plan.short else 40
    with House(plan.seed, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        worker = house.worker("worker", [server.url], least_ms=300)
        satellites = house.satellites(
            number, [server.url], spool={"limit_mb": 1}, environment=dict(UNPACED)
        )
        outcome.must(house.serving(bus, worker), "the worker does not serve")
        depths: list[int] = []
        with Speaking(satellites, most) as speaking:
            while not speaking.wait(0.1):
                depths.append(server.stream().get("state", {}).get("messages", 0))
        settled = holds(lambda: not any(_unaccounted(one) for one in satellites), 240, 0.5)
        outcome.must(settled, f"unaccounted: {[_unaccounted(one) for one in satellites]}")
        dropped = sum(_dropped(one) for one in satellites)
        with _alive(outcome, [worker, *satellites]):
            found, said = judge(satellites)
    outcome.must(dropped > 0, "nothing was dropped: no crowd")
    outcome.must(found.lost == dropped, f"lost {found.lost}, counted {dropped}")
    outcome.must(not (found.doubled or found.out_of_order or found.wrong), str(found))
    outcome.must(max(depths) <= 4 * number, f"{max(depths)} windows in the stream")
    outcome.figures = (
        f"{number} satellites, {said} sentences at once: {found}, dropped with a count {dropped}; "
        f"at most {max(depths)} windows in the stream"
    )


UNPACED = {"ROOMSCRIBE_TORTURE_QUEUE": "1000"}
"""The satellite does not wait with its sound for the windows to be transcribed."""


def _dropped(satellite: Satellite) -> int:
    return int(satellite.counters()["discarded"].get("overload", 0))


def _unaccounted(satellite: Satellite) -> int:
    return max(0, satellite.waiting() - _dropped(satellite))


def links(outcome: Outcome, plan: Plan) -> None:
    """A satellite and a worker behind bad links, which are cut."""
    chance, bad = random.Random(plan.seed), Quality(mbit_s=2.0, delay_s=0.3, loss=0.05)
    with (
        House(plan.seed, 12 if plan.short else 40) as house,
        NatsServer() as server,
        Bus(server.url) as bus,
        Link(server.port, bad, plan.seed) as slow_satellite,
        Link(server.port, bad, plan.seed + 1) as slow_worker,
        Link(server.port, Quality(), plan.seed) as cut,
    ):
        workers = [
            house.worker("worker1", [server.url]),
            house.worker("worker2", [slow_worker.url]),
        ]
        satellites = [
            house.satellite("satellite1", [slow_satellite.url]),
            house.satellite("satellite2", [cut.url]),
            house.satellite("satellite3", [server.url]),
        ]
        outcome.must(house.serving(bus, *workers, within_s=2.0), "the workers do not serve")
        with Speaking(satellites, 10 if plan.short else 40) as speaking:
            while not speaking.wait(chance.uniform(0.5, 3.0)):
                chance.choice((cut, cut, slow_satellite, slow_worker)).cut(chance.uniform(0.0, 1.5))
        outcome.must(not speaking.trouble, speaking.trouble)
        with _alive(outcome, [*workers, *satellites]):
            figures = _told(outcome, satellites, within_s=180)
        cuts = slow_satellite.cuts + slow_worker.cuts + cut.cuts
    outcome.figures = f"2 Mbit/s, 300 ms each way, 5 % loss; {cuts} cuts: {figures}"


SCENES: dict[str, Scene] = {
    "deaths": deaths,
    "server": server,
    "crowd": crowd,
    "links": links,
}
IN_SHORT = ("deaths",)


def run(names: Sequence[str], plan: Plan) -> Iterator[Outcome]:
    """What came of each scene."""
    for name in names or (IN_SHORT if plan.short else SCENES):
        outcome = Outcome(name)
        SCENES[name](outcome, plan)
        yield outcome
