"""The log: every transcript in one SQLite file, and how far the broker has them.

Any thread may call any method: one connection, one lock, short statements. Another process (the
`log` command) may read the same file beside the daemon, thanks to SQLite's write-ahead log.
The retention deletes by age, by the wall clock, and by size. A transcript that may still be
published is not deleted by age: a jump of the clock must not take it.
Every failure is a StoreError of one line. It leaves the file as it was before the call, and the
call may be repeated. A damaged, deleted or replaced file is repaired by the call that finds it so.
"""

import json
import logging
import math
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Self

from appliance.config import Settings, StoreSettings, store_folder
from appliance.errors import StoreError
from appliance.records import HEARD_HERE, HeardIn, Transcript
from appliance.store import repair, tables
from appliance.store.database import AccessMode, Database
from appliance.store.fallback import TRY_EVERY_S, DatabaseWithFallback, fallback_folders
from appliance.store.files import plain_errors
from appliance.store.folders import FILE_NAME, MemoryFolder
from appliance.store.tables import StoredTranscript, Wanted, where
from appliance.store.utterance_history import LogHistory
from appliance.system import Closing

log = logging.getLogger("roomscribe.store")

PAGE = 500
"""Transcripts in memory at a time while many are read."""
_DELETE_WAIT_S = 5.0
"""Longest wait for readers of the -wal file when a person deletes transcripts."""
_PAUSE_S = 0.002
"""Between two steps of a deletion, for other threads that wait for the lock."""
_ALL = Wanted()
_REWRITE_EVERY_S = 86_400.0
"""Least time between two rewrites of the whole file by the retention."""
_BEYOND = "seq <= (SELECT seq FROM transcripts ORDER BY seq DESC LIMIT 1 OFFSET ?)"
"""Condition for all but the given number of the newest."""
_ROUNDS = 8
"""Most attempts to delete by size, which estimates by the average row."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """What `Store.delete` did."""

    count: int
    gone: bool
    """False while a reader still uses the deleted pages; the daemon overwrites them later."""


class Store(Closing):
    """The open log. `append` returns after the commit is on the disk."""

    def __init__(self, database: Database | DatabaseWithFallback, settings: StoreSettings) -> None:
        """Own `database` from now on; use Store.open."""
        self.path = database.path
        self._database = database
        self._settings = settings
        self.history = LogHistory(database)
        """Which sentences the log holds. One thread's, with `append`, `expire` and `delete`."""
        self._rewrite_s = 0.0
        """When the retention may rewrite the file again, on time.monotonic()'s clock."""

    @classmethod
    def open_with_fallback(
        cls,
        settings: Settings,
        report: Callable[[str | None], object],
        try_every_s: float = TRY_EVERY_S,
    ) -> Self:
        """Return the daemon's store, which continues in memory while the file cannot be written.

        `report` is called with the problem, and with None once it is solved. Raises StoreError.
        """
        path = store_folder(settings.store) / FILE_NAME
        memory = MemoryFolder(fallback_folders(settings)[0])
        published = settings.mqtt.enabled
        database = DatabaseWithFallback(path, memory, report, try_every_s, has_subscriber=published)
        return cls(database, settings.store)

    @classmethod
    def open(
        cls, settings: StoreSettings, *, read_only: bool = False, beside_daemon: bool = False
    ) -> Self:
        """Return the store in the configured folder.

        By default it is opened as the daemon does: created if it is missing,
        repaired if it is damaged. With `read_only`, or `beside_daemon` (which may write),
        it is left as it is.

        Raises StoreError if the folder or file is missing (read_only, beside_daemon), cannot be
        created or opened, or was written by another version.
        """
        writer = AccessMode.GUEST if beside_daemon else AccessMode.OWNER
        access = AccessMode.READER if read_only else writer
        return cls(Database(store_folder(settings) / FILE_NAME, access), settings)

    def append(self, transcript: Transcript) -> StoredTranscript:
        """Store `transcript` and return it with its number, once it is safe on the disk.

        The same id is not stored twice, so a failed call may be repeated. Raises StoreError (disk
        full, read-only, busy); nothing is stored then.
        """
        values = tables.to_row(transcript)

        def insert(connection: sqlite3.Connection) -> StoredTranscript:
            connection.execute(tables.INSERT, values)
            found = tables.find(connection, transcript.id)
            if found is None:  # inserted, but its index does not find it
                raise tables.DamagedError("the index of ids is damaged")
            return found

        stored = self._database.write("store a transcript", insert)
        numbering = self._database.numbering
        if self._database.has_subscriber:
            numbering.undelivered[stored.seq] = stored.seq, *values
        numbering.raise_to(highest=stored.seq)
        self.history.add(stored.transcript)
        return stored

    def correct(self, id: str, text: str | None) -> StoredTranscript | None:
        """Store what was really said in the transcript `id`, beside its text; None removes that.

        Return the transcript, or None if the log does not have it. Raises StoreError.
        """

        def update(connection: sqlite3.Connection) -> StoredTranscript | None:
            tables.correct(connection, id, text)
            return tables.find(connection, id)

        return self._database.write("store a correction", update)

    def set_rooms(self, heard: HeardIn) -> None:
        """Store which other rooms heard a sentence, if the log has it. Raises StoreError."""
        sql = "UPDATE transcripts SET heard_better_by = ?, heard_also = ? WHERE id = ?"
        values = (heard.heard_better_by, json.dumps(heard.heard_also), heard.transcript_id)
        self._database.write(
            "store which rooms heard a sentence", lambda db: db.execute(sql, values)
        )

    def read_after(self, seq: int, limit: int = 100) -> list[StoredTranscript]:
        """Return at most `limit` transcripts numbered above `seq`, in order. Raises StoreError."""
        return self._select("AND seq > ?", (seq,), "seq", limit)

    def query(self, wanted: Wanted = _ALL, limit: int = -1) -> list[StoredTranscript]:
        """Return the newest `limit` (-1: all) of `wanted`, in order of their numbers. Raises
        StoreError."""
        return self._select("", (), "seq DESC", limit, wanted)[::-1]

    def walk(self, wanted: Wanted, after: int = 0) -> Iterator[StoredTranscript]:
        """Yield all of `wanted` numbered above `after`, in order; PAGE in memory at a time.

        Raises StoreError.
        """
        while found := self._select("AND seq > ?", (after,), "seq", PAGE, wanted):
            yield from found
            after = found[-1].seq

    def read_page(self, wanted: Wanted, before: int, limit: int) -> list[StoredTranscript]:
        """Return the newest `limit` of `wanted` numbered below `before`, the newest first.

        Raises StoreError.
        """
        return self._select("AND seq < ?", (before,), "seq DESC", limit, wanted)

    def read_latencies(self, since: datetime, limit: int) -> list[float]:
        """Return latency_ms of the newest `limit` transcripts that ended at `since` or later.

        Only those of this appliance's microphone count: clients may send sound faster than it was
        spoken. Raises StoreError.
        """
        sql = (
            'SELECT latency_ms FROM transcripts WHERE "end" >= ? AND source = ? '
            "ORDER BY +seq DESC LIMIT ?"  # the + makes SQLite use the index of "end", not of seq
        )
        values = (tables.iso(since), HEARD_HERE, limit)
        return self._database.read(
            "read the log", lambda found: [row[0] for row in found.execute(sql, values)]
        )

    def count(self, wanted: Wanted) -> int:
        """Return how many transcripts are `wanted`. Raises StoreError."""

        def count(connection: sqlite3.Connection) -> int:
            condition, values = where(wanted)
            sql = f"SELECT count(*) FROM transcripts WHERE {condition}"
            return tables.number(connection, sql, values)

        return self._database.read("read the log", count)

    def has(self, transcript_id: str) -> bool:
        """Return True if the log has that transcript; False if it cannot be read."""
        with suppress(StoreError):
            return self.count(Wanted(ids=(transcript_id,))) > 0
        return False

    def delete(self, wanted: Wanted) -> Deleted:
        """Delete what is `wanted`, published or not, and overwrite its text in the file.

        Others may use the log between the steps. Set-aside damaged files may contain the text and
        are deleted, too. Raises StoreError; a part may be deleted then.
        """
        count, last, begin = 0, -1, True
        condition, values = where(wanted)

        def forget_some(found: sqlite3.Connection) -> tuple[int, int]:
            sql = f"SELECT seq FROM transcripts WHERE {condition} AND seq > ? ORDER BY seq LIMIT ?"
            rows = found.execute(sql, (*values, last, PAGE)).fetchall()
            found.executemany("DELETE FROM transcripts WHERE seq = ?", rows)
            for (seq,) in rows:  # nothing brings it back
                self._database.numbering.undelivered.pop(seq, None)
            return len(rows), rows[-1][0] if rows else last

        steps = 1
        while steps:
            steps, last = self._database.write("delete transcripts", forget_some)
            count += steps
            time.sleep(_PAUSE_S)
        while count and self._database.write(
            "delete transcripts", partial(tables.merge_search, begin=begin)
        ):
            begin = False
            time.sleep(_PAUSE_S)
        self.history.forget()
        gone = self._database.vacuum(_DELETE_WAIT_S, rewrite=count > 0)
        with plain_errors(self.path, "delete the set-aside files"):
            repair.delete_set_aside_files(self.path)
        return Deleted(count, gone)

    def cursor(self) -> int:
        """Return the number of the last transcript that the broker has, 0 at first.

        Raises StoreError.
        """
        return self._number(tables.CURSOR)

    def move_cursor(self, seq: int, *, back: bool = False) -> None:
        """Store that the broker has all transcripts up to `seq`. Raises StoreError.

        With `back` the cursor may only move back: what follows is published once more.
        """
        update = f"UPDATE outbox SET cursor = {'min' if back else 'max'}(cursor, ?)"
        self._database.write("store what the broker has", lambda db: db.execute(update, (seq,)))
        numbering = self._database.numbering
        if back:
            numbering.cursor = min(numbering.cursor, seq)
        numbering.raise_to(cursor=0 if back else seq)

    def highest(self) -> int:
        """Return the highest number ever given, 0 at first. Raises StoreError."""
        return self._number(tables.HIGHEST)

    def depth(self, after: int = 0) -> int:
        """Return how many transcripts the cursor has not passed, of those after that number.
        Raises StoreError."""
        above = f"max(cursor, {after:d})"
        return self._number(f"SELECT count(*) FROM transcripts, outbox WHERE seq > {above}")

    def expire(self, now: datetime) -> int:
        """Delete what is beyond the retention's age, number or size; return how many transcripts.

        Deleted text is overwritten in the file and in its write-ahead log. Unpublished transcripts
        are not deleted by age. Set-aside damaged files are. Raises StoreError.
        """
        published = self._database.has_subscriber
        count = self._database.write(
            "delete old transcripts",
            lambda found: _expire(found, self._settings, now, published=published),
        )
        if count:
            self.history.forget()
        rewrite = count > 0 and time.monotonic() >= self._rewrite_s
        if rewrite:
            self._rewrite_s = time.monotonic() + _REWRITE_EVERY_S
        self._database.vacuum(rewrite=rewrite)
        with plain_errors(self.path, "delete old set-aside files"):
            repair.prune(self.path, self._settings.retention_days, now)
        return count

    def check(self) -> str:
        """Return what SQLite finds damaged on any page, in its words; "" for nothing.

        Raises StoreError.
        """

        def check(connection: sqlite3.Connection) -> str:
            try:
                return repair.quick_check(connection)
            except sqlite3.DatabaseError as error:
                return str(error)

        return self._database.read("check the log", check)

    @property
    def is_rewriting(self) -> bool:
        """True while a deletion rewrites the file, and every caller has to wait for that."""
        return self._database.is_rewriting

    def count_set_aside(self) -> int:
        """Return how many damaged copies lie beside the file."""
        return len(repair.set_aside_files(self.path))

    def poll(self) -> None:
        """Return from the fallback to the file if that is possible, and forget what another process
        has deleted. Call it often; it seldom does anything and raises nothing."""
        if isinstance(self._database, DatabaseWithFallback):
            self._database.poll()
        self.history.poll()

    def close(self) -> None:
        """Close the file; the store cannot be used afterwards."""
        self._database.close()

    def _select(
        self,
        condition: str,
        values: tuple[object, ...],
        order: str,
        limit: int,
        wanted: Wanted = _ALL,
    ) -> list[StoredTranscript]:
        def select(connection: sqlite3.Connection) -> list[StoredTranscript]:
            chosen, found = where(wanted)
            sql = f"{tables.SELECT} WHERE {chosen} {condition} ORDER BY {order} LIMIT {limit:d}"
            return [tables.from_row(row) for row in connection.execute(sql, (*found, *values))]

        return self._database.read("read the log", select)

    def _number(self, sql: str) -> int:
        return self._database.read("read the log", lambda found: tables.number(found, sql))


