"""Kill (-9) the daemon at random moments of a stream of sentences, while the broker restarts.

A sentence that the dead process had not heard to its end is spoken again; one that it had is in
the store or in the spool, or lost. In the end the store and a subscriber with a kept session hold
what a run without faults gives, in order.
"""

import math
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from resilience.accounts import Sentences, Verdict, compare, first_times, spooled, stored
from resilience.rig import BYTES_PER_S, Daemon, Place, Spoken, reference_texts, sentences
from rigs.broker import Broker
from rigs.mqtt_client import Subscriber
from rigs.waiting import holds
from rigs.windows import NO_FOLDER

HEARD_AFTER = int(0.35 * BYTES_PER_S)
"""A sentence is heard to its end once so much of the next one's silence has been read: one read
of the pipe, and the frames that wait for the segmenter."""
STARTING_SHARE, AIMED_SHARE = 0.2, 0.4
"""Of the kills: those during the start, and those a moment after a window came into the spool."""
START_S, LIFE_S, AIMED_S = 0.8, 2.0, 0.03
"""Longest time to a kill: during the start, after READY, after the window came."""
AIM_S = 5.0
"""After so long one kills without a window, too."""
POISON = 2
"""A window that kills once more is set aside, and rightly: no kill is to make one of a good one."""


class BrokerOutages:
    """A broker that comes and goes."""

    def __init__(self, broker: Broker, chance: random.Random) -> None:
        self.restarts = 0
        self._broker, self._chance = broker, chance
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(self._chance.uniform(1.0, 8.0)):
            self._broker.stop()
            self._over.wait(self._chance.uniform(0.0, 4.0))
            self._start()
            self.restarts += 1

    def _start(self) -> None:
        """Start it, in up to five attempts: on a busy machine it may not listen in time."""
        for left in reversed(range(5)):
            try:
                self._broker.start()
                return
            except RuntimeError:
                if not left:
                    raise

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@dataclass
class Outcome:
    """What the killing left."""

    spoken: list[int] = field(default_factory=list)
    """Numbers of the sentences, in the order in which they were heard to their end."""
    kills: int = 0
    hits: int = 0
    """Kills that left a window in the spool."""
    stopped_work: int = 0
    """Kills in the middle of a window's transcription."""
    put_off: int = 0
    """Kills that waited, so that no window was killed in twice."""
    ready_s: list[float] = field(default_factory=list)
    lost_at_kills: int = 0
    """Sentences heard to their end and in neither store nor spool when the process was dead."""
    store: Verdict = field(default_factory=Verdict)
    subscriber: Verdict = field(default_factory=Verdict)
    ids_equal: bool = False
    seq_rises: bool = False
    repeated: int = 0
    """Messages that came again with an id that was there."""
    restarts: int = 0
    left_over: int = 0
    status: int | None = None
    trouble: str = ""

    @property
    def broken(self) -> bool:
        """True when a promise was not kept."""
        return bool(
            self.lost_at_kills
            or self.store.broken
            or self.subscriber.broken
            or not self.ids_equal
            or not self.seq_rises
            or self.left_over
            or self.status != 0
            or self.trouble
        )

    def __str__(self) -> str:
        same = "equal ids" if self.ids_equal else "OTHER IDS"
        ready_s = self.ready_s or [math.inf]
        starts = f"median {statistics.median(ready_s):.2f} s, longest {max(ready_s):.2f} s"
        return (
            f"kill: {len(self.spoken)} utterances, {self.kills} kills, {self.hits} with a window "
            f"in the spool, {self.stopped_work} in mid-transcription ({self.put_off} put off), "
            f"{self.restarts} broker restarts; neither in store nor in spool {self.lost_at_kills}; "
            f"store: {self.store}; subscriber: {self.subscriber}, {same}, {self.repeated} came "
            f"again with theirs; start to READY {starts}"
            + (f"; left in the spool {self.left_over}" if self.left_over else "")
            + (f"; {self.trouble}" if self.trouble else "")
        )


