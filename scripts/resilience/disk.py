"""Test disk faults while sentences come: full, read-only, locked, file deleted, file damaged.

Every sentence that was spoken must reach a subscriber; the trouble must be in `state`, and heal
without a restart. Each case has a small ext4 disk, a daemon and a broker of its own.
"""

import json
import os
import random
import re
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilience.accounts import Sentences, Verdict, compare, first_times, spooled
from resilience.rig import STEP, Daemon, Place, Spoken, reference_texts, sentences
from rigs.broker import Broker
from rigs.mqtt_client import Subscriber
from rigs.waiting import holds

HEALS_WITHIN_S = 60.0
SIZE_MIB = 6
LOCKED_S = 8.0
"""Longer than a statement waits for another process."""


@dataclass
class Case:
    """What one trouble left."""

    name: str
    spoken: list[int] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    reported: str = ""
    """Where the trouble was told: `state`, or, when it was healed at once, the log."""
    healed_s: float | None = None
    trouble: str = ""

    @property
    def broken(self) -> bool:
        """True when a promise was not kept."""
        return bool(
            self.verdict.broken or not self.reported or self.healed_s is None or self.trouble
        )

    def __str__(self) -> str:
        faults = f"{self.verdict}" if self.verdict.broken else "nothing lost"
        reported = f"reported in {self.reported}" if self.reported else "NOT REPORTED"
        healed = "NOT HEALED" if self.healed_s is None else f"well {self.healed_s:.1f} s later"
        return f"{self.name}: {len(self.spoken)} spoken, {faults}, {reported}, {healed}" + (
            f", {self.trouble}" if self.trouble else ""
        )


class Bench:
    """A small ext4 disk, a daemon on it, a broker and a subscriber with a kept session."""

    def __init__(self, stack: ExitStack, known: Sentences, spoken: list[Spoken]) -> None:
        self.place = stack.enter_context(Place())
        self.place.state.mkdir()
        stack.enter_context(disk(self.place.folder / "disk.img", self.place.state))
        self.broker = stack.enter_context(Broker(persistent=True))
        self.listener = stack.enter_context(Subscriber(self.broker.port))
        self.place.configure(self.broker.port)
        self.case = Case("")
        self.daemon: Daemon | None = None
        self._stack, self._known, self._sentences = stack, known, spoken
        self._others: list[str] = []
        """Ids that were heard before the case began to count."""

    def start(self) -> None:
        """A daemon, which listens."""
        self.daemon = self._stack.enter_context(Daemon(self.place))

    def stop(self) -> None:
        """The daemon ends with its sound."""
        if self.daemon:
            self.daemon.end_of_sound()
            self.daemon = None

    def say(self, count: int) -> None:
        """Play the next sentences; return when they were heard to their end."""
        assert self.daemon
        for _ in range(count):
            one = self._sentences[len(self.case.spoken) % len(self._sentences)]
            if self.daemon.feed(one.pcm, 60):
                raise TimeoutError("the daemon takes no sound")
            self.case.spoken.append(one.number)
        if self.daemon.feed(bytes(6 * STEP), 60) or not holds(self._read, 60):
            raise TimeoutError("the daemon takes no sound")

    def _read(self) -> bool:
        assert self.daemon
        return self.daemon.consumed() >= self.daemon.written

    def states(self) -> list[dict[str, Any]]:
        """All that `state` said."""
        return [json.loads(payload) for payload in self.listener.payloads("state")]

    def heard(self) -> list[str]:
        """Texts at the subscriber, each id once, in order."""
        texts = {event["id"]: event["text"] for event in self.listener.events()}
        return [texts[one] for one in first_times(e["id"] for e in self.listener.events())]

    def reports_trouble(self, within_s: float = 30.0) -> None:
        """Wait until the trouble is told."""

        def reported() -> str:
            if any(one["status"] == "degraded" for one in self.states()):
                return "state"
            log = self.place.log.read_text(encoding="utf-8", errors="replace")
            return "the log" if re.search(r" ERROR .*roomscribe\.db", log) else ""

        holds(reported, within_s)
        self.case.reported = reported()

    def heals(self) -> None:
        """Wait until all is told, nothing is spooled and `state` is well."""
        begun_s = time.monotonic()

        def well() -> bool:
            return (
                len(self.heard()) >= len(self.case.spoken)
                and not spooled(self.place.spool)
                and self.states()[-1]["status"] == "running"
            )

        if holds(well, HEALS_WITHIN_S):
            self.case.healed_s = time.monotonic() - begun_s
        if self.daemon is None or not self.daemon.alive():
            self.case.trouble = "the daemon ended"
        self.case.verdict = compare(self.case.spoken, self._known.of(self.heard()))


