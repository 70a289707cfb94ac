"""Whatever a disk does while sentences come: full, read-only, locked, file gone, file damaged.

Every sentence that was spoken must reach a subscriber; the trouble must be in `state`, and heal
without a restart. Each case has a disk, a daemon and a broker of its own.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from torture_count import Sentences
from torture_disk_scene import Case, Scenery
from torture_left import spooled
from torture_rig import reference_texts, sentences, until

LOCKED_S = 8.0
"""Longer than a statement waits for another process."""


def full(place: Scenery) -> None:
    """The disk is full, and has room again."""
    place.start()
    place.say(2)
    ballast = place.place.state / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    place.say(3)
    place.complains()
    place.say(2)
    ballast.unlink()
    place.heals()


def read_only(place: Scenery) -> None:
    """The disk is read-only when the daemon starts, and becomes writable while it runs."""
    place.start()
    place.say(2)
    place.stop()
    _remount(place, "ro")
    place.start()
    place.say(3)
    place.complains()
    _remount(place, "rw")
    place.heals()


def refused(place: Scenery) -> None:
    """Files and folder become unchangeable under the running daemon, and changeable again."""
    place.start()
    place.say(2)
    state = place.place.state
    # without -shm: a mapped page that cannot be written is SIGBUS, whatever a program does
    names = [str(state), str(state / "roomscribe.db"), str(state / "roomscribe.db-wal")]
    subprocess.run(["chattr", "+i", *names], check=True)
    place.say(3)
    place.complains()
    subprocess.run(["chattr", "-i", *names], check=True)
    place.heals()


def locked(place: Scenery) -> None:
    """Another process holds the database's write lock for a while."""
    place.start()
    place.say(2)
    other = sqlite3.connect(place.place.state / "roomscribe.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun_s = time.monotonic()
    place.say(2)
    place.complains(LOCKED_S)
    time.sleep(max(0.0, LOCKED_S - (time.monotonic() - begun_s)))
    other.execute("ROLLBACK")
    other.close()
    place.heals()


def deleted(place: Scenery) -> None:
    """The database is deleted under the daemon, while the broker is away."""
    place.start()
    place.say(2)
    until(lambda: len(place.heard()) == 2, 30)
    place.broker.stop()
    place.say(2)
    until(lambda: not spooled(place.place.spool), 30)
    for path in place.place.state.glob("roomscribe.db*"):
        path.unlink()
    place.say(2)
    place.broker.start()
    place.complains()
    place.heals()


def damaged_running(place: Scenery) -> None:
    """Random places of the database are overwritten under the daemon, the broker being away.

    SQLite may have every page in memory: then the damage is found by the next start.
    """
    place.start()
    place.say(4)
    until(lambda: len(place.heard()) == 4, 30)
    place.broker.stop()
    place.say(2)
    until(lambda: not spooled(place.place.spool), 30)
    _overwrite(place.place.state, random.Random(1))
    place.say(3)
    place.broker.start()
    place.complains(5)
    place.heals()
    if not place.case.told:
        place.stop()
        place.start()
        place.complains(20)
        place.say(1)
        place.heals()


def damaged_between(place: Scenery) -> None:
    """Random places of the database are overwritten while no daemon runs."""
    place.start()
    place.say(4)
    until(lambda: len(place.heard()) == 4, 30)
    place.stop()
    _overwrite(place.place.state, random.Random(2))
    place.start()
    place.complains(20)
    place.say(3)
    place.heals()


CASES: dict[str, Callable[[Scenery], None]] = {
    "full": full,
    "read-only at the start": read_only,
    "refused": refused,
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
    said = [one for one in sentences() if one.number in texts]
    cases = []
    for name in names or list(CASES):
        with ExitStack() as stack:
            place = Scenery(stack, known, said)
            place.case.name = name
            try:
                CASES[name](place)
            except (TimeoutError, BrokenPipeError, subprocess.CalledProcessError) as error:
                place.case.trouble = f"{error!r}"
            cases.append(place.case)
            if place.case.broken:
                log = place.place.log.read_text(encoding="utf-8", errors="replace")
                print(f"--- {place.case}\n{log[-4000:]}")
    return cases


def _remount(place: Scenery, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place.place.state)], check=True)


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
