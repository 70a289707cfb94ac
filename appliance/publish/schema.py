"""The file's layout: its tables, and the numbered steps from one layout to the next."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from appliance.errors import PublishError

SCHEMA = 2
"""Number of the layout, kept in the file's user_version; a higher one is refused."""

_TRANSCRIPTS = (
    """
    CREATE TABLE transcripts (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        utterance_id TEXT NOT NULL,
        "window" INTEGER NOT NULL,
        windows INTEGER,
        start TEXT NOT NULL,
        "end" TEXT NOT NULL,
        text TEXT NOT NULL,
        language TEXT NOT NULL,
        avg_logprob REAL NOT NULL,
        no_speech_prob REAL NOT NULL,
        compression_ratio REAL NOT NULL,
        duration_s REAL NOT NULL,
        model TEXT NOT NULL,
        encoder TEXT NOT NULL,
        encode_ms REAL NOT NULL,
        decode_ms REAL NOT NULL,
        queue_ms REAL NOT NULL,
        latency_ms REAL NOT NULL,
        flags TEXT NOT NULL,
        stored TEXT NOT NULL,
        boot TEXT NOT NULL,
        boot_s REAL NOT NULL
    )""",
    'CREATE INDEX transcripts_by_end ON transcripts ("end")',
    "CREATE TABLE outbox (only INTEGER PRIMARY KEY CHECK (only = 1), cursor INTEGER NOT NULL)",
    "INSERT INTO outbox VALUES (1, 0)",
)
"""Times are UTC with microseconds, so that they sort as text; flags are a JSON list."""

_SEARCH = (
    # which transcripts hold which three letters: finds parts of words, and languages that write
    # no spaces. No positions (detail=none): a third of the size; the text itself has the last word
    """
    CREATE VIRTUAL TABLE search USING fts5(
        text, content = 'transcripts', content_rowid = 'seq', tokenize = 'trigram',
        detail = none, columnsize = 0
    )""",
    """
    CREATE TRIGGER search_added AFTER INSERT ON transcripts BEGIN
        INSERT INTO search (rowid, text) VALUES (new.seq, new.text);
    END""",
    """
    CREATE TRIGGER search_removed AFTER DELETE ON transcripts BEGIN
        INSERT INTO search (search, rowid, text) VALUES ('delete', old.seq, old.text);
    END""",
    """
    CREATE TRIGGER search_changed AFTER UPDATE OF seq, text ON transcripts BEGIN
        INSERT INTO search (search, rowid, text) VALUES ('delete', old.seq, old.text);
        INSERT INTO search (rowid, text) VALUES (new.seq, new.text);
    END""",
    "INSERT INTO search (search) VALUES ('rebuild')",
)

MIGRATIONS = {1: _TRANSCRIPTS, 2: _SEARCH}
"""What makes each layout of the one before it; a new file goes through all of them."""

TABLES = {1: {"transcripts", "outbox"}, 2: {"transcripts", "outbox", "search"}}
"""What a file of each layout holds at least."""


@contextmanager
def indexed_at_once(connection: sqlite3.Connection) -> Iterator[None]:
    """Within the open transaction: what is inserted meanwhile is indexed in one go at the end.

    Row by row it takes ten times as long, for FTS5 writes its index with every statement.
    """
    named = "SELECT sql FROM sqlite_schema WHERE name = 'search_added'"
    trigger = connection.execute(named).fetchone()[0]
    connection.execute("DROP TRIGGER search_added")
    yield
    connection.execute(trigger)
    connection.execute("INSERT INTO search (search) VALUES ('rebuild')")


def version(connection: sqlite3.Connection) -> int:
    """The layout's number; 0 for a new file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def refuse_newer(where: object, found: int) -> None:
    """Raises PublishError when `found` is a layout that this version does not know."""
    if found > SCHEMA:
        raise PublishError(
            f"{where}: expected schema {SCHEMA} or older, found {found}, which a newer Roomscribe "
            "wrote; install that version again, or move the file away to begin a new one"
        )


def migrate(connection: sqlite3.Connection) -> int:
    """Brings the file to the present layout, all steps or none; the layout that it had."""
    if version(connection) >= SCHEMA:
        return SCHEMA
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = version(connection)  # another process may have been quicker
        for step in range(found + 1, SCHEMA + 1):
            for statement in MIGRATIONS[step]:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {max(SCHEMA, found)}")
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    return found
