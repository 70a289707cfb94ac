"""Several rooms, of which one or two transcribe for all: brains die and hang, the server is killed,
links are slow and cut, and every sentence is written down once, in order, in the room where it was
said. With real daemons and a real nats-server.

deaths    kill -9 and SIGSTOP of one of two brains at random moments, three ears
server    the server killed and started again; its streams are gone each time
cluster   three servers, of which each in turn is killed
unequal   two brains, one of them slow: the load follows speed
crowd     eight ears on one slow brain: bounded queues, the oldest dropped with a count
links     2 Mbit/s, 300 ms, 5 % loss, and cuts, before an ear and before a brain
quiet     muted and idle: no sound leaves; no file of the server has any of it
versions  messages of newer and older versions, and none at all
refused   a wrong password, and a subject that is somebody else's
alone     the only brain goes, and comes back: an ear's own model writes meanwhile
left      an ear is killed while no brain works
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
from resilience.rooms import Ear, House, Room, Speaking, all_told, judge
from rigs.fleet import Bus
from rigs.link import Link, Quality
from rigs.nats import Cluster, NatsServer
from rigs.waiting import holds
from rigs.wyoming import free_port

from appliance.fleet.messages import WINDOW_HEADER, Job, pack_window
from appliance.fleet.provisioning import AUTHORITY, CONFIG, Engine
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


def _told(outcome: Outcome, ears: Sequence[Ear], *, within_s: float = 90.0) -> str:
    """Every sentence, once, in order; the figures."""
    in_time = all_told(ears, within_s)
    found, said = judge(ears)
    waiting = {one.node: one.waiting() for one in ears if one.waiting()}
    outcome.must(in_time, f"not told after {within_s:g} s: {waiting}")
    outcome.must(not found.broken, str(found))
    if outcome.faults:
        for one in ears:
            print(f"--- {one.node}\n{one.log()[-3000:]}")
    return f"{said} sentences of {len(ears)} ears: {found}"


@contextmanager
def _alive(outcome: Outcome, rooms: Sequence[Room]) -> Iterator[None]:
    """No daemon ends by itself."""
    yield
    for one in rooms:
        outcome.must(one.daemon and one.daemon.alive(), f"{one.node} ended by itself")
        outcome.must("Traceback" not in one.log(), f"{one.node} wrote a traceback")


def deaths(outcome: Outcome, plan: Plan) -> None:
    """Brains die and hang."""
    chance, moments = random.Random(plan.seed), plan.kills or (3 if plan.short else 100)
    killed, hung = 0, 0
    stalls_s: list[float] = []
    with (
        House(plan.seed, 12 if plan.short else 40) as house,
        NatsServer() as server,
        Bus(server.url) as bus,
    ):
        brains = [house.brain(f"brain{one}", [server.url]) for one in (1, 2)]
        ears = house.ears(3, [server.url])
        outcome.must(house.serving(bus, *brains), "the brains do not serve")
        with Speaking(ears) as speaking:
            outcome.must(holds(lambda: all(one.heard_s() for one in ears), 60), "no ear was heard")
            for moment in range(moments):
                time.sleep(chance.uniform(0.0, 1.0))
                brain, begun_s = brains[moment % 2], time.monotonic()
                if moment % 3 == 2 and brain.daemon:
                    hung += 1
                    brain.daemon.process.send_signal(signal.SIGSTOP)
                    time.sleep(chance.uniform(0.5, ACK_WAIT_S + 1.5))
                    brain.daemon.process.send_signal(signal.SIGCONT)
                else:
                    killed += 1
                    brain.kill()
                    time.sleep(chance.uniform(0.0, 0.5))
                    brain.start()
                outcome.must(house.serving(bus, *brains), f"{brain.node} does not come back")
                holds(lambda: all(max(e.heard_s()) > begun_s for e in ears), 2 * REDONE_S)  # noqa: B023
                stalls_s += [_stall_s(one.heard_s(), begun_s) for one in ears]
                if speaking.trouble:
                    break
        outcome.must(not speaking.trouble, speaking.trouble)
        with _alive(outcome, [*brains, *ears]):
            figures = _told(outcome, ears)
        again = sum(one.counters().get("fleet_redone", 0) for one in ears)
        late = sum(one.counters().get("fleet_late", 0) for one in ears)
    stalls_s.sort()
    usual_s = stalls_s[int(0.95 * (len(stalls_s) - 1))]
    outcome.must(plan.short or usual_s <= REDONE_S, f"an ear in twenty waited for {usual_s:.1f} s")
    outcome.figures = (
        f"{killed} kills and {hung} stops of brains: {figures}; sent again {again}, late answers "
        f"{late}; longest wait of an ear around each: median "
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
        brains = [house.brain(f"brain{one}", [server.url]) for one in (1, 2)]
        ears = house.ears(3, [server.url])
        outcome.must(house.serving(bus, *brains), "the brains do not serve")
        with Speaking(ears) as speaking:
            for _ in range(kills):
                time.sleep(chance.uniform(0.2, 2.0))
                server.kill()
                time.sleep(chance.uniform(0.0, 3.0))
                server.start()
                begun_s = time.monotonic()
                holds(lambda: all(max(e.heard_s(), default=0) > begun_s for e in ears), 30)  # noqa: B023
                back_s += [
                    min((at for at in one.heard_s() if at > begun_s), default=begun_s + 30)
                    - begun_s
                    for one in ears
                ]
        outcome.must(not speaking.trouble, speaking.trouble)
        with _alive(outcome, [*brains, *ears]):
            figures = _told(outcome, ears)
    outcome.must(max(back_s) < 30, "no transcript within 30 s of the server's return")
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
        brains = [house.brain(f"brain{one}", three.urls) for one in (1, 2)]
        ears = house.ears(3, three.urls)
        outcome.must(house.serving(bus, *brains), "the brains do not serve")
        replicas = [one.stream().get("config", {}).get("num_replicas") for one in three.servers]
        with Speaking(ears) as speaking:
            outcome.must(holds(lambda: all(one.heard_s() for one in ears), 60), "no ear was heard")
            for node in three.servers * (1 if plan.short else 3):
                time.sleep(chance.uniform(0.5, 2.0))
                begun_s = time.monotonic()
                node.kill()
                outcome.must(
                    holds(lambda: all(max(e.heard_s()) > begun_s for e in ears), 30),  # noqa: B023
                    "no transcript while one server of three was away",
                )
                time.sleep(1.0)
                stalls_s += [_stall_s(one.heard_s(), begun_s) for one in ears]
                node.start()
                behind += not holds(lambda: _apart(three) <= NEARLY_ALIKE, 60, 0.2)
        outcome.must(not speaking.trouble, speaking.trouble)
        with _alive(outcome, [*brains, *ears]):
            figures = _told(outcome, ears)
        version = str(three.servers[0].monitor("varz")["version"])
    outcome.must(not behind or version.startswith("2.9."), f"{behind} have not caught up in 60 s")
    outcome.must(max(replicas, key=lambda one: one or 0) == 3, f"replicas: {replicas}")
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
    """One brain is eight times slower than the other."""
    fast_ms, slow_ms = 50, 400
    with House(plan.seed, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        brains = [
            house.brain(name, [server.url], least_ms=least_ms)
            for name, least_ms in (("fast", fast_ms), ("slow", slow_ms))
        ]
        ears = house.ears(3, [server.url])
        outcome.must(house.serving(bus, *brains), "the brains do not serve")
        with Speaking(ears, 15 if plan.short else 60) as speaking:
            outcome.must(speaking.wait(240), "the ears are not done")
        with _alive(outcome, [*brains, *ears]):
            figures = _told(outcome, ears)
        done = {name: one["done"] for name, one in bus.brains().items()}
    outcome.must(done["fast"] > 2 * done["slow"] > 0, f"shares: {done}")
    outcome.figures = f"{fast_ms} and {slow_ms} ms a window: {figures}; done by each: {done}"


def crowd(outcome: Outcome, plan: Plan) -> None:
    """More speech than the only brain can digest."""
    number, most = 8, 16 if plan.short else 40
    with House(plan.seed, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        brain = house.brain("brain", [server.url], least_ms=300)
        ears = house.ears(number, [server.url], spool={"limit_mb": 1}, environment=dict(UNPACED))
        outcome.must(house.serving(bus, brain), "the brain does not serve")
        depths: list[int] = []
        with Speaking(ears, most) as speaking:
            while not speaking.wait(0.1):
                depths.append(server.stream().get("state", {}).get("messages", 0))
        settled = holds(lambda: not any(_unaccounted(one) for one in ears), 240, 0.5)
        outcome.must(settled, f"unaccounted: {[_unaccounted(one) for one in ears]}")
        dropped = sum(_dropped(one) for one in ears)
        with _alive(outcome, [brain, *ears]):
            found, said = judge(ears)
    outcome.must(dropped > 0, "nothing was dropped: no crowd")
    outcome.must(found.lost == dropped, f"lost {found.lost}, counted {dropped}")
    outcome.must(not (found.doubled or found.out_of_order or found.wrong), str(found))
    outcome.must(max(depths) <= 4 * number, f"{max(depths)} windows in the stream")
    outcome.figures = (
        f"{number} ears, {said} sentences at once: {found}, dropped with a count {dropped}; at "
        f"most {max(depths)} windows in the stream"
    )


UNPACED = {"ROOMSCRIBE_TORTURE_QUEUE": "1000"}
"""The ear does not wait with its sound for the windows to be transcribed."""


def _dropped(ear: Ear) -> int:
    return int(ear.counters()["discarded"].get("overload", 0))


def _unaccounted(ear: Ear) -> int:
    return max(0, ear.waiting() - _dropped(ear))


def links(outcome: Outcome, plan: Plan) -> None:
    """An ear and a brain behind bad links, which are cut."""
    chance, bad = random.Random(plan.seed), Quality(mbit_s=2.0, delay_s=0.3, loss=0.05)
    with (
        House(plan.seed, 12 if plan.short else 40) as house,
        NatsServer() as server,
        Bus(server.url) as bus,
        Link(server.port, bad, plan.seed) as slow_ear,
        Link(server.port, bad, plan.seed + 1) as slow_brain,
        Link(server.port, Quality(), plan.seed) as cut,
    ):
        brains = [
            house.brain("brain1", [server.url]),
            house.brain("brain2", [slow_brain.url]),
        ]
        ears = [
            house.ear("ear1", [slow_ear.url]),
            house.ear("ear2", [cut.url]),
            house.ear("ear3", [server.url]),
        ]
        outcome.must(house.serving(bus, *brains, within_s=2.0), "the brains do not serve")
        with Speaking(ears, 10 if plan.short else 40) as speaking:
            while not speaking.wait(chance.uniform(0.5, 3.0)):
                chance.choice((cut, cut, slow_ear, slow_brain)).cut(chance.uniform(0.0, 1.5))
        outcome.must(not speaking.trouble, speaking.trouble)
        with _alive(outcome, [*brains, *ears]):
            figures = _told(outcome, ears, within_s=180)
        cuts = slow_ear.cuts + slow_brain.cuts + cut.cuts
    outcome.figures = f"2 Mbit/s, 300 ms each way, 5 % loss; {cuts} cuts: {figures}"


def left(outcome: Outcome, plan: Plan) -> None:
    """An ear dies while its windows wait for a brain."""
    rounds = 1 if plan.short else 10
    with House(plan.seed, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        brain = house.brain("brain", [server.url])
        ears = house.ears(1, [server.url])
        outcome.must(house.serving(bus, brain), "the brain does not serve")
        ear = ears[0]
        ear.speak(lambda: True, 1)
        all_told(ears, 30)
        recovered = 0
        for _ in range(rounds):
            if brain.daemon:
                brain.daemon.process.send_signal(signal.SIGSTOP)
            ear.speak(lambda: True, 2)
            waits = holds(lambda: len(spooled(ear.place.spool)) >= 2, 20)
            outcome.must(waits, "the windows do not wait in the spool")
            ear.kill()
            recovered += len(spooled(ear.place.spool))
            if brain.daemon:
                brain.daemon.process.send_signal(signal.SIGCONT)
            ear.start()
            outcome.must(all_told(ears, 30), "what waited was not written down")
        with _alive(outcome, [brain, ear]):
            figures = _told(outcome, ears)
    outcome.figures = f"{rounds} kills of an ear with {recovered} windows in its spool: {figures}"


def quiet(outcome: Outcome, plan: Plan) -> None:
    """What is said leaves the room as a window for a brain, and else not at all."""
    with (
        House(plan.seed, 12) as house,
        NatsServer() as server,
        Bus(server.url) as bus,
        Link(server.port) as link,
    ):
        brain = house.brain("brain", [server.url])
        ear = house.ear("ear1", [link.url])
        outcome.must(house.serving(bus, brain), "the brain does not serve")
        bus.listen("roomscribe.answer.*")
        ear.speak(lambda: True, 2 if plan.short else 10)
        figures = _told(outcome, [ear])
        outcome.must(WINDOW in link.sent, "no window went over the link: nothing to look for")
        markers = [one.encode() for one in ear.texts()]
        markers += [bytes(link.sent[at : at + 48]) for at in range(4096, len(link.sent), 16384)]
        found = [one for one in markers for data in _files(server.folder) if one in data]
        outcome.must(not found, f"on the server's disk: {found[:3]}")
        house.heard.publish(f"roomscribe/{ear.node}/mute/set", b"ON")
        outcome.must(holds(lambda: ear.state().get("status") == "muted", 10), "not muted")
        before = len(link.sent)
        pcm = b"".join(one.pcm for one in house.usable[:3])
        if ear.daemon:
            ear.daemon.feed(pcm, 5.0)
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
        engine = Engine(names=("127.0.0.1",), port=port).invite("brain", "brain")
        engine = engine.invite("ear1", "ear").invite("ear2", "ear").certified()
        engine.write(folder, folder / "js")
        passwords = {node: box.password for node, box in engine.boxes.items()}

        def room(node: str, password: str) -> dict[str, str]:
            file = folder / f"{node}.toml"
            file.touch(0o600)
            file.write_text(f'user = "{node}"\npassword = "{password}"\n', encoding="utf-8")
            return {"credential": str(file), "ca": str(folder / AUTHORITY)}

        with NatsServer(file=folder / CONFIG, port=port, scheme="tls") as server:
            brain = house.brain("brain", [server.url], fleet=room("brain", passwords["brain"]))
            wrong = house.ear("ear1", [server.url], fleet=room("ear1", "a" + passwords["ear1"]))
            right = house.ear("ear2", [server.url], fleet=room("ear2", passwords["ear2"]))
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
            login = {"user": "ear2", "password": passwords["ear2"], "tls": tls}
            with Bus(server.url, node="ear2", **login) as curious:
                for subject in FOREIGN:
                    curious.publish(subject, b"x")
                curious.listen("roomscribe.answer.ear1")
                curious.listen("roomscribe.window.>")
                time.sleep(0.5)
                denied = [one for one in curious.errors if "ermissions" in one]
            outcome.must(len(denied) == len(FOREIGN) + 2, f"denied: {denied}")
            room("ear1", passwords["ear1"])
            wrong.kill()
            wrong.start()
            outcome.must(all_told([wrong], 30), "with the right password, it was not told")
            figures += "; " + _told(outcome, [wrong])
            with _alive(outcome, [brain, wrong, right]):
                pass
    outcome.figures = f"{figures}; denied {len(denied)} of {len(FOREIGN) + 2}; {reasons}"


FOREIGN = (
    "roomscribe.window.any.ear1",
    "roomscribe.answer.ear1",
    "$JS.API.STREAM.DELETE.ROOMSCRIBE",
    "$JS.API.STREAM.MSG.GET.ROOMSCRIBE",
    "$JS.API.CONSUMER.MSG.NEXT.ROOMSCRIBE.brains-any",
)
"""What an ear must not publish to."""


def versions(outcome: Outcome, plan: Plan) -> None:
    """Messages that are newer, older, or none; to a brain and to an ear."""
    with House(plan.seed, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        brain = house.brain("brain", [server.url])
        ear = house.ear("ear1", [server.url])
        outcome.must(house.serving(bus, brain), "the brain does not serve")
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
        bus.answer_all("roomscribe.window.any.ear1", "roomscribe.answer.ear1", NOT_UNDERSTOOD)
        ear.speak(lambda: True, 3 if plan.short else 10)
        with _alive(outcome, [brain, ear]):
            figures = _told(outcome, [ear])
    outcome.figures = f"{len(STRANGE)} strange windows refused by name or read; {figures}"


STRANGE: tuple[tuple[dict[str, object], bytes | None, str], ...] = (
    ({}, None, "text"),
    ({"v": 1, "mood": {"of": "the room"}, "next": [1, 2]}, None, "text"),
    ({"v": 2}, None, "version"),
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
    b'{"v": 1}',
    b'{"v": 2, "id": "%s", "attempt": 1, "news": "of another kind"}',
    b'{"v": 1, "id": "nobody", "attempt": 1, "brain": "x", "transcription": {"text": "no"}}',
    b'{"v": 1, "id": "%s", "attempt": 1, "brain": "x", "transcription": {"text": 1, "tokens": 2}}',
)
"""Answers to a window, %s its id, that are none; the right one follows."""


def lease(outcome: Outcome, plan: Plan) -> None:
    """The control: somebody acknowledges each window as soon as a brain has got it, and the ears
    are more patient than this trial. What a killed brain held is not told, then."""
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
        brains = [house.brain(f"brain{one}", [link.url], least_ms=300) for one in (1, 2)]
        ears = house.ears(3, [server.url], fleet={"patience_s": 60.0})
        outcome.must(house.serving(bus, *brains), "the brains do not serve")
        with Speaking(ears, ends_within_s=2.0):
            for number in range(kills):
                time.sleep(chance.uniform(0.5, 1.5))
                brains[number % 2].kill()
                brains[number % 2].start()
                house.serving(bus, *brains)
        all_told(ears, 15)
        lost, said = sum(one.waiting() > 0 for one in ears), sum(len(one.said) for one in ears)
    outcome.must(lost > 0, "the trial cannot fail: without the lease nothing was lost either")
    outcome.figures = (
        f"{kills} kills of brains whose windows were acknowledged at once: {lost} of 3 ears wait "
        f"for a window that nobody does any more, of {said} sentences (so the trial can fail)"
    )


DELIVERED = re.compile(rb"HMSG \S+ \S+ (\$JS\.ACK\.\S+) \d+ \d+\r\n")
"""A window's way to a brain, in NATS's protocol, and where that is acknowledged."""


def alone(outcome: Outcome, plan: Plan) -> None:
    """The only brain goes, and comes back, beside an ear that has a model of its own."""
    rounds, waits_s = 1 if plan.short else 10, list[float]()
    with House(plan.seed, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        brain = house.brain("brain", [server.url])
        ear = house.ear("ear1", [server.url], model={"bundle": "home-en"})
        outcome.must(house.serving(bus, brain), "the brain does not serve")
        ear.speak(lambda: True, 2)
        all_told([ear])
        for _ in range(rounds):
            brain.kill()
            own, told, begun_s = (
                ear.counters()["fleet_own_cpu"],
                len(ear.heard_s()),
                time.monotonic(),
            )
            ear.speak(lambda: True, 2)
            all_told([ear])
            waits_s.append((ear.heard_s()[told:] or [begun_s + 99.0])[0] - begun_s)
            outcome.must(ear.counters()["fleet_own_cpu"] > own, "its own model wrote nothing")
            brain.start()
            outcome.must(house.serving(bus, brain), "the brain does not come back")
            back = holds(lambda: ear.state()["encoder"] == "fleet", 15)
            outcome.must(back, "the ear does not go back to the brain")
            sent = ear.counters()["fleet_sent"]
            ear.speak(lambda: True, 2)
            all_told([ear])
            outcome.must(ear.counters()["fleet_sent"] > sent, "nothing is sent to the brain")
        with _alive(outcome, [brain, ear]):
            figures = _told(outcome, [ear])
    outcome.must(max(waits_s) < PATIENCE_S + 2.0, f"a text took {max(waits_s):.1f} s")
    outcome.figures = (
        f"the only brain killed {rounds} times beside an ear with a model: {figures}; the first "
        f"text of its own after {max(waits_s):.2f} s at most (patience {PATIENCE_S:g} s)"
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
