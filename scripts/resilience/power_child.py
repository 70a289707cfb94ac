"""The program whose power is cut: it uses a store and prints what the store has promised.

python -m resilience.power_child FOLDER TRANSCRIPTS [--without-sync]
"""

import os
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rigs.stores import connection_of

from appliance.config import StoreSettings
from appliance.records import Transcript, new_id
from appliance.store import tables
from appliance.store.store import Store
from appliance.store.tables import Wanted

OLD = 30
"""Transcripts in the file of the first layout that it begins with."""
RETAINED = 120
"""Numbers before the last one whose transcripts stay when old ones are deleted."""
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def live(folder: Path, transcripts: int, without_sync: bool) -> None:
    """What a daemon does with its store, told on standard output as soon as it is promised."""
    settings = StoreSettings(path=str(folder), retention_days=0)
    store = Store.open(settings)
    for number in range(OLD + 1, OLD + transcripts + 1):
        connection = connection_of(store)
        connection.execute("PRAGMA wal_autocheckpoint = 40")
        if without_sync:
            connection.execute("PRAGMA synchronous = OFF")
        stored = store.append(sentence(number))
        assert stored.seq == number
        say(f"stored {number}")
        if number % 5 == 0:
            store.move_cursor(number - 3)
            say(f"cursor {number - 3}")
        if number % 23 == 0:
            say(f"deleting {number - 7}")
            store.delete(Wanted(grep=(f"sentence {number - 7} ",)))
            say(f"deleted {number - 7}")
        if number % 60 == 0:
            first = number - RETAINED + 1
            say(f"keeping {first}")
            store.delete(Wanted(until=NOON + timedelta(seconds=first)))
            say(f"kept {first}")
        if number % 70 == 0:
            store.close()
            store = Store.open(settings)
    store.close()


def say(line: str) -> None:
    """One line, in one call, at once."""
    os.write(1, f"{line}\n".encode())


def sentence(number: int) -> Transcript:
    """The transcript of a number; some are longer than a page."""
    text = f"sentence {number} " + "turn on the light " * (400 if number % 17 == 0 else 3)
    return Transcript(
        f"{number:026d}", new_id(0), 1, 1, NOON, NOON + timedelta(seconds=number), text, "en",
        -0.2, 0.1, 1.1, 2.5, "tiny.en", "cpu", 80.0, 200.0, 5.0, 500.0, (), 0.8,
    )  # fmt: skip


def make_old_file(path: Path) -> None:
    """A file with OLD transcripts, all of it on the disk."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        tables.create(connection)
        for number in range(1, OLD + 1):
            connection.execute(tables.INSERT, tables.to_row(sentence(number)))


if __name__ == "__main__":
    live(Path(sys.argv[1]), int(sys.argv[2]), "--without-sync" in sys.argv)
