"""Measure how long the page's charts of sentences take in a log of a million.

    scripts/measure counts [SENTENCES]

A log on the disk with that many sentences, evenly over the last 30 days. The charts are counted 20
times as the page requests them, 24 hours and 30 days, through the daemon's command `count`. A new
sentence waits at most for one of its 54 statements.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from rigs.publishing import transcript
from rigs.stores import connection_of

from appliance.config import StoreSettings
from appliance.daemon.log_commands import LogCommands
from appliance.store import Store, Wanted
from appliance.store.tables import indexed_at_once, transaction

SENTENCES, TIMES, DAYS = 1_000_000, 20, 30
TARGET_MS = 500.0
FILL = """
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)
    INSERT INTO transcripts ({columns})
    SELECT {values} FROM numbers, (SELECT * FROM transcripts WHERE seq = 1)
"""
END = """strftime('%Y-%m-%dT%H:%M:%S', :now - n * :span / :count, 'unixepoch') || '.000000+00:00'"""


def main() -> int:
    """Print the figures; return 1 if a target is missed."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SENTENCES
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(StoreSettings(path=folder)) as store,
    ):
        fill(store, count)
        size_mb = store.path.stat().st_size / 1e6
        print(f"{store.count(Wanted())} sentences in {DAYS} days, {size_mb:.0f} MB")
        count_between = LogCommands(store, "kitchen").commands["count"]
        day, hour = timedelta(days=1), timedelta(hours=1)
        show_plan(store, lambda: count_between({"times": times_of(1, day)}))
        requests = [{"times": times_of(24, hour)}, {"times": times_of(DAYS, day)}]
        taken_ms = [timed(lambda: [count_between(one) for one in requests]) for _ in range(TIMES)]
        one_ms = [timed(lambda: count_between({"times": times_of(1, day)})) for _ in range(TIMES)]
    print(
        f"both charts: median {statistics.median(taken_ms):.0f} ms, longest {max(taken_ms):.0f} of "
        f"{TIMES}; one day, a single statement: longest {max(one_ms):.1f} ms"
    )
    return int(statistics.median(taken_ms) > TARGET_MS)


def fill(store: Store, count: int) -> None:
    """Put `count` sentences into the log, evenly over the last DAYS days."""
    store.append(transcript(end=datetime.now(UTC)))
    connection = connection_of(store)
    names = [row[1] for row in connection.execute("PRAGMA table_info(transcripts)")][1:]
    made = {"id": "printf('%032d', n)", "end": END}
    given = {
        "columns": ", ".join(f'"{name}"' for name in names),
        "values": ", ".join(made.get(name, f'"{name}"') for name in names),
    }
    span_s = DAYS * 86_400
    with transaction(connection), indexed_at_once(connection):
        connection.execute(
            FILL.format(**given), {"count": count - 1, "now": int(time.time()), "span": span_s}
        )


def times_of(count: int, step: timedelta) -> list[str]:
    """Return the borders of the last `count` steps, as the page sends them."""
    now = datetime.now(UTC)
    return [(now - step * ago).isoformat() for ago in range(count, -1, -1)]


def show_plan(store: Store, work: Callable[[], object]) -> None:
    """Print SQLite's plan for the counting statement of `work`."""
    connection, statements = connection_of(store), list[str]()
    connection.set_trace_callback(statements.append)
    work()
    connection.set_trace_callback(None)
    counting = next(one for one in statements if "count(*)" in one)
    for *_, plan in connection.execute(f"EXPLAIN QUERY PLAN {counting}"):
        print(f"plan: {plan}")


def timed(work: Callable[[], object]) -> float:
    """Return the milliseconds that `work` takes."""
    begun_s = time.perf_counter()
    work()
    return (time.perf_counter() - begun_s) * 1000


if __name__ == "__main__":
    sys.exit(main())
