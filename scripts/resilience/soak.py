"""Feed hours of sound to one daemon as fast as it can: what grows, what is missed.

The daemon is a process of its own that hears a pipe (resilience.fast), so that its memory, file
descriptors and threads are its own. A line of measures is added to FOLDER/soak.jsonl each minute;
started again in the same folder, the hours go on where they stood with a new process. In the end
FOLDER/soak.png shows memory, descriptors, threads and the database over the hours of sound.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilience.accounts import Hearing, stored
from resilience.rig import BYTES_PER_S, Daemon, Place
from resilience.scenes import Sounds, scene
from rigs.broker import Broker
from rigs.mqtt_client import Subscriber
from rigs.waiting import holds

EVERY_S = 60.0
"""Seconds of the wall clock between two lines."""
WARM_UP_H = 1.0
"""Hours of sound before growth is measured, in each process."""
GROWTH_LIMIT = 2.0
"""Percent, over the hours after the warm-up."""
FALSE_LIMIT = 1.0
"""Transcripts for an hour of noise and music."""
STANDS_STILL_S = 120.0


@dataclass
class Soak:
    """What a soak came to."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    trouble: str = ""

    @property
    def last(self) -> dict[str, Any]:
        """The newest measures."""
        return self.lines[-1] if self.lines else {}

    def growth(self) -> tuple[float, float]:
        """Percent that RSS grew in the longest process after its warm-up, and the hours it had."""
        best = (0.0, 0.0)
        for process in {line["process"] for line in self.lines}:
            own = [line for line in self.lines if line["process"] == process]
            points = [
                (line["hours"], line["rss_kib"])
                for line in own
                if line["hours"] - own[0]["began_h"] >= WARM_UP_H
            ]
            if len(points) > 2 and points[-1][0] - points[0][0] > best[1]:
                best = (slope(points), points[-1][0] - points[0][0])
        return best

    @property
    def broken(self) -> bool:
        """True when a promise was not kept."""
        growth, hours = self.growth()
        late = hours > WARM_UP_H and growth >= GROWTH_LIMIT
        noisy = self.last.get("noise_h", 0) >= 0.5 and self.false_per_hour() >= FALSE_LIMIT
        return bool(self.trouble or late or noisy or self.last.get("not_told"))

    def false_per_hour(self) -> float:
        """Transcripts of noise and music alone."""
        return float(self.last["false_noise"] / max(self.last["noise_h"], 1e-9))

    def __str__(self) -> str:
        if not self.lines:
            return f"soak: nothing was heard: {self.trouble}"
        last = self.last
        growth, hours = self.growth()
        kinds = {kind: last[kind] for kind in ("known", "command", "other")}
        heard = ", ".join(
            f"{kind} {one['windows']} of {one['said']}, with text {one['heard']} (over noise "
            f"{one['heard_bed']} of {one['said_bed']})"
            for kind, one in kinds.items()
        )
        return (
            f"soak: {last['hours']:.2f} h of sound in {last['wall_s'] / 60:.1f} min "
            f"({last['hours'] * 3600 / max(1, last['wall_s']):.0f} times real time), RSS "
            f"{last['rss_kib'] / 1024:.0f} MiB, grew {growth:+.2f} % over {hours:.1f} h after "
            f"{WARM_UP_H:g} h; {last['fds']} descriptors, {last['threads']} threads, database "
            f"{last['db_kib']} KiB, spool {last['spool_kib']} KiB; {last['transcripts']} "
            f"transcripts, not told {last['not_told']}; recognised as utterances: {heard}; word "
            f"errors of the known {last['word_errors']:.1f} %; false {last['false_noise']} in "
            f"{last['noise_h']:.2f} h of noise and music ({self.false_per_hour():.2f} per hour), "
            f"{last['false_elsewhere']} elsewhere; discarded {last['discarded']}"
            + (f"; {self.trouble}" if self.trouble else "")
        )


