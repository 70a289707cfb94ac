"""Looks into a log's file that is open."""

import sqlite3

from appliance.store.database import Database
from appliance.store.store import Store


def connection_of(store: Store) -> sqlite3.Connection:
    """SQLite's connection to the open file of a log that is alone, without one in memory."""
    assert isinstance(store._database, Database)
    assert store._database.connection is not None
    return store._database.connection


def checked(store: Store) -> list[int]:
    """The numbers of all transcripts, each with the text that belongs to it, in a whole file."""
    connection = connection_of(store)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
    stored = store.read_after(0, 10_000)
    assert all(one.transcript.text.startswith(f"sentence {one.seq} ") for one in stored)
    return [one.seq for one in stored]
