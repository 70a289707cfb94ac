"""Several rooms, of which one or two transcribe for all: workers die and hang, the server is
killed, links are slow and cut, and every sentence is written down once, in order, in the
room where it was said. With real daemons and a real nats-server.

deaths    kill -9 and SIGSTOP of one of two workers at random moments, three satellites
server    the server killed and started again; its streams are gone each time
cluster   three servers, of which each in turn is killed
unequal   two workers, one of them slow: the load follows speed
crowd     eight satellites on one slow worker: bounded queues, the oldest dropped with a count
links     2 Mbit/s, 300 ms, 5 % loss, and cuts, before a satellite and before a worker
quiet     muted and idle: no sound leaves; no file of the server has any of it
versions  messages of newer and older versions, and none at all
refused   a wrong password, and a subject that is somebody else's
alone     the only worker goes, and comes back: a satellite's own model writes meanwhile
left      a satellite is killed while no worker works
lease     the control: where windows are acknowledged at once, sentences must be lost

Over 500 lines because the scenes share how they are judged, and each is read alone.
"""

from __future__ import annotations

import json
import random
import re
import signal
import ssl
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from resilience.accounts import spooled
from resilience.rooms import House, Room, Satellite, Speaking, all_told, judge
from rigs.fleet import Bus
from rigs.link import Link, Quality
from rigs.nats import Cluster, NatsServer
from rigs.waiting import holds
from rigs.wyoming import free_port

from appliance.fleet.messages import WINDOW_HEADER, Job, pack_window
from appliance.fleet.provisioning import AUTHORITY, CONFIG, FleetServer
from appliance.records import Window

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


def cluster(outcome: Outcome, plan: Plan) -> None:
    """Of three servers one dies, each in turn."""
    chance, behind = random.Random(plan.seed), 0
    stalls_s: list[float] = []
    with (
        House(plan.seed, 12 if plan.short else 40) as house,
        Cluster() as three,
        Bus(*three.urls) as bus,
    ):
        workers = [house.worker(f"worker{one}", three.urls) for one in (1, 2)]
        satellites = house.satellites(3, three.urls)
        outcome.must(house.serving(bus, *workers), "the workers do not serve")
        replicas = [one.stream().get("config", {}).get("num_replicas") for one in three.servers]
        with Speaking(satellites) as speaking:
            outcome.must(
                holds(lambda: all(one.heard_s() for one in satellites), 60),
                "no satellite was heard",
            )
            for node in three.servers * (1 if plan.short else 3):
                time.sleep(chance.uniform(0.5, 2.0))
                begun_s = time.monotonic()
                node.kill()
                outcome.must(
                    holds(lambda: all(max(e.heard_s()) > begun_s for e in satellites), 30),  # noqa: B023
                    "no transcript while one server of three was away",
                )
                time.sleep(1.0)
                stalls_s += [_stall_s(one.heard_s(), begun_s) for one in satellites]
                node.start()
                behind += not holds(lambda: _apart(three) <= NEARLY_ALIKE, 60, 0.2)
        outcome.must(not speaking.trouble, speaking.trouble)
        with _alive(outcome, [*workers, *satellites]):
            figures = _told(outcome, satellites)
        version = str(three.servers[0].monitor("varz")["version"])
    outcome.must(not behind or version.startswith("2.9."), f"{behind} have not caught up in 60 s")
    outcome.must(max(replicas, key=lambda one: one or 0) == 3, f"replicas: {replicas}")
    outcome.kills = len(stalls_s) // 3
    outcome.figures = (
        f"{len(stalls_s) // 3} kills of one server of three (nats-server {version}; "
        f"{behind} were still behind the others a minute later): {figures}; wait around each: "
        f"median {statistics.median(stalls_s):.2f} s, longest {max(stalls_s):.2f} s"
    )


NEARLY_ALIKE = 8
"""Windows that one server of three may be behind: what is on its way."""


