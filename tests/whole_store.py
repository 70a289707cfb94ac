"""That a log is whole: what the tests of its recovery and of its replacement share."""

from __future__ import annotations

from appliance.publish.store import Store


def checked(store: Store) -> list[int]:
    """The numbers of all transcripts, each with the text that belongs to it, in a whole file."""
    connection = store._database.connection
    assert connection is not None
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
    stored = store.after(0, 10_000)
    assert all(one.transcript.text.startswith(f"sentence {one.seq} ") for one in stored)
    return [one.seq for one in stored]
