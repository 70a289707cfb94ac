"""`roomscribe benchmark`: the run and its table. Its options are in `options`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from appliance.config import Settings
from appliance.errors import ConfigError, StoreError
from appliance.lab.benchmark.limits import describe_limits
from appliance.lab.benchmark.measure import Measured, measure
from appliance.lab.benchmark.options import DEFAULT_SENTENCES
from appliance.lab.benchmark.padding import padding_table
from appliance.lab.benchmark.rows import Row, make_rows, wanted_rows
from appliance.lab.benchmark.versus import compare_servers
from appliance.lab.recordings import SHIPPED
from appliance.lab.words import Recorded, count_words, missing_packages, read_recordings
from appliance.model import load_bundle
from appliance.system import writing

SCRATCH = "/var/tmp"
"""On a disk: /tmp is memory on Debian trixie, and the bundles of whisper-base are some 800 MB."""
SCHEMA = 2
PACKAGES = ("numpy", "onnxruntime", "faster-whisper", "ctranslate2")
COLUMNS = {
    "encoder_ms": "encoder",
    "decoder_ms": "decoder",
    "total_ms": "total",
    "wall_ms": "wall",
    "peak_mb": "peak MB",
    "wer": "WER",
    "cer": "CER",
    "right": "right",
    "loops": "loops",
    "discarded": "discarded",
}


def run_benchmark(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe benchmark`: 0, or 1 if no row could be measured.

    A row that fails is left out by name. Raises ConfigError, and ModelError for the checkpoint.
    """
    keys = wanted_rows(options.rows)
    _check_output(options.json)
    recordings = _read(options.recordings)
    if missing := missing_packages():
        _tell(f"no word errors without {' and '.join(missing)}: pip install '.[benchmark]'")
    if options.against_wyoming:
        if missing:
            raise ConfigError(f"benchmark --against-wyoming: needs {' and '.join(missing)}")
        print(compare_servers(options.against_wyoming, settings, recordings))
        return 0
    with tempfile.TemporaryDirectory(prefix="roomscribe-benchmark.", dir=_scratch()) as scratch:
        _tell("making the rows' models")
        if options.padding:
            return _compare_padding(options.checkpoint, recordings, Path(scratch))
        rows = make_rows(keys, options.checkpoint, settings, options.threads, Path(scratch))
        lines = list(_measure_all(rows, recordings))
        print(_as_text(lines))
        for row in rows:
            if row.key == "cpu" and row.folder:
                _tell("measuring the limits of this machine")
                print(*describe_limits(load_bundle(row.folder)), sep="\n")
    if options.json:
        packages = {name: found for name in PACKAGES if (found := _version(name))}
        content = {"schema": SCHEMA, "threads": options.threads, "packages": packages}
        try:
            with writing(options.json) as path:
                path.write_text(json.dumps(content | {"rows": lines}, indent=1) + "\n", "utf-8")
        except OSError as error:
            raise StoreError(f"benchmark --json: cannot be written: {error}") from None
    return int(all("absent" in line for line in lines))


def _compare_padding(checkpoint: Path | None, recordings: Sequence[Recorded], scratch: Path) -> int:
    if checkpoint is None or missing_packages():
        raise ConfigError("benchmark --padding: expected --checkpoint and jiwer, found one missing")
    for line in padding_table(checkpoint, recordings, scratch):
        print(line, flush=True)
    return 0


def _measure_all(rows: Sequence[Row], recordings: Sequence[Recorded]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each row; tell after each how long all of them take."""
    begun_s = time.monotonic()
    for number, row in enumerate(rows, 1):
        yield _measure(row, recordings)
        whole_s = (time.monotonic() - begun_s) * len(rows) / number
        _tell(f"{number} of {len(rows)} rows done; about {whole_s:.0f} s in all")


def _measure(row: Row, recordings: Sequence[Recorded]) -> dict[str, Any]:
    """Return a row's figures: times in ms of the processor per recording, memory in MB, errors in
    percent; or why it is `absent`."""
    line: dict[str, Any] = {"key": row.key, "label": row.label}
    if row.absent:
        return line | {"absent": row.absent}
    _tell(f"measuring {row.key} on {len(recordings)} recordings")
    measured = measure(row, recordings)
    if not isinstance(measured, Measured):
        return line | {"absent": measured}
    if used := sorted({one.encoder for one in measured.heard} - {""}):
        line["encoder"] = ", ".join(used)
        _tell(f"{row.key}: encoded by {line['encoder']}")
    for name in ("encoder_ms", "decoder_ms", "total_ms"):
        line[name] = round(measured.mean(name), 2)
    line |= {"wall_ms": round(measured.wall_ms, 2), "peak_mb": round(measured.peak_mb, 1)}
    if not missing_packages():
        words = count_words(measured.heard, recordings)
        line |= asdict(words) | {"wer": round(words.wer, 3), "cer": round(words.cer, 3)}
    return line


def _as_text(lines: Sequence[dict[str, Any]]) -> str:
    """Return the table, with the rows that are left out below it."""
    cells = [["ms of the processor per recording", *COLUMNS.values()]]
    for line in lines:
        if "absent" not in line:
            shown = [f"{line[name]:.4g}" if name in line else "-" for name in COLUMNS]
            cells.append([f"{line['key']}: {line['label']}", *shown])
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    table = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells
    ]
    left_out = [
        f"left out: {line['key']} ({line['label']}): {line['absent']}"
        for line in lines
        if "absent" in line
    ]
    return "\n".join((table if len(cells) > 1 else []) + left_out)


def _read(folder: Path | None) -> list[Recorded]:
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
    return None if "TMPDIR" in os.environ or not Path(SCRATCH).is_dir() else SCRATCH


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _tell(line: str) -> None:
    print(f"roomscribe: {line}", file=sys.stderr, flush=True)
