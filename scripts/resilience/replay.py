"""Let the whole daemon take the steps of the protocol's model, with a real broker or nats-server.

Each trace is a random way through the model (tests/protocol) to its end. Before each fault the
replay waits until the daemon is as far as the trace: the window is in the spool, the transcript is
stored or published. What the daemon does between two faults is its own affair. In the end all
faults stop, and every guarantee that can be seen from outside must hold.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from protocol.model import Model
from protocol.state import DEATHS, Half, State
from resilience.accounts import first_times, spooled, stored
from resilience.rig import Daemon, Place, Said, reference_texts, sentences
from resilience.rooms import House, Room, Satellite, all_told, judge
from rigs.broker import Broker
from rigs.command import roomscribe
from rigs.fleet import Bus
from rigs.mqtt_client import Subscriber
from rigs.nats import NatsServer
from rigs.waiting import holds

FAULTS = re.compile(
    r"the appliance (crashes|is restarted|reloads)|the power fails|the broker restarts$"
    r"|the subscriber leaves|somebody deletes"
)
FLEET_FAULTS = re.compile(
    r"the appliance (crashes|is restarted)|the worker of|the fleet's server restarts"
)
LEFT_OUT = re.compile(r".* is (discarded|set aside)|speech goes on|.* drops |.* spooled ahead")
"""What the replay cannot bring about."""
WINDOWS, MOST_FAULTS, LONGEST = 3, 3, 150
FAULT_SHARE = 0.12
SILENCE = bytes(32_000)
WITHIN_S = 60.0
ALL_WITHIN_S = 120.0


def traces(model: Model, faults: re.Pattern[str], count: int, seed: int) -> Iterator[list[str]]:
    """Yield ways through the model that end, each with all faults that it allows."""
    chance, kinds = random.Random(seed), Counter[str]()
    while count:
        trace, state = list[str](), model.first()
        while len(trace) < LONGEST:
            calm = [one for one in model.actions(state) if not LEFT_OUT.match(one[0])]
            bad = [one for one in model.faults_of(state) if faults.match(one[0])]
            # rare kinds of faults first, so that a dozen traces have all of them
            bad.sort(key=lambda one: (kinds[_kind(one[0])], chance.random()))
            if not calm and not bad:
                break
            early = bad and (not calm or chance.random() < FAULT_SHARE)
            name, state = bad[0] if early else chance.choice(calm)
            trace.append(name)
        if _is_whole(model, state, trace):
            kinds.update(_kind(one) for one in trace if faults.match(one))
            count -= 1
            yield trace


def _kind(step: str) -> str:
    return re.sub(r"\d+", "N", step)


def _is_whole(model: Model, state: State, trace: list[str]) -> bool:
    """Return True for a trace that heard all windows and used all faults."""
    return len(trace) < LONGEST and state.heard == model.windows and not state.faults


@dataclass
class Outcome:
    """What came of all traces."""

    name: str
    traces: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    """How often each kind of fault was replayed."""
    problems: list[str] = field(default_factory=list)

    @property
    def broken(self) -> bool:
        """True if a guarantee did not hold."""
        return bool(self.problems)

    def __str__(self) -> str:
        done = ", ".join(f"{count} times {step}" for step, count in sorted(self.steps.items()))
        whole = "; ".join(self.problems) or "all guarantees kept"
        return f"replay, {self.name}: {self.traces} traces of the model ({done}): {whole}"


class Replay:
    """One appliance beside a real broker, through one trace."""

    def __init__(self, place: Place, broker: Broker, said: list[Said]) -> None:
        self._place, self._broker, self._said = place, broker, said
        self._daemon: Daemon | None = None
        self._listener = Subscriber(broker.port)
        self._listener.__enter__()
        self._listens = True
        self._heard = 0
        self._cut = 0
        """Windows that were in memory only when the power failed."""
        self._deleted: set[str] = set()
        self._reloads = 0

    def run(self, trace: list[str]) -> str:
        """Replay the trace; return what is wrong, or an empty text."""
        try:
            for step in trace:
                self._take(step)
            return self._judge()
        except (TimeoutError, BrokenPipeError) as error:
            return str(error) or type(error).__name__
        finally:
            if self._daemon:
                self._daemon.close()
            if self._listens:
                self._listener.__exit__()

    def _take(self, step: str) -> None:
        number = int(found[0]) if (found := re.findall(r"\d+", step)) else 0
        match _kind(step):
            case "window N ends":
                self._hear(number)
            case "transcript N is stored":
                least = number - self._cut - len(self._deleted)
                self._wait(lambda: len(self._rows()) >= least, f"no row {number}")
            case "the subscriber gets N" if self._listens:
                self._wait(lambda: bool(self._listener.events()), "nothing is published")
            case "the appliance crashes" | "the power fails":
                self._stop(power="power" in step)
            case "the appliance is restarted":
                self._running().process.terminate()
                self._running().process.wait(30)
                self._stop()
            case "the appliance reloads its configuration":
                self._reload()
            case "the appliance starts":
                self._running()
            case "the broker restarts":
                self._broker.stop()
                self._broker.start()
            case "the subscriber leaves":
                self._listener.__exit__()
                self._listens = False
            case "the subscriber returns":
                self._return()
            case "somebody deletes N":
                self._delete()

    def _running(self) -> Daemon:
        if self._daemon is None:
            self._daemon = Daemon(self._place)
        return self._daemon

    def _rows(self) -> list[tuple[int, str, str]]:
        return stored(self._place.state) if self._place.state.exists() else []

    def _kept(self) -> int:
        """Windows that are in the store or the spool, or were deleted."""
        ids = {transcript for _, transcript, _ in self._rows()} | self._deleted
        return len(ids | {one.id for one in spooled(self._place.spool)})

    def _hear(self, number: int) -> None:
        daemon = self._running()
        if rest := daemon.feed(self._said[number - 1].pcm, WITHIN_S):
            raise TimeoutError(f"it takes no sound: {len(rest)} bytes are left")
        self._heard = number
        self._wait(lambda: self._kept() >= number - self._cut, f"window {number} is not heard")

    def _stop(self, *, power: bool = False) -> None:
        daemon = self._running()
        # a window that kills again and again is set aside, and rightly
        holds(lambda: all(one.attempts < DEATHS for one in spooled(self._place.spool)), WITHIN_S)
        daemon.kill()
        daemon.close()
        self._daemon = None
        if power:
            shutil.rmtree(self._place.spool, ignore_errors=True)
            self._cut = self._heard - self._kept()

    def _reload(self) -> None:
        daemon = self._running()
        # it listens to signals, and is ready, once sound has come
        if daemon.feed(SILENCE, WITHIN_S) or not holds(lambda: _is_ready(daemon), WITHIN_S):
            raise TimeoutError("the daemon is not ready")
        text, self._reloads = self._place.config.read_text(), self._reloads + 1
        self._place.config.write_text(
            re.sub(r"expiry_s = \d+", f"expiry_s = {86400 + self._reloads}", text)
        )
        before = self._place.log.read_text(errors="replace").count("starting again with it")
        daemon.process.send_signal(signal.SIGHUP)
        self._wait(
            lambda: (
                self._place.log.read_text(errors="replace").count("starting again with it") > before
            ),
            "it does not reload",
        )

    def _return(self) -> None:
        if not self._listens:
            events = self._listener.messages
            self._listener = Subscriber(self._broker.port)
            self._listener.messages = events
            self._listener.__enter__()
            self._listens = True

    def _delete(self) -> None:
        rows = self._rows()
        if not rows:
            return
        _, transcript, text = rows[0]
        done = roomscribe(
            "log", "--config", self._place.config, "--delete", "--grep", text, "--yes"
        )
        if done.returncode:
            raise TimeoutError(f"log --delete: {done.stderr.strip()}")
        self._deleted.add(transcript)

    def _wait(self, condition: Callable[[], bool], problem: str) -> None:
        if not holds(condition, WITHIN_S):
            raise TimeoutError(problem)

    def _judge(self) -> str:
        """Return the guarantee that does not hold after the last fault; empty if all hold."""
        self._return()
        self._running()
        wanted = self._heard - self._cut - len(self._deleted)

        def is_delivered() -> bool:
            ids = [transcript for _, transcript, _ in self._rows()]
            received = {one["id"] for one in self._listener.events()}
            return len(ids) == wanted and {*ids} <= received and not spooled(self._place.spool)

        if not holds(is_delivered, ALL_WITHIN_S):
            rows, left = self._rows(), len(spooled(self._place.spool))
            return f"delivery: {len(rows)} of {wanted} rows, {left} in the spool"
        events = self._listener.events()
        firsts = first_times(one["id"] for one in events)
        numbers = {one["id"]: one["seq"] for one in events}
        if [numbers[one] for one in firsts] != sorted(numbers[one] for one in firsts):
            return f"order: {[numbers[one] for one in firsts]}"
        seen = set[str]()
        repeated = [m.dup for m in self._listener.messages if m.topic.endswith("/transcript")]
        for one, by_broker in zip(events, repeated, strict=False):
            if one["id"] in seen and not (one["late"] or by_broker):
                return f"once: {one['id']} comes twice and is not marked late"
            if numbers[one["id"]] != one["seq"]:
                return f"once: {one['id']} has two numbers"
            seen.add(one["id"])
        if self._deleted & {transcript for _, transcript, _ in self._rows()}:
            return "deletion: a transcript is back"
        return ""


def _is_ready(daemon: Daemon) -> bool:
    daemon.look()
    return daemon.ready_s is not None


def run(count: int, seed: int) -> Outcome:
    """Replay so many traces with a daemon that transcribes itself."""
    outcome = Outcome("Mosquitto")
    texts = reference_texts(12)
    said = [one for one in sentences() if one.number in texts][:WINDOWS]
    model = Model(WINDOWS, faults=MOST_FAULTS)
    for trace in traces(model, FAULTS, count, seed):
        with Place() as place, Broker(persistent=True) as broker:
            place.configure(broker.port)
            problem = Replay(place, broker, said).run(trace)
        outcome.traces += 1
        outcome.steps.update(_kind(one) for one in trace if FAULTS.match(one))
        if problem:
            outcome.problems.append(f"{problem} ({', '.join(trace)})")
    return outcome


def run_fleet(count: int, seed: int) -> Outcome:
    """Replay so many traces with a satellite and two workers."""
    outcome, chance = Outcome("nats-server"), random.Random(seed)
    model = Model(WINDOWS, workers=2, faults=MOST_FAULTS, half=Half.TO_STORE)
    with House(seed, 12) as house, NatsServer() as server, Bus(server.url) as bus:
        workers = [house.worker(f"worker{one}", [server.url]) for one in (1, 2)]
        if not house.serving(bus, *workers):
            outcome.problems.append("the workers do not serve")
            return outcome
        for number, trace in enumerate(traces(model, FLEET_FAULTS, count, seed), 1):
            satellite = house.satellite(f"room{number}", [server.url])
            for step in trace:
                _take_in_fleet(step, satellite, server, chance.choice(workers))
            if not satellite.daemon:
                satellite.start()
            told = all_told([satellite], ALL_WITHIN_S)
            verdict, _ = judge([satellite])
            if not told or verdict.broken:
                outcome.problems.append(f"{verdict} (after: {', '.join(trace)})")
            outcome.traces += 1
            outcome.steps.update(_kind(one) for one in trace if FLEET_FAULTS.match(one))
            satellite.kill()
    return outcome


def _take_in_fleet(step: str, satellite: Satellite, server: NatsServer, worker: Room) -> None:
    """Let one step of a trace happen."""
    match _kind(step):
        case "window N ends":
            if not satellite.daemon:
                satellite.start()
            satellite.speak(lambda: True, 1)
            holds(lambda: _heard(satellite) >= len(satellite.said), WITHIN_S)
        case "transcript N is stored":
            number = int(re.findall(r"\d+", step)[0])
            holds(lambda: len(stored(satellite.place.state)) >= number, WITHIN_S)
        case "the appliance starts":
            if not satellite.daemon:
                satellite.start()
        case "the appliance crashes":
            satellite.kill()
        case "the appliance is restarted":
            if satellite.daemon:
                satellite.daemon.process.terminate()
                satellite.daemon.process.wait(30)
            satellite.kill()
        case "the worker of N dies":
            worker.kill()
            time.sleep(0.2)
            worker.start()
        case "the fleet's server restarts":
            server.kill()
            server.start()


def _heard(satellite: Satellite) -> int:
    """Windows that its store or spool has."""
    place = satellite.place
    ids = {one.id for one in spooled(place.spool)}
    if place.state.exists():
        ids |= {transcript for _, transcript, _ in stored(place.state)}
    return len(ids)
