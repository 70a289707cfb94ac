"""`roomscribe benchmark`: the run. Its options are in `options`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from appliance.config import Settings
from appliance.errors import ConfigError, StoreError
from appliance.lab.benchmark.measure import measure
from appliance.lab.benchmark.options import DEFAULT_SENTENCES
from appliance.lab.benchmark.report import Line, as_json, as_text
from appliance.lab.benchmark.rows import Row, make_rows, wanted_rows
from appliance.lab.recordings import SHIPPED
from appliance.lab.words import Recorded, count_words, missing_packages, read_recordings
from appliance.system import writing

SCRATCH = "/var/tmp"
"""On a disk: /tmp is memory on Debian trixie, and the bundles of whisper-base are some 800 MB."""


def run_benchmark(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe benchmark`: 0, or 1 if no row could be measured.

    A row that fails is left out by name. Raises ConfigError, and ModelError for the checkpoint.
    """
    keys = wanted_rows(options.rows, padding=options.padding)
    _check_output(options.json)
    recordings = _read(options.recordings)
    if missing := missing_packages():
        _tell(f"no word errors without {' and '.join(missing)}: pip install '.[benchmark]'")
    with tempfile.TemporaryDirectory(prefix="roomscribe-benchmark.", dir=_scratch()) as scratch:
        _tell("making the rows' models")
        rows = make_rows(keys, options.checkpoint, settings, options.threads, Path(scratch))
        lines = [_measure(row, recordings) for row in rows]
    print(as_text(lines))
    if options.json:
        try:
            with writing(options.json) as path:
                found = json.dumps(as_json(lines, options.threads), indent=1)
                path.write_text(found + "\n", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"benchmark --json: cannot be written: {error}") from None
    return int(all(line.absent for line in lines))


def _measure(row: Row, recordings: Sequence[Recorded]) -> Line:
    if row.absent:
        return Line(row)
    _tell(f"measuring {row.key} on {len(recordings)} recordings")
    measured = measure(row, recordings)
    counted = not measured.trouble and not missing_packages()
    return Line(row, measured, count_words(measured.heard, recordings) if counted else None)


def _read(folder: Path | None) -> list[Recorded]:
    """The recordings. Raises ConfigError if there are none."""
    if folder is None and not SHIPPED.is_dir():
        raise ConfigError("benchmark: no sentences come with this installation; give --recordings")
    found = read_recordings(folder or SHIPPED, 0 if folder else DEFAULT_SENTENCES)
    if not found:
        raise ConfigError(f"benchmark --recordings: no recording in {folder} has a text")
    return found


def _check_output(file: Path | None) -> None:
    """Raise ConfigError for a place that would fail only after the measurement."""
    if file and not file.absolute().parent.is_dir():
        raise ConfigError(f"benchmark --json: {file.parent}: no such folder; make it first")
    if file and file.is_dir():
        raise ConfigError(f"benchmark --json: {file}: is a folder; name a file in it")


def _scratch() -> str | None:
    """Where the bundles go: $TMPDIR if set, else /var/tmp if it is there."""
    return None if "TMPDIR" in os.environ or not Path(SCRATCH).is_dir() else SCRATCH


def _tell(line: str) -> None:
    print(f"roomscribe: {line}", file=sys.stderr, flush=True)
