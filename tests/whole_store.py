"""What the tests of the log share: a place in memory, and that a file is whole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.publish.store import Store


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory, for hundreds of commits."""
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


def checked(store: Store) -> list[int]:
    """The numbers of all transcripts, each with the text that belongs to it, in a whole file."""
    connection = store._database.connection
    assert connection is not None
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
    stored = store.after(0, 10_000)
    assert all(one.transcript.text.startswith(f"sentence {one.seq} ") for one in stored)
    return [one.seq for one in stored]
