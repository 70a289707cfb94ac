"""The log's questions: every transcript in one SQLite file, and how far the broker has them.

Any thread may call any method: one connection, one lock, short statements. Another process (the
`log` command) reads the same file beside the daemon, which SQLite's write-ahead log allows.
Every failure is a StoreError of one line, leaves the file as it was before the call and the
store usable: the call can be tried again once the cause is gone. A file that is damaged, deleted
or replaced is put right within the call that finds it so.
"""

from __future__ import annotations

import logging
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Self

from appliance.config import Settings, StoreSettings, store_folder
from appliance.errors import StoreError
from appliance.records import HEARD_HERE, Transcript
from appliance.store import fallback as standin, repair, retention, tables
from appliance.store.database import Access, Database
from appliance.store.fallback import LIMITS, LastingDatabase, Limits
from appliance.store.files import plain_errors
from appliance.store.folders import FILE_NAME, MemoryFolder
from appliance.store.tables import StoredTranscript, Wanted, where
from appliance.store.utterance_history import NEWEST, Said, Sentence

log = logging.getLogger("roomscribe.store")

PAGE = 500
"""So many transcripts are in memory at a time where all are asked for."""
_DELETE_WAIT_S = 5.0
"""A person who deletes waits so long for readers to let go of the -wal file."""
_REWRITE_EVERY_S = 86_400.0
"""The retention rewrites the whole file at most so often."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """What `Store.delete` did."""

    count: int
    gone: bool
    """False while a reader holds on to the deleted pages; the daemon empties them later."""


class Store:
    """The open file. `append` returns after the commit is on the disk."""

    def __init__(self, database: Database | LastingDatabase, settings: StoreSettings) -> None:
        """Takes over `database`; use Store.open."""
        self.path = database.path
        self._database = database
        self._settings = settings
        self._said = Said()
        self._rewrite_s = 0.0
        """When the retention may rewrite the file again, on time.monotonic()'s clock."""
        self._jumped = False
        self._said_in: tuple[sqlite3.Connection, int] | None = None
        """The connection that `_said` was read from and its file's version then; None: not read."""

    @classmethod
    def open_lasting(
        cls, settings: Settings, report: Callable[[str | None], object], limits: Limits = LIMITS
    ) -> Self:
        """The daemon's store, which goes on in memory while the disk of its file refuses.

        `report` is given what is wrong meanwhile, and None once it is well. Raises StoreError.
        """
        path = store_folder(settings.store) / FILE_NAME
        memory = MemoryFolder(standin.places(settings)[0])
        return cls(LastingDatabase(path, memory, report, limits), settings.store)

    @classmethod
    def open(
        cls, settings: StoreSettings, *, read_only: bool = False, beside_daemon: bool = False
    ) -> Self:
        """The store in the configured folder.

        The daemon's is made when missing, brought up to the present layout, and healed when it is
        damaged; with `read_only`, and `beside_daemon` (which may write), it is left as it is.

        Raises StoreError when the folder or file is missing (read_only, beside_daemon), cannot
        be made or opened, or was written by a newer version.
        """
        guest = Access.GUEST if beside_daemon else Access.OWNER
        access = Access.READER if read_only else guest
        return cls(Database(store_folder(settings) / FILE_NAME, access), settings)

    def append(self, transcript: Transcript) -> StoredTranscript:
        """Stores `transcript` and returns it with its number, once it is safe on the disk.

        The same id again is not stored twice, so that a failed append may simply be repeated.
        Raises StoreError (disk full, read-only, busy); nothing is stored then.
        """
        values = tables.to_row(transcript)

        def insert(connection: sqlite3.Connection) -> StoredTranscript:
            connection.execute(tables.insert(connection), values)
            sql = f"{tables.select(connection)} WHERE id = ?"
            row = connection.execute(sql, (transcript.id,)).fetchone()
            if row is None:  # inserted, and not found by its index
                raise tables.DamagedRowError("the index of ids is damaged")
            return tables.from_row(row)

        stored = self._database.write("store a transcript", insert)
        self._database.known.raise_to(highest=stored.seq)
        if self._database.awaited:
            self._database.known.undelivered.append((stored.seq, *values))
        if self._said_in:
            one = stored.transcript
            self._said.add(
                Sentence(one.utterance_id, one.window, one.windows, one.text, one.continues)
            )
        return stored

    def after(self, seq: int, limit: int = 100) -> list[StoredTranscript]:
        """At most `limit` transcripts numbered above `seq`, in order. Raises StoreError."""
        return self._select("WHERE seq > ? ORDER BY seq LIMIT ?", (seq, limit))

    def query(
        self,
        since: datetime | None = None,
        grep: str | Sequence[str] = (),
        limit: int = -1,
        until: datetime | None = None,
    ) -> list[StoredTranscript]:
        """The newest `limit` (-1: all) that ended at or after `since` and contain all of `grep`.

        In order of their numbers. `grep` is plain text of any script, upper and lower case alike.
        Raises StoreError.
        """
        wanted = Wanted(since, until, (grep,) if isinstance(grep, str) else grep)
        return self._wanted(wanted, "", (), f"seq DESC LIMIT {limit:d}")[::-1]

    def walk(self, wanted: Wanted, after: int = 0, page: int = PAGE) -> Iterator[StoredTranscript]:
        """All that are wanted and numbered above `after`, in order; `page` in memory at a time.

        Raises StoreError.
        """
        while found := self._wanted(wanted, "AND seq > ?", (after,), f"seq LIMIT {page:d}"):
            yield from found
            after = found[-1].seq

    def page(self, wanted: Wanted, before: int, limit: int) -> list[StoredTranscript]:
        """The newest `limit` that are wanted and numbered below `before`, the newest first.

        Raises StoreError.
        """
        return self._wanted(wanted, "AND seq < ?", (before,), f"seq DESC LIMIT {limit:d}")

    def count(self, wanted: Wanted) -> int:
        """How many are wanted. Raises StoreError."""

        def count(connection: sqlite3.Connection) -> int:
            condition, values = where(wanted, tables.version(connection) > 1)
            sql = f"SELECT count(*) FROM transcripts WHERE {condition}"
            return tables.number(connection, sql, values)

        return self._database.read("read the log", count)

    def delete(self, wanted: Wanted) -> Deleted:
        """Deletes what is wanted, delivered or not, so that its text is gone from the file.

        With everything, the set-aside damaged files go, too. Raises StoreError.
        """
        count = self._database.write(
            "delete transcripts",
            lambda found: tables.forget(found, *where(wanted, tables.version(found) > 1)),
        )
        self._forget_said()
        gone = self._database.scrub(_DELETE_WAIT_S, rewrite=count > 0)
        if wanted.everything:
            self.delete_asides()
        return Deleted(count, gone)

    def asides(self) -> list[Path]:
        """Damaged files that were set aside: what was deleted here may still be in them."""
        return repair.asides(self.path)

    def delete_asides(self) -> None:
        """Delete the damaged files that were set aside. Raises StoreError."""
        with plain_errors(self.path, "delete the set-aside files"):
            repair.delete_asides(self.path)

    def following(self, since: str | datetime, limit: int) -> list[StoredTranscript]:
        """The first `limit` behind the one of id `since`, or that ended at that time or later.

        In order of their numbers. An id that is not there any more stands for the time when it was
        made. Raises StoreError.
        """
        if isinstance(since, datetime):
            return self._select('WHERE "end" >= ? ORDER BY seq LIMIT ?', (tables.iso(since), limit))
        return self._select(tables.BEHIND, (since, limit))

    def latencies(self, since: datetime, limit: int) -> list[float]:
        """latency_ms of the newest `limit` heard here that ended then or later: sound that others
        send may come faster than it was spoken. Raises StoreError."""
        sql = (
            'SELECT latency_ms FROM transcripts WHERE "end" >= ? AND coalesce(source, ?) = ? '
            "ORDER BY +seq DESC LIMIT ?"  # the + makes SQLite use the index of "end", not of seq
        )
        wanted = (tables.iso(since), HEARD_HERE, HEARD_HERE, limit)
        return self._database.read(
            "read the log", lambda found: [row[0] for row in found.execute(sql, wanted)]
        )

    def said(self, text: str) -> tuple[int, int]:
        """How many of the newest sentences in the log were this text, and how many more only began
        with it, whatever their case and punctuation. One thread's, with `append`.

        They are kept in memory from the first question on; what is deleted, by whomever, counts no
        more. Raises StoreError.
        """

        def look(connection: sqlite3.Connection) -> tuple[int, int]:
            now = connection, tables.number(connection, "PRAGMA data_version")
            if self._said_in != now:
                self._said, self._said_in = Said(_sentences(connection)), now
            return self._said.counts(text)

        return self._database.read("read the log", look)

    def cursor(self) -> int:
        """Number of the last transcript that the broker has, 0 at first. Raises StoreError."""
        self._database.awaited = True
        return self._number(tables.CURSOR)

    def highest(self) -> int:
        """The highest number ever given, 0 at first. Raises StoreError."""
        return self._number(tables.HIGHEST)

    def is_current(self) -> bool:
        """False once the file was deleted or replaced under its name."""
        return self._database.is_current()

    def move_cursor(self, seq: int, *, back: bool = False) -> None:
        """Notes that the broker has all up to `seq`; moves back only if asked to: what is behind
        it is to be told once more. Raises StoreError."""
        update = f"UPDATE outbox SET cursor = {'min' if back else 'max'}(cursor, ?)"
        self._database.write(
            "note what the broker has", lambda found: found.execute(update, (seq,))
        )
        known = self._database.known
        if back:
            known.cursor = min(known.cursor, seq)
        known.raise_to(cursor=0 if back else seq)

    def depth(self) -> int:
        """How many transcripts the broker does not have yet. Raises StoreError."""
        return self._number("SELECT count(*) FROM transcripts, outbox WHERE seq > cursor")

    def expire(self, now: datetime) -> int:
        """Deletes what is beyond the retention's age, number or size; how many transcripts.

        Deleted text is overwritten in the file and in its write-ahead log. Unpublished transcripts
        go, too, but not on the day after a jump of the wall clock.
        Set-aside damaged files go by age, too. Raises StoreError.
        """
        expired = self._database.write(
            "delete old transcripts",
            lambda found: retention.expire(found, self._settings, now),
        )
        count = expired.count
        if count:
            self._forget_said()
        rewrite = count > 0 and time.monotonic() >= self._rewrite_s
        if rewrite:
            self._rewrite_s = time.monotonic() + _REWRITE_EVERY_S
        self._database.scrub(rewrite=rewrite)
        if expired.jumped and not self._jumped:
            log.warning(
                "the clock jumped ahead by more than a day; for one day nothing unpublished is "
                "deleted by age. See that the time is right (timedatectl)"
            )
        self._jumped = expired.jumped
        if expired.jumped:
            return count
        with plain_errors(self.path, "delete old set-aside files"):
            repair.prune(self.path, self._settings.retention_days, now)
        return count

    def look_after(self) -> None:
        """Goes back to the file, of a lasting store, once it can be written again, and forgets what
        another process has deleted. Raises nothing.

        Seldom does anything; for when there is time.
        """
        if isinstance(self._database, LastingDatabase):
            self._database.look_after()
        if self._said_in:
            try:
                self.said("")
            except StoreError:
                self._forget_said()

    def _forget_said(self) -> None:
        """What was said is read again when somebody asks."""
        self._said, self._said_in = Said(), None

    def close(self) -> None:
        """Closes the file; the store is of no use afterwards."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wanted(
        self, wanted: Wanted, more: str, values: tuple[object, ...], order: str
    ) -> list[StoredTranscript]:
        def select(connection: sqlite3.Connection) -> list[StoredTranscript]:
            condition, needed = where(wanted, tables.version(connection) > 1)
            sql = f"{tables.select(connection)} WHERE {condition} {more} ORDER BY {order}"
            return [tables.from_row(row) for row in connection.execute(sql, (*needed, *values))]

        return self._database.read("read the log", select)

    def _select(self, clause: str, values: tuple[object, ...]) -> list[StoredTranscript]:
        def select(connection: sqlite3.Connection) -> list[StoredTranscript]:
            sql = f"{tables.select(connection)} {clause}"
            return [tables.from_row(row) for row in connection.execute(sql, values)]

        return self._database.read("read the log", select)

    def _number(self, sql: str) -> int:
        return self._database.read("read the log", lambda found: tables.number(found, sql))


@contextmanager
def open_stand_in(settings: Settings) -> Iterator[Store | None]:
    """What the daemon keeps in memory, None when it keeps nothing there or not for this user."""
    kept = None
    for place in standin.places(settings):
        with suppress(OSError, StoreError):
            if (place / FILE_NAME).exists():
                kept = Store.open(replace(settings.store, path=str(place)), read_only=True)
                break
    try:
        yield kept
    finally:
        if kept:
            kept.close()


def read_newest(settings: Settings, wanted: Wanted, limit: int) -> Iterator[StoredTranscript]:
    """The newest `limit` (0: all) of those wanted, the oldest first; few in memory at a time.

    From the file, and behind it from what the daemon keeps in memory. Raises StoreError when there
    is neither.
    """
    with open_stand_in(settings) as kept:
        try:
            file = Store.open(settings.store, read_only=True)
        except StoreError as error:
            if kept is None:
                raise
            print(f"roomscribe: {error}; shown is what is kept in memory", file=sys.stderr)
            yield from _newest(kept, wanted, limit)
            return
        with file:
            last = file.highest()
            found = kept.query(wanted.since, wanted.grep, limit or -1, wanted.until) if kept else ()
            later = [stored for stored in found if stored.seq > last]
            if not limit or limit > len(later):
                yield from _newest(file, wanted, limit - len(later) if limit else 0)
            yield from later


def _newest(store: Store, wanted: Wanted, limit: int) -> Iterator[StoredTranscript]:
    newest = store.query(wanted.since, wanted.grep, limit, wanted.until) if limit else []
    if newest or not limit:
        yield from store.walk(wanted, newest[0].seq - 1 if newest else 0)


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a look at the log's file found."""

    file: Path
    in_memory: bool = False
    """True while the daemon keeps what it hears in memory; nothing else was looked at then."""
    there: bool = False
    trouble: str = ""
    """What SQLite finds damaged, in its words."""
    size_bytes: int = 0
    waiting: int = 0
    """Transcripts that the broker does not have."""
    set_aside: int = 0
    """Damaged files beside it."""
    schema: int = tables.SCHEMA


