"""What a daemon left behind, read without touching it: its store and its spool."""

from __future__ import annotations

import shutil
import sqlite3
import struct
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path


def stored(state: Path) -> list[tuple[int, str, str]]:
    """Number, id and text of what a store holds, in order; from a copy: the store is untouched."""
    with tempfile.TemporaryDirectory(dir=state.parent) as folder:
        for suffix in ("", "-wal"):
            file = state / f"roomscribe.db{suffix}"
            if file.exists():
                shutil.copyfile(file, Path(folder) / file.name)
        copy = Path(folder) / "roomscribe.db"
        if not copy.exists() or not copy.stat().st_size:
            return []
        connection = sqlite3.connect(copy)
        try:
            return connection.execute(
                "SELECT seq, id, text FROM transcripts ORDER BY seq"
            ).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
        finally:
            connection.close()


@dataclass(frozen=True)
class Waiting:
    """A window that waits in a spool."""

    id: str
    attempts: int
    """How often a process died while it transcribed it, this one included."""


_SPOOL_FRONT = struct.Struct("<6sBBII")


def spooled(spool: Path) -> list[Waiting]:
    """What waits in a spool, in order; a file that was written whole and not renamed, too."""
    found = []
    for path in sorted(spool.glob("*.window*")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # done with in this moment
            continue
        if len(data) < _SPOOL_FRONT.size:
            continue
        _, _, attempts, _, checksum = _SPOOL_FRONT.unpack_from(data)
        if zlib.crc32(data[_SPOOL_FRONT.size :]) == checksum:
            found.append(Waiting(path.name.split(".")[0].rsplit("-", 1)[1], attempts))
    return found
