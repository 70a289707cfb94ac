"""A small disk, a daemon on it, a broker and a subscriber: where the disk's troubles are played."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rigs.broker import Broker
from rigs.publishing import Subscriber
from torture_count import Sentences, Verdict, compare, first_times
from torture_left import spooled
from torture_rig import STEP, Daemon, Place, Said, until

HEALS_WITHIN_S = 60.0
SIZE_MIB = 6


@dataclass
class Case:
    """What one trouble left."""

    name: str
    said: list[int] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    told: str = ""
    """Where the trouble was told: `state`, or, when it was healed at once, the log."""
    healed_s: float | None = None
    trouble: str = ""

    @property
    def broken(self) -> bool:
        """True when a promise was not kept."""
        return bool(self.verdict.broken or not self.told or self.healed_s is None or self.trouble)

    def __str__(self) -> str:
        faults = f"{self.verdict}" if self.verdict.broken else "nothing lost"
        told = f"told in {self.told}" if self.told else "NOT TOLD"
        healed = "NOT HEALED" if self.healed_s is None else f"well {self.healed_s:.1f} s later"
        return f"{self.name}: {len(self.said)} said, {faults}, {told}, {healed}" + (
            f", {self.trouble}" if self.trouble else ""
        )


class Scenery:
    """A small ext4 disk, a daemon on it, a broker and a subscriber with a kept session."""

    def __init__(self, stack: ExitStack, known: Sentences, said: list[Said]) -> None:
        self.place = stack.enter_context(Place())
        self.place.state.mkdir()
        stack.enter_context(disk(self.place.folder / "disk.img", self.place.state))
        self.broker = stack.enter_context(Broker(persistent=True))
        self.listener = stack.enter_context(Subscriber(self.broker.port))
        self.place.configure(self.broker.port)
        self.case = Case("")
        self.daemon: Daemon | None = None
        self._stack, self._known, self._sentences = stack, known, said
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
        """Speaks the next sentences; returns when they were heard to their end."""
        assert self.daemon
        for _ in range(count):
            one = self._sentences[len(self.case.said) % len(self._sentences)]
            if self.daemon.feed(one.pcm, 60):
                raise TimeoutError("the daemon takes no sound")
            self.case.said.append(one.number)
        if self.daemon.feed(bytes(6 * STEP), 60) or not until(self._read, 60):
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

    def complains(self, within_s: float = 30.0) -> None:
        """Waits until the trouble is told."""

        def told() -> str:
            if any(one["status"] == "degraded" for one in self.states()):
                return "state"
            log = self.place.log.read_text(encoding="utf-8", errors="replace")
            return "the log" if re.search(r" ERROR .*roomscribe\.db", log) else ""

        until(told, within_s)
        self.case.told = told()

    def heals(self) -> None:
        """Waits until all is told, nothing is spooled and `state` is well."""
        begun_s = time.monotonic()

        def well() -> bool:
            return (
                len(self.heard()) >= len(self.case.said)
                and not spooled(self.place.spool)
                and self.states()[-1]["status"] == "running"
            )

        if until(well, HEALS_WITHIN_S):
            self.case.healed_s = time.monotonic() - begun_s
        if self.daemon is None or not self.daemon.alive():
            self.case.trouble = "the daemon ended"
        self.case.verdict = compare(self.case.said, self._known.of(self.heard()))


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