def inspect(settings: Settings, doing: Callable[[str], None] = lambda _what: None) -> Inspection:
    """Looks at every page of the log, which is left as it is; `doing` is told each step before it.

    Raises PermissionError where this user may not look into the folder, and StoreError for a file
    that cannot be opened as a log.
    """
    file = store_folder(settings.store) / FILE_NAME
    with open_stand_in(settings) as kept:
        if kept is not None:
            return Inspection(file, in_memory=True)
    if not file.exists():
        return Inspection(file)
    doing(f"opening {file}")
    with Store.open(settings.store, read_only=True) as opened:
        doing(f"checking every page of {file}")
        trouble = opened._database.read("check the log", _quick_check)
        if trouble:
            return Inspection(file, there=True, trouble=trouble)
        waiting = opened.depth()
    size, aside = file.stat().st_size, len(repair.asides(file))
    return Inspection(file, there=True, size_bytes=size, waiting=waiting, set_aside=aside)


def _quick_check(connection: sqlite3.Connection) -> str:
    try:
        return repair.quick_check(connection)
    except sqlite3.DatabaseError as error:
        return str(error)


def _sentences(connection: sqlite3.Connection) -> list[Sentence]:
    """The newest sentences of the file, in order; what cannot be read is passed over."""
    continues = "continues" if tables.version(connection) > 3 else "NULL"
    rows = connection.execute(
        f'SELECT utterance_id, "window", windows, text, {continues} FROM transcripts '
        "WHERE typeof(text) = 'text' ORDER BY seq DESC LIMIT ?",
        (NEWEST,),
    )
    return [Sentence(*row) for row in rows][::-1]
