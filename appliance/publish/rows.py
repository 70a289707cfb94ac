"""Transcripts as rows of the store's tables: pure functions and the SQL that names the columns."""

from __future__ import annotations

import functools
import json
import time
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from appliance.records import Transcript

TABLES = """
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
);
CREATE INDEX transcripts_by_end ON transcripts ("end");
CREATE TABLE outbox (only INTEGER PRIMARY KEY CHECK (only = 1), cursor INTEGER NOT NULL);
INSERT INTO outbox VALUES (1, 0);
"""
"""Times are UTC with microseconds, so that they sort as text; flags are a JSON list."""

_RECORD = tuple(entry.name for entry in fields(Transcript))
_NAMES = (*_RECORD, "stored", "boot", "boot_s")
_QUOTED = ", ".join(f'"{name}"' for name in _NAMES)
COLUMNS = f"seq, {_QUOTED}"
BEHIND = """WHERE seq > coalesce(
    (SELECT seq FROM transcripts WHERE id = ?1),
    (SELECT max(seq) FROM transcripts WHERE id < ?1), 0) ORDER BY seq LIMIT ?2"""
"""?1: an id; ids begin with the time when they were made."""
"""What from_row expects, in its order."""
INSERT = (
    f"INSERT INTO transcripts ({_QUOTED}) VALUES ({', '.join('?' * len(_NAMES))}) "
    "ON CONFLICT (id) DO NOTHING"
)
"""What to_row is for."""


@dataclass(frozen=True, slots=True)
class StoredTranscript:
    """A transcript that is safe on the disk."""

    seq: int
    """Counts up from 1; never used twice, deleted ones leave a gap."""
    transcript: Transcript
    stored: datetime
    """UTC, by the clock of that moment."""
    boot: str
    """Which run of the machine stored it."""
    boot_s: float
    """Seconds since that run began."""

    def age_s(self) -> float:
        """Seconds since it was stored, at least 0.

        Within one run of the machine a step of the clock does not matter: a Pi has no clock of its
        own, and its time may jump by weeks once the network is there.
        """
        if self.boot and self.boot == boot_id():
            return max(0.0, boot_clock_s() - self.boot_s)
        return max(0.0, (datetime.now(UTC) - self.stored).total_seconds())


@functools.cache
def boot_id() -> str:
    """The kernel's name for this run of the machine; empty when it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def boot_clock_s() -> float:
    """Seconds since the machine started, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def iso(moment: datetime) -> str:
    """`moment` (with a time zone) in UTC as the tables hold it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def to_row(transcript: Transcript) -> tuple[Any, ...]:
    """The values for INSERT, stored now."""
    values = {name: getattr(transcript, name) for name in _RECORD}
    values["start"] = iso(transcript.start)
    values["end"] = iso(transcript.end)
    values["flags"] = json.dumps(transcript.flags)
    return (*values.values(), iso(datetime.now(UTC)), boot_id(), boot_clock_s())


def from_row(row: tuple[Any, ...]) -> StoredTranscript:
    """What a SELECT of COLUMNS gave."""
    seq, *values = row
    *record, stored, boot, boot_s = values
    named = dict(zip(_RECORD, record, strict=True))
    named["start"] = datetime.fromisoformat(named["start"])
    named["end"] = datetime.fromisoformat(named["end"])
    named["flags"] = tuple(json.loads(named["flags"]))
    return StoredTranscript(seq, Transcript(**named), datetime.fromisoformat(stored), boot, boot_s)
