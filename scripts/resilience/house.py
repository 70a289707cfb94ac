"""Several rooms hear each sentence, and exactly one acts: kills, broker restarts, partitions.

Each room is a process with the appliance's own log, publisher and house, on a real Mosquitto behind
a proxy of its own. Home Assistant is played by two counters: what rooms hand to Assist, and the
`act` messages that the broker passes on. Only microphone and model are left out: the text of each
sentence, its level and the moment when it is ready are drawn.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rigs.broker import Broker
from rigs.checkout import ROOT
from rigs.mqtt_client import Subscriber
from rigs.proxy import Proxy
from rigs.rooms import later
from rigs.waiting import until

NODES = ("bath", "hall", "kitchen")
EVERY_S = 1.2
SPEECH_S = 1.0
DISTURBED_S = 4.0
"""A disturbance counts for sentences that begin so long before it, or within its effects."""
UNDECIDED_S = 2.0
"""Rooms have decided about a sentence within this time of its beginning."""
STORED_S = 1.5
"""A room that runs has a sentence in its log within this time; a killed one gets it again."""
DECIDING_S = 0.8
"""A room has decided about a sentence so long after it is in the log."""
READY_S = 20.0
WAITED_S = 0.08
"""A room whose text comes so much later than the first one's may be too late to act on it: rooms
wait 0.1 s for each other (arbiter.DECIDE_S), and processes wait for a processor."""


@dataclass
class Spoken:
    """A sentence and what came of it."""

    rooms: tuple[str, ...]
    best: str
    begun_s: float
    disturbed: bool = False
    stored_s: dict[str, float] = field(default_factory=dict)
    """Rooms that have it in their log, and since when."""
    silenced: set[str] = field(default_factory=set)
    """Rooms that were killed between that moment and their decision."""
    acted: list[str] = field(default_factory=list)
    """Rooms that handed it to Assist."""
    separated: set[str] = field(default_factory=set)
    """Rooms that decided without the others."""
    waited_ms: dict[str, int] = field(default_factory=dict)
    acts: list[str] = field(default_factory=list)
    """Rooms that published `act`."""

    @property
    def best_is_late(self) -> bool:
        """True if the best room's text came so late that another room may act."""
        first_s = min(self.stored_s.values(), default=math.inf)
        return self.stored_s.get(self.best, math.inf) - first_s > WAITED_S

    @property
    def went_well(self) -> bool:
        """True if exactly one room acted, and the best one if its text came in time."""
        allowed = self.rooms if self.best_is_late else (self.best,)
        return len(self.acted) == 1 and self.acts == self.acted and self.acted[0] in allowed


@dataclass
class Outcome:
    """What came of all sentences."""

    sentences: list[Spoken]
    messages: Counter[str]
    bytes: Counter[str]
    disturbances: Counter[str]

    @property
    def several(self) -> list[Spoken]:
        """Sentences that more than one room heard."""
        return [one for one in self.sentences if len(one.rooms) > 1]

    @property
    def doubled(self) -> list[Spoken]:
        """Sentences on which rooms acted that could communicate, more than once."""
        return [
            one for one in self.sentences
            if len(set(one.acted) - one.separated) > 1 or len(one.acted) > len(set(one.acted))
        ]  # fmt: skip

    @property
    def doubled_apart(self) -> list[Spoken]:
        """Sentences on which several rooms acted of which one could not communicate."""
        doubled = [one for one in self.sentences if len(one.acted) > 1]
        return [one for one in doubled if one not in self.doubled]

    @property
    def doubled_acts(self) -> list[Spoken]:
        """Sentences for which more than one `act` was published."""
        return [one for one in self.sentences if len(one.acts) > 1]

    @property
    def nowhere(self) -> list[Spoken]:
        """Sentences on which no room acted, though one could."""
        idle = [one for one in self.sentences if not one.acted]
        return [one for one in idle if one not in self.silenced]

    @property
    def silenced(self) -> list[Spoken]:
        """Sentences on which no room acted because all were killed before they could."""
        return [one for one in self.sentences if not one.acted and one.silenced >= set(one.rooms)]

    @property
    def broken(self) -> bool:
        """True when a promise was not kept."""
        undisturbed = [one for one in self.sentences if not one.disturbed]
        wrong = not all(one.went_well for one in undisturbed)
        return bool(self.doubled or self.nowhere or self.doubled_acts or wrong)

    def __str__(self) -> str:
        calm = [one for one in self.sentences if not one.disturbed]
        alone = [ms for one in calm if len(one.rooms) == 1 for ms in one.waited_ms.values()]
        several = [one.waited_ms[one.acted[0]] for one in calm if len(one.rooms) > 1 and one.acted]
        best = sum(one.acted == [one.best] for one in calm)
        late = sum(one.best_is_late for one in calm)
        parts = max(1, sum(len(one.rooms) for one in self.sentences))
        what = ", ".join(f"{count} {name}" for name, count in sorted(self.disturbances.items()))
        return (
            f"house: {len(self.sentences)} sentences, {len(self.several)} heard in several rooms; "
            f"{what or 'no disturbances'}\n"
            f"    acted on more than once by rooms that could communicate: {len(self.doubled)}; by "
            f"rooms of which one could not: {len(self.doubled_apart)}; `act` more than once: "
            f"{len(self.doubled_acts)}; acted on nowhere: {len(self.nowhere)}; "
            f"killed before it could act: {len(self.silenced)}\n"
            f"    undisturbed: {len(calm)}, the best room acted on {best} (its text was late for "
            f"{late}); acting waited "
            f"{_range(alone)} if one room heard it, {_range(several)} if several did\n"
            f"    per sentence and room: {sum(self.messages.values()) / parts:.1f} messages, "
            f"{sum(self.bytes.values()) / parts:.0f} bytes"
        )