@contextmanager
def disk(image: Path, folder: Path) -> Iterator[None]:
    """A small ext4 disk on `folder`. Raises OSError where none can be."""
    image.write_bytes(b"")
    os.truncate(image, SIZE_MIB << 20)
    for command in (["mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(image)],
                    ["mount", "-o", "loop", str(image), str(folder)]):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def full(bench: Bench) -> None:
    """The disk is full, and has room again."""
    bench.start()
    bench.say(2)
    ballast = bench.place.state / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    bench.say(3)
    bench.reports_trouble()
    bench.say(2)
    ballast.unlink()
    bench.heals()


def read_only(bench: Bench) -> None:
    """The disk is read-only when the daemon starts, and becomes writable while it runs."""
    bench.start()
    bench.say(2)
    bench.stop()
    _remount(bench, "ro")
    bench.start()
    bench.say(3)
    bench.reports_trouble()
    _remount(bench, "rw")
    bench.heals()


def locked(bench: Bench) -> None:
    """Another process holds the database's write lock for a while."""
    bench.start()
    bench.say(2)
    other = sqlite3.connect(bench.place.state / "roomscribe.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun_s = time.monotonic()
    bench.say(2)
    bench.reports_trouble(LOCKED_S)
    time.sleep(max(0.0, LOCKED_S - (time.monotonic() - begun_s)))
    other.execute("ROLLBACK")
    other.close()
    bench.heals()


def deleted(bench: Bench) -> None:
    """The database is deleted under the daemon, while the broker is away."""
    bench.start()
    bench.say(2)
    holds(lambda: len(bench.heard()) == 2, 30)
    bench.broker.stop()
    bench.say(2)
    holds(lambda: not spooled(bench.place.spool), 30)
    for path in bench.place.state.glob("roomscribe.db*"):
        path.unlink()
    bench.say(2)
    bench.broker.start()
    bench.reports_trouble()
    bench.heals()


def damaged_running(bench: Bench) -> None:
    """Random places of the database are overwritten under the daemon, the broker being away.

    SQLite may have every page in memory: then the damage is found by the next start.
    """
    bench.start()
    bench.say(4)
    holds(lambda: len(bench.heard()) == 4, 30)
    bench.broker.stop()
    bench.say(2)
    holds(lambda: not spooled(bench.place.spool), 30)
    _overwrite(bench.place.state, random.Random(1))
    bench.say(3)
    bench.broker.start()
    bench.reports_trouble(5)
    bench.heals()
    if not bench.case.reported:
        bench.stop()
        bench.start()
        bench.reports_trouble(20)
        bench.say(1)
        bench.heals()


def damaged_between(bench: Bench) -> None:
    """Random places of the database are overwritten while no daemon runs."""
    bench.start()
    bench.say(4)
    holds(lambda: len(bench.heard()) == 4, 30)
    bench.stop()
    _overwrite(bench.place.state, random.Random(2))
    bench.start()
    bench.reports_trouble(20)
    bench.say(3)
    bench.heals()


CASES: dict[str, Callable[[Bench], None]] = {
    "full": full,
    "read-only at the start": read_only,
    f"locked {LOCKED_S:g} s": locked,
    "deleted": deleted,
    "damaged while running": damaged_running,
    "damaged between runs": damaged_between,
}
SHORT = ["full", "deleted", "damaged between runs"]


def run(names: list[str] | None = None) -> list[Case]:
    """Every case, or those named. Raises OSError where no disk can be made."""
    texts = reference_texts(12)
    known = Sentences(texts)
    spoken = [one for one in sentences() if one.number in texts]
    cases = []
    for name in names or list(CASES):
        with ExitStack() as stack:
            bench = Bench(stack, known, spoken)
            bench.case.name = name
            try:
                CASES[name](bench)
            except (TimeoutError, BrokenPipeError, subprocess.CalledProcessError) as error:
                bench.case.trouble = f"{error!r}"
            cases.append(bench.case)
            if bench.case.broken:
                log = bench.place.log.read_text(encoding="utf-8", errors="replace")
                print(f"--- {bench.case}\n{log[-4000:]}")
    return cases


def _remount(bench: Bench, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(bench.place.state)], check=True)


def _overwrite(state: Path, chance: random.Random) -> None:
    """Garbage at a random place of every page but the first, of which the header is spared."""
    file = state / "roomscribe.db"
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with file.open("r+b") as database:
        for page in range(0, file.stat().st_size, 4096):
            database.seek(page + chance.randrange(100, 4096 - 64))
            database.write(chance.randbytes(64))