def slope(points: list[tuple[float, float]]) -> float:
    """Percent that a line through the points rises from its begin to its end."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    begin = mean_y + rise * (points[0][0] - mean_x)
    return 100 * rise * (points[-1][0] - points[0][0]) / begin


def measures(daemon: Daemon, place: Place) -> dict[str, int]:
    """RSS, threads, descriptors and sizes, now."""
    proc = Path("/proc") / str(daemon.process.pid)
    status = dict(
        line.split(":", 1)
        for line in (proc / "status").read_text(encoding="ascii", errors="replace").splitlines()
    )
    files = [path for path in place.state.glob("roomscribe.db*") if path.is_file()]
    return {
        "rss_kib": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "fds": len(list((proc / "fd").iterdir())),
        "db_kib": sum(path.stat().st_size for path in files) >> 10,
        "spool_kib": sum(path.stat().st_size for path in place.spool.glob("*.window")) >> 10,
    }


class Run:
    """One process of a soak."""

    def __init__(self, folder: Path, place: Place, daemon: Daemon, listener: Subscriber) -> None:
        self.file = folder / "soak.jsonl"
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        self.soak = Soak([json.loads(line) for line in lines])
        last = self.soak.last
        self.number, self.scene = last.get("process", 0) + 1, last.get("scene", 0)
        self.began_h: float = last.get("hours", 0.0)
        self.wall_s: float = last.get("wall_s", 0.0)
        self.discarded = Counter(last.get("discarded", {}))
        self.published: set[str] = set()
        self._place, self._daemon, self._listener = place, daemon, listener
        self._begun_s, self._before = time.monotonic(), last.get("transcripts", 0)
        rows = stored(place.state)
        self._known = rows[-1][0] if rows else 0
        self.hearing = Hearing(folder / "positions.jsonl", last)

    def feed(self, hours: float, sounds: Sounds, seed: int, every_s: float) -> None:
        """Play scene after scene for this many hours; write a line each minute."""
        line_s = time.monotonic() + every_s
        while self.hours() < hours:
            made = scene(sounds, seed, self.scene)
            rest = made.sound.tobytes()
            self.hearing.plays(self._daemon.written / BYTES_PER_S, made)
            still_s = time.monotonic() + STANDS_STILL_S
            while rest:
                left = self._daemon.feed(rest, 1.0)
                if len(left) < len(rest):
                    still_s = time.monotonic() + STANDS_STILL_S
                elif time.monotonic() > still_s:
                    raise TimeoutError(f"the daemon has taken no sound for {STANDS_STILL_S:g} s")
                rest = left
            self.scene += 1
            self._daemon.look()
            if time.monotonic() >= line_s:
                line_s += every_s
                self.write(self._daemon.consumed() / BYTES_PER_S - 120)

    def hours(self) -> float:
        """Of sound, all processes together."""
        return self.began_h + self._daemon.consumed() / BYTES_PER_S / 3600

    def write(self, until_s: float, waiting: int = 20) -> None:
        """Add a line: everything said before `until_s` of this process is judged.

        So many transcripts may still be on their way to the subscriber.
        """
        found = measures(self._daemon, self._place)
        rows = [row for row in stored(self._place.state) if row[0] > self._known]
        for message in self._listener.messages[:]:
            self._listener.messages.remove(message)
            if message.topic.endswith("/transcript"):
                self.published.add(json.loads(message.payload)["id"])
            elif message.topic.endswith("/discarded"):
                self.discarded[json.loads(message.payload)["reason"]] += 1
        judged = self.hearing.judge({row[1]: row[2] for row in rows}, until_s)
        line = {
            "process": self.number,
            "began_h": self.began_h,
            "hours": self.hours(),
            "wall_s": self.wall_s + time.monotonic() - self._begun_s,
            "scene": self.scene,
            "transcripts": self._before + len(rows),
            "not_told": len({row[1] for row in rows[: len(rows) - waiting]} - self.published),
            "discarded": dict(self.discarded),
            **found,
            **judged,
        }
        self.soak.lines.append(line)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def run(hours: float, folder: Path, seed: int = 0, *, every_s: float = EVERY_S) -> Soak:
    """Soaks until `hours` of sound are full, and draws FOLDER/soak.png."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "positions.jsonl").write_text("", encoding="utf-8")
    sounds = Sounds()
    with Broker() as broker, Place() as memory, Place(folder) as place:
        place.spool = memory.folder / "spool"
        place.configure(broker.port)
        positions = str(folder / "positions.jsonl")
        with (
            Subscriber(broker.port) as listener,
            Daemon(place, ROOMSCRIBE_TORTURE_POSITIONS=positions) as daemon,
        ):
            work = Run(folder, place, daemon, listener)
            try:
                work.feed(hours, sounds, seed, every_s)
                daemon.feed(bytes(5 * BYTES_PER_S), 60)
                holds(lambda: daemon.consumed() >= daemon.written, 60)
                time.sleep(5.0)
                work.write(daemon.consumed() / BYTES_PER_S, waiting=0)
            except (BrokenPipeError, TimeoutError) as error:
                work.soak.trouble = f"the daemon ended or stands still: {error!r}"
            else:
                if status := daemon.end_of_sound():
                    work.soak.trouble = f"the daemon ended with status {status}"
    if work.soak.lines:
        draw(work.soak.lines, folder / "soak.png")
    return work.soak


def draw(lines: list[dict[str, Any]], file: Path) -> None:
    """Write a PNG; without matplotlib there is none, with a line that says so."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("soak: no picture: matplotlib is not installed")
        return
    mpl.use("Agg")
    from matplotlib import pyplot

    hours = [line["hours"] for line in lines]
    panels = {
        "RSS, MiB": [line["rss_kib"] / 1024 for line in lines],
        "file descriptors": [line["fds"] for line in lines],
        "threads": [line["threads"] for line in lines],
        "database, MiB": [line["db_kib"] / 1024 for line in lines],
    }
    figure, axes = pyplot.subplots(len(panels), 1, sharex=True, figsize=(8, 9))
    for axis, (name, values) in zip(axes, panels.items(), strict=True):
        axis.plot(hours, values)
        axis.set_ylabel(name)
        axis.set_ylim(0, max(values) * 1.2 or 1)
        axis.grid(alpha=0.3)
        for before, line in itertools.pairwise(lines):
            if line["process"] != before["process"]:
                axis.axvline(before["hours"], linestyle=":", color="grey")
    axes[-1].set_xlabel("hours of sound")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