def _expire(
    connection: sqlite3.Connection, settings: StoreSettings, now: datetime, *, published: bool
) -> int:
    """Delete what is beyond the retention's age and size; return how many transcripts.

    If transcripts are `published`, only those that the cursor has passed are deleted by age.
    """
    count = 0
    if settings.retention_days:
        earliest = tables.iso(now - timedelta(days=settings.retention_days))
        condition = f'"end" < ? AND seq <= ({tables.CURSOR})' if published else '"end" < ?'
        count += tables.forget(connection, condition, (earliest,))
    if settings.retention_mb:
        count += _shrink(connection, settings.retention_mb * 1_000_000)
    return count


def _shrink(connection: sqlite3.Connection, most_bytes: int) -> int:
    """Delete the oldest until the pages in use fit into `most_bytes`; return how many."""
    count = 0
    for _ in range(_ROUNDS):
        pages, free, size = (
            tables.number(connection, f"PRAGMA {name}")
            for name in ("page_count", "freelist_count", "page_size")
        )
        used = (pages - free) * size  # free pages will be used again
        if used <= most_bytes:
            break
        stored = tables.number(connection, "SELECT count(*) FROM transcripts")
        # 5 % more than needed, so that the next transcript does not trigger it again
        most = math.floor(stored * most_bytes / used * 0.95)
        deleted = tables.forget(connection, _BEYOND, (most,))
        if not deleted:
            break
        count += deleted
    return count