def _apart(three: Cluster) -> int:
    """How many windows the servers' copies of the stream are apart; many while one does not say."""
    try:
        found = [one.stream().get("state", {}).get("last_seq", 0) for one in three.servers]
    except OSError:
        return 1_000_000
    return max(found) - min(found) if min(found) else 1_000_000


def unequal(outcome: Outcome, plan: Plan) -> None:
    """One worker is eight times slower than the other."""
    fast_ms, slow_ms = 50, 400
    with House(plan.seed, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        workers = [
            house.worker(name, [server.url], least_ms=least_ms)
            for name, least_ms in (("fast", fast_ms), ("slow", slow_ms))
        ]
        satellites = house.satellites(3, [server.url])
        outcome.must(house.serving(bus, *workers), "the workers do not serve")
        with Speaking(satellites, 15 if plan.short else 60) as speaking:
            outcome.must(speaking.wait(240), "the satellites are not done")
        with _alive(outcome, [*workers, *satellites]):
            figures = _told(outcome, satellites)
        done = {name: one["done"] for name, one in bus.workers().items()}
    outcome.must(done["fast"] > 2 * done["slow"] > 0, f"shares: {done}")
    outcome.figures = f"{fast_ms} and {slow_ms} ms a window: {figures}; done by each: {done}"


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


def left(outcome: Outcome, plan: Plan) -> None:
    """A satellite dies while its windows wait for a worker."""
    rounds = 1 if plan.short else 10
    with House(plan.seed, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        worker = house.worker("worker", [server.url])
        satellites = house.satellites(1, [server.url])
        outcome.must(house.serving(bus, worker), "the worker does not serve")
        satellite = satellites[0]
        satellite.speak(lambda: True, 1)
        all_told(satellites, 30)
        recovered = 0
        for _ in range(rounds):
            if worker.daemon:
                worker.daemon.process.send_signal(signal.SIGSTOP)
            satellite.speak(lambda: True, 2)
            waits = holds(lambda: len(spooled(satellite.place.spool)) >= 2, 20)
            outcome.must(waits, "the windows do not wait in the spool")
            satellite.kill()
            recovered += len(spooled(satellite.place.spool))
            if worker.daemon:
                worker.daemon.process.send_signal(signal.SIGCONT)
            satellite.start()
            outcome.must(all_told(satellites, 30), "what waited was not written down")
        with _alive(outcome, [worker, satellite]):
            figures = _told(outcome, satellites)
    outcome.kills = rounds
    outcome.figures = (
        f"{rounds} kills of a satellite with {recovered} windows in its spool: {figures}"
    )


def quiet(outcome: Outcome, plan: Plan) -> None:
    """What is said leaves the room as a window for a worker, and else not at all."""
    with (
        House(plan.seed, 12) as house,
        NatsServer() as server,
        Bus(server.url) as bus,
        Link(server.port) as link,
    ):
        worker = house.worker("worker", [server.url])
        satellite = house.satellite("satellite1", [link.url])
        outcome.must(house.serving(bus, worker), "the worker does not serve")
        bus.listen("roomscribe.answer.*")
        satellite.speak(lambda: True, 2 if plan.short else 10)
        figures = _told(outcome, [satellite])
        outcome.must(WINDOW in link.sent, "no window went over the link: nothing to look for")
        markers = [one.encode() for one in satellite.texts()]
        markers += [bytes(link.sent[at : at + 48]) for at in range(4096, len(link.sent), 16384)]
        found = [one for one in markers for data in _files(server.folder) if one in data]
        outcome.must(not found, f"on the server's disk: {found[:3]}")
        house.heard.publish(f"roomscribe/{satellite.node}/mute/set", b"ON")
        outcome.must(holds(lambda: satellite.state().get("status") == "muted", 10), "not muted")
        before = len(link.sent)
        pcm = b"".join(one.pcm for one in house.usable[:3])
        if satellite.daemon:
            satellite.daemon.feed(pcm, 5.0)
        time.sleep(2.0)
        sent = bytes(link.sent[before:])
        outcome.must(WINDOW not in sent, "a window left the muted room")
        outcome.must(len(sent) < MOST_MUTED, f"{len(sent)} bytes left the muted room")
    outcome.figures = (
        f"{figures}; {len(markers)} pieces of sound and text looked for in the server's files, "
        f"found {len(found)}; muted, while {len(pcm)} bytes of speech came: {len(sent)} bytes of "
        "protocol left"
    )


WINDOW = b"PUB roomscribe.window."
MOST_MUTED = 4096


def _files(folder: Path) -> list[bytes]:
    return [one.read_bytes() for one in folder.rglob("*") if one.is_file()]


def refused(outcome: Outcome, plan: Plan) -> None:
    """Over TLS, each box with a password: one of them has a wrong one, another one is curious."""
    with House(plan.seed, 12) as house, TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port()
        engine = FleetServer(names=("127.0.0.1",), port=port).invite("worker", "worker")
        engine = (
            engine.invite("satellite1", "satellite")
            .invite("satellite2", "satellite")
            .with_certificate()
        )
        engine.write(folder, folder / "js")
        passwords = {node: box.password for node, box in engine.nodes.items()}

        def room(node: str, password: str) -> dict[str, str]:
            file = folder / f"{node}.toml"
            file.touch(0o600)
            file.write_text(f'user = "{node}"\npassword = "{password}"\n', encoding="utf-8")
            return {"credential": str(file), "ca": str(folder / AUTHORITY)}

        with NatsServer(file=folder / CONFIG, port=port, scheme="tls") as server:
            worker = house.worker("worker", [server.url], fleet=room("worker", passwords["worker"]))
            wrong = house.satellite(
                "satellite1", [server.url], fleet=room("satellite1", "a" + passwords["satellite1"])
            )
            right = house.satellite(
                "satellite2", [server.url], fleet=room("satellite2", passwords["satellite2"])
            )
            right.speak(lambda: True, 3)
            wrong.speak(lambda: True, 2)
            figures = _told(outcome, [right])
            time.sleep(5.0)
            reasons = wrong.state().get("reasons", [])
            outcome.must(len(reasons) == 1 and "refuse" in reasons[0], f"reasons: {reasons}")
            outcome.must(len(spooled(wrong.place.spool)) == 2, "its sentences do not wait")
            lines = [one for one in wrong.log().splitlines() if "refuse" in one]
            outcome.must(len(lines) <= 5, f"{len(lines)} lines of it in the journal")
            tls = ssl.create_default_context(cafile=str(folder / AUTHORITY))
            login = {"user": "satellite2", "password": passwords["satellite2"], "tls": tls}
            with Bus(server.url, node="satellite2", **login) as curious:
                for subject in FOREIGN:
                    curious.publish(subject, b"x")
                curious.listen("roomscribe.answer.satellite1")
                curious.listen("roomscribe.window.>")
                time.sleep(0.5)
                denied = [one for one in curious.errors if "ermissions" in one]
            outcome.must(len(denied) == len(FOREIGN) + 2, f"denied: {denied}")
            room("satellite1", passwords["satellite1"])
            wrong.kill()
            wrong.start()
            outcome.must(all_told([wrong], 30), "with the right password, it was not told")
            figures += "; " + _told(outcome, [wrong])
            with _alive(outcome, [worker, wrong, right]):
                pass
    outcome.figures = f"{figures}; denied {len(denied)} of {len(FOREIGN) + 2}; {reasons}"


FOREIGN = (
    "roomscribe.window.any.satellite1",
    "roomscribe.answer.satellite1",
    "$JS.API.STREAM.DELETE.ROOMSCRIBE",
    "$JS.API.STREAM.MSG.GET.ROOMSCRIBE",
    "$JS.API.CONSUMER.MSG.NEXT.ROOMSCRIBE.workers-any",
)
"""What a satellite must not publish to."""


def versions(outcome: Outcome, plan: Plan) -> None:
    """Messages that are newer, older, or none; to a worker and to a satellite."""
    with House(plan.seed, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        worker = house.worker("worker", [server.url])
        satellite = house.satellite("satellite1", [server.url])
        outcome.must(house.serving(bus, worker), "the worker does not serve")
        bus.listen("roomscribe.answer.sim")
        pcm = np.frombuffer(house.usable[0].pcm, "<i2")
        for number, (change, payload, expected) in enumerate(STRANGE):
            window = Window(f"u{number}", 1, True, pcm, 0.0, 1.0, 1.0, id=f"w{number}")
            headers, sound = pack_window(Job(window, "sim", 1))
            told = {**json.loads(headers[WINDOW_HEADER]), **change}
            headers[WINDOW_HEADER] = json.dumps(told) if change != {"no": "header"} else "{"
            before = len(bus.heard)
            bus.publish("roomscribe.window.any.sim", sound if payload is None else payload, headers)
            answered = holds(lambda: len(bus.heard) > before, 10)  # noqa: B023
            answer = json.loads(bus.heard[-1].data) if answered else {}
            found = answer.get("error", {}).get("code", "text" if "transcription" in answer else "")
            outcome.must(found == expected, f"{change}: expected {expected!r}, found {found!r}")
        empty = holds(lambda: server.stream()["state"]["messages"] == 0, 15)
        outcome.must(empty, "a strange message stays in the stream")
        # whoever answers first is not believed when it is newer, or about something else
        bus.answer_all(
            "roomscribe.window.any.satellite1", "roomscribe.answer.satellite1", NOT_UNDERSTOOD
        )
        satellite.speak(lambda: True, 3 if plan.short else 10)
        with _alive(outcome, [worker, satellite]):
            figures = _told(outcome, [satellite])
    outcome.figures = f"{len(STRANGE)} strange windows refused by name or read; {figures}"


STRANGE: tuple[tuple[dict[str, object], bytes | None, str], ...] = (
    ({}, None, "text"),
    ({"v": 2, "mood": {"of": "the room"}, "next": [1, 2]}, None, "text"),
    ({"v": 3}, None, "version"),
    ({"v": "1"}, None, "bad"),
    ({"v": 0}, None, "bad"),
    ({"index": -1}, None, "bad"),
    ({"patience_s": "long", "ahead": "no"}, None, "text"),
    ({}, b"RIFF no FLAC at all", "bad"),
    ({}, b"", "bad"),
    ({"id": None}, None, ""),
    ({"no": "header"}, None, ""),
)
"""What a window's header says instead, its payload, and what comes of it; "": no answer, as it is
not known which window it is."""
NOT_UNDERSTOOD = (
    b"",
    b"{",
    b'{"v": 2}',
    b'{"v": 3, "id": "%s", "attempt": 1, "news": "of another kind"}',
    b'{"v": 2, "id": "nobody", "attempt": 1, "worker": "x", "transcription": {"text": "no"}}',
    b'{"v": 2, "id": "%s", "attempt": 1, "worker": "x", "transcription": {"text": 1, "tokens": 2}}',
)
"""Answers to a window, %s its id, that are none; the right one follows."""


def lease(outcome: Outcome, plan: Plan) -> None:
    """The control: somebody acknowledges each window as soon as a worker has got it, and the
    satellites are more patient than this trial. What a killed worker held is not told, then."""
    chance, kills = random.Random(plan.seed), 4 if plan.short else 10
    with (
        House(plan.seed, 12) as house,
        NatsServer() as server,
        Bus(server.url) as bus,
        Link(server.port) as link,
    ):
        kept = bytearray()

        def acknowledge(data: bytes) -> None:
            kept.extend(data)
            for reply in DELIVERED.findall(kept):
                bus.publish(reply.decode(), b"+ACK")
            del kept[: kept.rfind(b"\n") + 1]

        link.watch = acknowledge
        workers = [house.worker(f"worker{one}", [link.url], least_ms=300) for one in (1, 2)]
        satellites = house.satellites(3, [server.url], fleet={"patience_s": 60.0})
        outcome.must(house.serving(bus, *workers), "the workers do not serve")
        with Speaking(satellites, ends_within_s=2.0):
            for number in range(kills):
                time.sleep(chance.uniform(0.5, 1.5))
                workers[number % 2].kill()
                workers[number % 2].start()
                house.serving(bus, *workers)
        all_told(satellites, 15)
        lost, said = (
            sum(one.waiting() > 0 for one in satellites),
            sum(len(one.said) for one in satellites),
        )
    outcome.must(lost > 0, "the trial cannot fail: without the lease nothing was lost either")
    outcome.figures = (
        f"{kills} kills of workers whose windows were acknowledged at once: {lost} of 3 satellites "
        f"wait for a window that nobody does any more, of {said} sentences (so the trial can fail)"
    )


DELIVERED = re.compile(rb"HMSG \S+ \S+ (\$JS\.ACK\.\S+) \d+ \d+\r\n")
"""A window's way to a worker, in NATS's protocol, and where that is acknowledged."""


def alone(outcome: Outcome, plan: Plan) -> None:
    """The only worker goes, and comes back, beside a satellite that has a model of its own."""
    rounds, waits_s = 1 if plan.short else 10, list[float]()
    with House(plan.seed, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        worker = house.worker("worker", [server.url])
        satellite = house.satellite("satellite1", [server.url], model={"bundle": "tiny.en"})
        outcome.must(house.serving(bus, worker), "the worker does not serve")
        satellite.speak(lambda: True, 2)
        all_told([satellite])
        for _ in range(rounds):
            worker.kill()
            own, told, begun_s = (
                satellite.counters()["fleet_own_cpu"],
                len(satellite.heard_s()),
                time.monotonic(),
            )
            satellite.speak(lambda: True, 2)
            all_told([satellite])
            waits_s.append((satellite.heard_s()[told:] or [begun_s + 99.0])[0] - begun_s)
            outcome.must(satellite.counters()["fleet_own_cpu"] > own, "its own model wrote nothing")
            worker.start()
            outcome.must(house.serving(bus, worker), "the worker does not come back")
            back = holds(lambda: satellite.state()["encoder"] == "fleet", 15)
            outcome.must(back, "the satellite does not go back to the worker")
            sent = satellite.counters()["fleet_sent"]
            satellite.speak(lambda: True, 2)
            all_told([satellite])
            outcome.must(satellite.counters()["fleet_sent"] > sent, "nothing is sent to the worker")
        with _alive(outcome, [worker, satellite]):
            figures = _told(outcome, [satellite])
    outcome.must(max(waits_s) < PATIENCE_S + 2.0, f"a text took {max(waits_s):.1f} s")
    outcome.kills = rounds
    outcome.figures = (
        f"the only worker killed {rounds} times beside a satellite with a model: {figures}; the "
        f"first text of its own after {max(waits_s):.2f} s at most (patience {PATIENCE_S:g} s)"
    )


PATIENCE_S = 5.0
"""fleet.patience_s, unless told otherwise."""


SCENES: dict[str, Scene] = {
    "deaths": deaths,
    "server": server,
    "cluster": cluster,
    "unequal": unequal,
    "crowd": crowd,
    "links": links,
    "quiet": quiet,
    "versions": versions,
    "refused": refused,
    "left": left,
    "alone": alone,
    "lease": lease,
}
IN_SHORT = ("deaths",)


def run(names: Sequence[str], plan: Plan) -> Iterator[Outcome]:
    """What came of each scene."""
    for name in names or (IN_SHORT if plan.short else SCENES):
        outcome = Outcome(name)
        SCENES[name](outcome, plan)
        yield outcome
