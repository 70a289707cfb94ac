#!/usr/bin/env python3
"""Cuts the power at random moments of the store's life and looks for what was lost.

A child process stores transcripts (after an update from the first layout), moves the cursor,
deletes, checkpoints and restarts, while strace writes down every write and every fsync. Each cut is
one of the states that a disk may be left in (see torture_power_disk), opened by Store.open, which
must find every transcript whose `append` had returned, unchanged, in a file that is whole.

Prints one line of figures; exit status 1 with any loss, 0 also when strace cannot be used.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torture_power_child
from torture_power_child import OLD, connection_of, make_old_file, sentence
from torture_power_disk import CALLS, Disk, Event, events

from appliance.config import StoreSettings
from appliance.errors import PublishError
from appliance.store import repair
from appliance.store.folders import FILE_NAME
from appliance.store.store import Store

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts"))


def main() -> int:
    """Parses the command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cuts", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--transcripts", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-sync", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    logging.disable()
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        return torture(options, Path(folder))


def torture(options: argparse.Namespace, place: Path) -> int:
    """Lets the child live once, and cuts the power of its disk many times."""
    state = place / "state"
    state.mkdir(mode=0o700)
    make_old_file(state / FILE_NAME)
    begun_with = {file.name: file.read_bytes() for file in state.iterdir()}
    trace = place / "trace"
    command = [
        *("strace", "-y", "-xx", "-s", "10000000", "-o", str(trace), "-e", f"trace={CALLS}"),
        *(sys.executable, torture_power_child.__file__, str(state), str(options.transcripts)),
        *(["--without-sync"] if options.without_sync else []),
    ]
    if not shutil.which("strace"):
        print("power cuts: skipped, strace is not installed")
        return 0
    child = subprocess.run(command, check=False, capture_output=True, text=True)
    if "ptrace" in child.stderr or "PTRACE" in child.stderr:
        print(f"power cuts: skipped, {child.stderr.splitlines()[0]}")
        return 0
    if child.returncode:
        print(child.stderr, file=sys.stderr)
        return 1
    happened = list(events(trace, state, set(begun_with)))
    return report(options, happened, cut_and_look(options, happened, begun_with, place))


def report(options: argparse.Namespace, happened: list[Event], losses: list[str]) -> int:
    """Prints the figures, and the first losses; the exit status."""
    calls = [event.call for event in happened]
    for loss in losses[:5]:
        print(loss, file=sys.stderr)
    print(
        f"power cuts: {options.cuts} among {calls.count('write')} writes and {calls.count('sync')} "
        f"fsyncs of {options.transcripts} transcripts (seed {options.seed}): "
        f"{len(losses)} with a loss or damage"
    )
    return 1 if losses else 0


@dataclass(slots=True)
class Promise:
    """What was promised before a cut."""

    stored: set[int] = field(default_factory=lambda: set(range(1, OLD + 1)))
    perhaps: set[int] = field(default_factory=set)
    """Their deletion was begun."""
    cursor: int = 0
    last: int = OLD

    def hear(self, line: str) -> None:
        """Takes note of what the child says."""
        word, number = line.split()
        match word:
            case "stored":
                self.last = int(number)
                self.stored.add(self.last)
            case "cursor":
                self.cursor = int(number)
            case "deleting":
                self.perhaps |= {int(number)}
            case "keeping":
                self.perhaps |= set(sorted(self.stored)[: -int(number)])
            case "deleted" | "kept":
                self.stored -= self.perhaps
                self.perhaps = set()


def cut_and_look(
    options: argparse.Namespace, happened: list[Event], begun_with: dict[str, bytes], place: Path
) -> list[str]:
    """What was lost, one line a cut."""
    dice = random.Random(options.seed)
    first = next(index for index, event in enumerate(happened) if event.call == "said")
    # a tenth of the cuts fall into the update from the first layout
    cuts = sorted(
        dice.randrange(first) if number % 10 == 0 else dice.randrange(len(happened))
        for number in range(options.cuts)
    )
    disk, promise, losses = Disk(begun_with), Promise(), list[str]()
    for index, event in enumerate(happened):
        while cuts and cuts[0] == index:
            cuts.pop(0)
            loss = look(disk.after_a_cut(dice), promise, dice, place / "cut")
            if loss:
                losses.append(f"cut before call {index} of {len(happened)}: {loss}")
        disk.happen(event)
        if event.call == "said":
            promise.hear(event.data.decode())
    return losses


def look(files: dict[str, bytes], promise: Promise, dice: random.Random, folder: Path) -> str:
    """What is missing or damaged in what a cut left; empty when all is well."""
    folder.mkdir()
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        if dice.random() < 0.5:  # never synced: it may hold anything
            (folder / f"{FILE_NAME}-shm").write_bytes(dice.randbytes(32768))
        with Store.open(StoreSettings(path=str(folder), retention_days=0)) as store:
            return next(compare(store, promise), "")
    except (PublishError, sqlite3.DatabaseError) as error:
        return str(error)
    finally:
        shutil.rmtree(folder)


def compare(store: Store, promise: Promise) -> Iterator[str]:
    """What of the promise does not hold."""
    connection = connection_of(store)
    if repair.asides(store.path):
        yield "the file was damaged and set aside"
    answer = connection.execute("PRAGMA integrity_check").fetchone()[0]
    if answer != "ok":
        yield str(answer)
    connection.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
    there = {stored.seq: stored.transcript for stored in store.after(0, 1_000_000)}
    # the next one may be stored, and one deletion done, before anyone could say so
    for number in promise.stored - promise.perhaps - there.keys():
        yield f"transcript {number} is lost"
    for number in there.keys() - promise.stored - {promise.last + 1}:
        yield f"transcript {number} is there and was deleted or never stored"
    for number, found in there.items():
        if (found.text, found.id) != (sentence(number).text, f"{number:026d}"):
            yield f"transcript {number} is not what it was"
    if store.cursor() < promise.cursor:
        yield f"the cursor is at {store.cursor()}, was promised at {promise.cursor}"
    last = max([promise.last, *there])
    if store.append(sentence(last + 100_000)).seq <= last:
        yield f"a number up to {last} was given again"


if __name__ == "__main__":
    sys.exit(main())
