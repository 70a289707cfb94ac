"""The log as a file for other programs: every field of every transcript, as CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TextIO

from appliance.errors import PublishError
from appliance.mqtt.events import timestamp
from appliance.records import Transcript
from appliance.store.tables import StoredTranscript

FIELDS = ("seq", *(entry.name for entry in fields(Transcript)), "confidence", "stored")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell beginning so is computed by spreadsheets (OWASP, CSV injection)."""


def write(found: Iterable[StoredTranscript], form: str, output: Path | None) -> int:
    """Writes them as `form` (csv, jsonl) to the file, whole or not at all, or to standard output.

    How many there were. Raises PublishError when the file cannot be written.
    """
    with _opened(output) as stream:
        return (_csv if form == "csv" else _json_lines)(found, stream)


def _csv(found: Iterable[StoredTranscript], stream: TextIO) -> int:
    table = csv.writer(stream)
    table.writerow(FIELDS)
    lines = (table.writerow(map(_cell, as_fields(stored).values())) for stored in found)
    return sum(1 for _ in lines)


def _json_lines(found: Iterable[StoredTranscript], stream: TextIO) -> int:
    lines = (json.dumps(as_fields(stored), ensure_ascii=False) for stored in found)
    return sum(1 for _ in (stream.write(f"{line}\n") for line in lines))


def as_fields(stored: StoredTranscript) -> dict[str, Any]:
    """FIELDS with their values: times in UTC, numbers as they are in the log."""
    heard = stored.transcript
    known = {"seq": stored.seq, **asdict(heard), "confidence": round(heard.confidence, 3)}
    known |= {name: timestamp(getattr(heard, name)) for name in ("start", "end")}
    known |= {"flags": list(heard.flags), "stored": timestamp(stored.stored)}
    return {name: _finite(known[name]) for name in FIELDS}


def _finite(value: object) -> object:
    """None for a number that JSON cannot say."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: object) -> object:
    """A value as a spreadsheet may be given it."""
    text = " ".join(value) if isinstance(value, list) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(_FORMULA) else text


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file for this user alone that takes its name once it is whole."""
    if output is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    beside = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8", newline="") as stream:  # noqa: PTH123
                yield stream
                stream.flush()
                os.fsync(descriptor)
            beside.rename(output)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise
    except OSError as error:
        raise PublishError(
            f"{output}: cannot write the export: expected a folder that this user may write and "
            f"space on its disk, found: {error.strerror}; name another file"
        ) from error