@contextmanager
def open_fallback(settings: Settings) -> Iterator[Store | None]:
    """The daemon's log in memory; None if there is none, or this user may not read it."""
    store = None
    for folder in fallback_folders(settings):
        with suppress(OSError, StoreError):
            if (folder / FILE_NAME).exists():
                store = Store.open(replace(settings.store, path=str(folder)), read_only=True)
                break
    try:
        yield store
    finally:
        if store:
            store.close()


def read_newest(settings: Settings, wanted: Wanted, limit: int) -> Iterator[StoredTranscript]:
    """Yield the newest `limit` (0: all) of `wanted`, the oldest first; few in memory at a time.

    While the daemon uses its fallback, they come from there only. Raises StoreError.
    """
    with open_fallback(settings) as fallback:
        if fallback:
            print(
                "roomscribe: the log cannot be written; showing what is kept in memory",
                file=sys.stderr,
            )
            yield from _newest(fallback, wanted, limit)
            return
        with Store.open(settings.store, read_only=True) as file:
            yield from _newest(file, wanted, limit)


def _newest(store: Store, wanted: Wanted, limit: int) -> Iterator[StoredTranscript]:
    newest = store.query(wanted, limit) if limit else []
    if newest or not limit:
        yield from store.walk(wanted, newest[0].seq - 1 if newest else 0)