class Killing:
    """One daemon after another, in one place."""

    def __init__(
        self, place: Place, spoken: list[Spoken], chance: random.Random, listener: Subscriber
    ) -> None:
        self.outcome = Outcome()
        self._place, self._chance, self._listener = place, chance, listener
        self._sentences, self._turn = spoken, list[Spoken]()
        self._stream: list[Spoken] = []

    def sentence(self, number: int) -> Spoken:
        """The stream's sentence of that number; every sentence comes once in each turn."""
        while len(self._stream) <= number:
            if not self._turn:
                self._turn = self._chance.sample(self._sentences, len(self._sentences))
            self._stream.append(self._turn.pop())
        return self._stream[number]

    def live(self, dies: Callable[[Daemon], bool] | None, count: int = 0) -> None:
        """One daemon, fed until `dies` says so, else until `count` sentences were said to it."""
        first = len(self.outcome.spoken)
        with Daemon(self._place) as daemon:
            ends: list[int] = []
            rest = b""
            try:
                while not (dies and dies(daemon)):
                    if not rest:
                        if not dies and len(ends) == count:
                            break
                        rest = self.sentence(first + len(ends)).pcm
                        ends.append((ends[-1] if ends else 0) + len(rest))
                    rest = daemon.feed(rest, 0.01)
                    daemon.look()
                if not dies:
                    self._finish(daemon, first + count)
            except (BrokenPipeError, TimeoutError) as error:
                self.outcome.trouble = f"the daemon ended by itself or stands still: {error!r}"
            consumed = 0
            if dies:
                daemon.kill()
                consumed = daemon.consumed()
            daemon.look()
            if daemon.ready_s is not None:
                self.outcome.ready_s.append(daemon.ready_s)
        heard = sum(end + HEARD_AFTER <= consumed for end in ends) if dies else count
        self._count(first, heard)

    def _count(self, first: int, heard: int) -> None:
        """Which sentences the dead one has heard: those that it kept, at least the `heard`."""
        waiting = {one.id for one in spooled(self._place.spool)}
        known = {transcript_id for _, transcript_id, _ in stored(self._place.state)}
        kept = len(known | waiting) + self.outcome.lost_at_kills - first
        if kept < heard:
            self.outcome.lost_at_kills += heard - kept
        self.outcome.hits += bool(waiting)
        for number in range(first, first + max(kept, heard)):
            self.outcome.spoken.append(self.sentence(number).number)

    def _finish(self, daemon: Daemon, count: int) -> None:
        """All that was said is stored and told; then the sound ends, and the daemon with it."""
        goal = count - self.outcome.lost_at_kills
        if not holds(lambda: len(stored(self._place.state)) >= goal, 60):
            self.outcome.trouble = f"{goal} transcripts were not stored within 60 s"
        holds(lambda: len({event["id"] for event in self._listener.events()}) >= goal, 60)
        self.outcome.status = daemon.end_of_sound()

    def moment(self) -> Callable[[Daemon], bool]:
        """A random moment to die."""
        kind, length = self._chance.random(), self._chance.random()

        def reached(daemon: Daemon) -> bool:
            lived_s = time.monotonic() - daemon.begun_s
            if kind < STARTING_SHARE:
                return lived_s >= length * START_S and self._frozen(daemon)
            if daemon.ready_s is None or lived_s - daemon.ready_s < length * LIFE_S:
                return False
            if kind < STARTING_SHARE + AIMED_SHARE and lived_s - daemon.ready_s < AIM_S:
                if not spooled(self._place.spool):
                    return False
                time.sleep(length * AIMED_S)
            return self._frozen(daemon)

        return reached

    def _frozen(self, daemon: Daemon) -> bool:
        """Stop the process where it is; False, and on it goes, where it must not be killed."""
        daemon.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, daemon.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        attempts = max((one.attempts for one in spooled(self._place.spool)), default=0)
        if attempts >= POISON:
            self.outcome.put_off += 1
            daemon.process.send_signal(signal.SIGCONT)
            time.sleep(0.02)
            return False
        self.outcome.stopped_work += attempts > 0
        return True


def run(kills: int, seed: int = 0, *, spool: bool = True, count: int = 40) -> Outcome:
    """Kill a daemon this many times, and compare the log with what was spoken.

    `count` of the sentences are used; with `spool` false, losses must be found.
    """
    chance = random.Random(seed)
    texts = reference_texts(count)
    known = Sentences(texts)
    usable = [one for one in sentences() if one.number in texts]
    with Place() as place, Broker(persistent=True) as broker, Subscriber(broker.port) as listener:
        place.configure(broker.port, spool={"path": place.spool if spool else NO_FOLDER})
        killing = Killing(place, usable, chance, listener)
        outcome = killing.outcome
        with BrokerOutages(broker, random.Random(seed + 1)) as outages:
            for _ in range(kills):
                killing.live(killing.moment())
                outcome.kills += 1
                if outcome.trouble:
                    break
        outcome.restarts = outages.restarts
        if not outcome.trouble:
            killing.live(None, 10)
        rows = stored(place.state)
        ids = [transcript_id for _, transcript_id, _ in rows]
        time.sleep(1.0)
        events = listener.events()
        outcome.left_over = len(spooled(place.spool))
        log = place.log.read_text(encoding="utf-8", errors="replace")
    by_id = {event["id"]: event["text"] for event in events}
    heard = first_times(event["id"] for event in events)
    outcome.repeated = len(events) - len(heard)
    outcome.seq_rises = [seq for seq, _, _ in rows] == sorted({seq for seq, _, _ in rows})
    outcome.ids_equal = ids == heard
    outcome.store = compare(outcome.spoken, known.of(text for _, _, text in rows))
    outcome.subscriber = compare(outcome.spoken, known.of(by_id[one] for one in heard))
    if outcome.broken:
        strange = [
            row
            for row, name in zip(rows, known.of(row[2] for row in rows), strict=True)
            if name < 0
        ]
        print(log[-6000:], *strange, sep="\n", file=sys.stderr)
    return outcome
