"""Transcripts as rows of the store's tables: pure functions and the SQL that names the columns."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from appliance.records import Transcript, boot_id

Row = tuple[Any, ...]
"""Values of COLUMNS."""
_RECORD = tuple(entry.name for entry in fields(Transcript))
_FLOATS = tuple(entry.name for entry in fields(Transcript) if entry.type == "float")
_TEXTS = tuple(entry.name for entry in fields(Transcript) if entry.type == "str")
_NAMES = (*_RECORD, "stored", "boot", "boot_s")
_QUOTED = ", ".join(f'"{name}"' for name in _NAMES)
_MARKS = ", ".join("?" * len(_NAMES))
COLUMNS = f"seq, {_QUOTED}"
"""What from_row expects, in its order."""
STORED = 1 + _NAMES.index("stored")
"""Where such a row says when it was stored."""
BEHIND = """WHERE seq > coalesce(
    (SELECT seq FROM transcripts WHERE id = ?1),
    (SELECT max(seq) FROM transcripts WHERE id < ?1), 0) ORDER BY seq LIMIT ?2"""
"""?1: an id; ids begin with the time when they were made."""
INSERT = f"INSERT INTO transcripts ({_QUOTED}) VALUES ({_MARKS}) ON CONFLICT (id) DO NOTHING"
"""What to_row is for."""
INSERT_NUMBERED = f"INSERT OR IGNORE INTO transcripts ({COLUMNS}) VALUES (?, {_MARKS})"
"""A row of COLUMNS as it is, unless its number or id is there."""


class DamagedRowError(ValueError):
    """A row that SQLite gives and that cannot have been stored so."""


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
    for name in _FLOATS:  # SQLite takes "not a number" for NULL, which the tables refuse
        values[name] = 0.0 if math.isnan(values[name]) else float(values[name])
    text = transcript.text.replace("\0", "\N{REPLACEMENT CHARACTER}")  # ends a text for the index
    values["text"] = text.encode("utf-8", "replace").decode("utf-8")
    return (*values.values(), iso(datetime.now(UTC)), boot_id(), boot_clock_s())


def from_row(row: Row) -> StoredTranscript:
    """What a SELECT of COLUMNS gave. Raises DamagedRowError."""
    seq, *values = row
    *record, stored, boot, boot_s = values
    named = dict(zip(_RECORD, record, strict=True))
    try:
        named["start"] = datetime.fromisoformat(named["start"])
        named["end"] = datetime.fromisoformat(named["end"])
        named["flags"] = tuple(json.loads(named["flags"]))
        moment = datetime.fromisoformat(stored)
        for name in _FLOATS:
            named[name] = float(named[name])
        if not all(isinstance(named[name], str) for name in _TEXTS):
            raise TypeError
    except (TypeError, ValueError) as error:
        raise DamagedRowError(f"transcript {seq} has a field that cannot be read") from error
    return StoredTranscript(seq, Transcript(**named), moment, boot, boot_s)