def _range(waits_ms: list[int]) -> str:
    if not waits_ms:
        return "-"
    return f"{statistics.median(waits_ms):.0f} ms (median), {max(waits_ms)} ms (longest)"


class Room:
    """A child process, its proxy, and what it wrote."""

    def __init__(self, node: str, folder: Path, broker_port: int, trial: Trial) -> None:
        self.node, self._folder, self._trial = node, folder / node, trial
        self.proxy = Proxy(broker_port)
        self.proxy.__enter__()
        self.process: subprocess.Popen[bytes] | None = None
        self.rooms: list[str] = []
        self.frozen = False
        self.start()

    def start(self) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "resilience.house_child", self.node, str(self._folder)]
        with (self._folder.parent / f"{self.node}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, str(self.proxy.port)], cwd=ROOT,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def kill(self) -> None:
        """kill -9."""
        process, self.process = self.process, None
        self.rooms = []
        if process:
            process.kill()
            process.wait()
            if process.stdin:
                process.stdin.close()

    def tell(self, line: str) -> bool:
        """Write a line to it; False if it does not run."""
        process = self.process
        if process is None or process.stdin is None:
            return False
        try:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
        except OSError:
            return False
        return True

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        for line in process.stdout:
            found = json.loads(line)
            if "rooms" in found:
                self.rooms = found["rooms"]
            elif "stored" in found:
                self._trial.sentences[found["stored"]].stored_s[self.node] = time.monotonic()
            elif "acted" in found:
                self._trial.sentences[found["acted"]].acted.append(self.node)
            elif "decided" in found:
                self._note(found["decided"], found)

    def _note(self, key: str, decision: dict[str, Any]) -> None:
        spoken = self._trial.sentences[key]
        spoken.waited_ms[self.node] = decision["waited_ms"]
        if decision["separation"]:
            spoken.separated.add(self.node)


class Trial:
    """Speaks and disturbs."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sentences: dict[str, Spoken] = {}
        self.disturbances: Counter[str] = Counter()
        self._until_s = 0.0

    def run(self, count: int, disturbances: list[str]) -> Outcome:
        """Speak so many sentences, with these disturbances among them."""
        self.chance.shuffle(disturbances)
        every = max(1, count // max(1, len(disturbances)))
        with (
            tempfile.TemporaryDirectory() as folder,
            Broker() as broker,
            Subscriber(broker.port, topics=("roomscribe/+/act", "roomscribe/house/claim")) as heard,
        ):
            self.broker = broker
            self.rooms = {node: Room(node, Path(folder), broker.port, self) for node in NODES}
            try:
                until(self._all_know_all, READY_S)
                time.sleep(16.0)  # every room has heard of every other one's speech then
                for number in range(count):
                    if disturbances and number % every == every // 2:
                        what = getattr(self, disturbances.pop())
                        later(self.chance.uniform(0.0, EVERY_S), what)
                    self._speak(f"s{number}")
                    time.sleep(EVERY_S * self.chance.uniform(0.9, 1.2))
                time.sleep(8.0)
            finally:
                for room in self.rooms.values():
                    room.kill()
                    room.proxy.__exit__()
            return self._outcome(heard)

    def _all_know_all(self) -> bool:
        for room in self.rooms.values():
            room.tell("rooms")
        return all(len(room.rooms) == len(NODES) - 1 for room in self.rooms.values())

    def _speak(self, key: str) -> None:
        nodes = self.chance.sample(NODES, self.chance.choice((1, 2, 2, 2, 3, 3)))
        levels = [-28.0 - 6.0 * place + self.chance.uniform(-2.0, 2.0) for place in range(3)]
        spoken = Spoken(tuple(nodes), nodes[0], time.monotonic())
        spoken.disturbed = spoken.begun_s < self._until_s
        self.sentences[key] = spoken
        for node, level in zip(nodes, levels, strict=False):
            begin_s = abs(self.chance.gauss(0, 0.06))
            end_s = SPEECH_S + self.chance.uniform(-0.05, 0.05)
            ready_s = end_s + self.chance.uniform(0.3, 0.38)
            later(begin_s, lambda node=node: self.rooms[node].tell(f"begin {key}"))  # type: ignore[misc]
            ends_s = time.monotonic() + end_s
            later(ready_s, self._ending(node, key, level, ends_s))

    def _ending(self, node: str, key: str, level: float, ends_s: float) -> Callable[[], None]:
        def end() -> None:
            self.rooms[node].tell(f"end {key} {level:.1f} {ends_s:.3f} yes")
            later(STORED_S, again)

        def again() -> None:
            if node not in self.sentences[key].stored_s:
                end()  # the window waits in the spool

        return end

    def _disturb(self, name: str, seconds: float, *nodes: str) -> None:
        """Count a disturbance. `nodes` cannot communicate at once, and do not know it yet."""
        self.disturbances[name] += 1
        now_s = time.monotonic()
        self._until_s = max(self._until_s, now_s + seconds + DISTURBED_S)
        for spoken in self.sentences.values():
            if now_s - spoken.begun_s < DISTURBED_S:
                spoken.disturbed = True
                if now_s - spoken.begun_s < UNDECIDED_S:
                    spoken.separated |= set(nodes)

    def kills(self) -> None:
        """kill -9 of a room, which starts again."""
        room = self.rooms[self.chance.choice(NODES)]
        self._disturb("kills", 18.0)
        room.kill()
        for spoken in self.sentences.values():
            since_s = time.monotonic() - spoken.stored_s.get(room.node, -math.inf)
            if since_s < DECIDING_S and room.node not in spoken.waited_ms:
                spoken.silenced.add(room.node)
        later(self.chance.uniform(0.1, 1.0), room.start)

    def restarts(self) -> None:
        """A restart of the broker."""
        self._disturb("restarts", 20.0, *NODES)
        self.broker.stop()
        time.sleep(self.chance.uniform(0.1, 1.0))
        self.broker.start()

    def partitions(self) -> None:
        """Nothing passes between a room and the broker, and nobody is told."""
        room = self.rooms[self.chance.choice(NODES)]
        seconds = self.chance.uniform(2.0, 5.0)
        self._disturb("partitions", seconds + 32.0, room.node)
        room.proxy.freeze()
        later(seconds, room.proxy.thaw)

    def _outcome(self, heard: Subscriber) -> Outcome:
        messages, sizes = Counter[str](), Counter[str]()
        for message in list(heard.messages):
            if message.topic.endswith("/act"):
                event = json.loads(message.payload)
                self.sentences[event["text"].split()[1]].acts.append(event["node"])
            else:
                node = json.loads(message.payload)["node"]
                messages[node] += 1
                sizes[node] += len(message.payload) + len(message.topic) + 5
        return Outcome([*self.sentences.values()], messages, sizes, self.disturbances)


def run(
    sentences: int, seed: int, *, kills: int = 0, restarts: int = 0, partitions: int = 0
) -> Outcome:
    """Return what came of so many sentences and disturbances."""
    what = ["kills"] * kills + ["restarts"] * restarts + ["partitions"] * partitions
    return Trial(seed).run(sentences, what)
