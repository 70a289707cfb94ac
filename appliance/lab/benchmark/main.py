"""`roomscribe benchmark`: the run. Its options are in `options`.

onnx.reference, which onnxruntime.quantization needs, is imported before onnxruntime: Debian's 1.21
adds operators of its own to the table that both share, and onnx 1.17 then refuses to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx.reference  # noqa: F401 - see the docstring
from tqdm import tqdm

from appliance.config import Settings
from appliance.errors import ConfigError, StoreError
from appliance.lab.benchmark import accuracy, report
from appliance.lab.benchmark.measure import measure
from appliance.lab.benchmark.report import Result, as_json, as_text
from appliance.lab.benchmark.rows import KEYS, Row, RowMaker, memory_speed
from appliance.lab.benchmark.subject import Subject, make_subject, wanted_rows
from appliance.system import writing

SCRATCH = "/var/tmp"
"""On a disk: /tmp is memory on Debian trixie, and the files of all rows are some 500 MB."""
UNSCORED = {"uncached"}
"""Rows whose texts are another row's."""


def run_benchmark(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe benchmark`: 0, or 1 when no row could be measured. Raises ConfigError, and
    ModelError for the checkpoint; a row that fails is left out by name."""
    keys = wanted_rows(options.rows, KEYS)
    _check(options)
    with tempfile.TemporaryDirectory(prefix="roomscribe-benchmark.", dir=_scratch()) as scratch:
        _tell("making the rows' files")
        subject = make_subject(
            options.random_weights, options.checkpoint, options.window, Path(scratch)
        )
        room = subject.bundle.max_tokens - len(subject.bundle.prompt)
        if options.tokens > room:
            raise ConfigError(
                f"benchmark --tokens: expected at most {room}, the decoder's context less the "
                f"prompt, found {options.tokens}"
            )
        maker = RowMaker(
            subject,
            Path(scratch),
            options.threads,
            options.tokens,
            options.clock,
            speech_s=options.speech,
            model=settings.model.bundle,
        )
        result = _measure(subject, maker.rows(keys), options)
    print(as_text(result))
    try:
        if options.json:
            with writing(options.json) as path:
                path.write_text(json.dumps(as_json(result), indent=1) + "\n", encoding="utf-8")
        if options.picture and result.measured:
            report.draw(result, options.picture)
    except OSError as error:
        raise StoreError(f"benchmark --json, --picture: cannot be written: {error}") from None
    return 0 if result.measured else 1


def _check(options: argparse.Namespace) -> None:
    """Raise ConfigError for what would fail only after the measurement."""
    troubles = []
    if options.speech is not None and not 0 < options.speech <= options.window:
        troubles.append(
            f"benchmark --speech: expected more than 0 s and at most the window's "
            f"{options.window:g}, found {options.speech:g}"
        )
    if options.picture and (trouble := report.check_package()):
        troubles.append(f"benchmark --picture: {trouble}: pip install 'roomscribe[benchmark]'")
    for name in ("json", "picture"):
        file: Path | None = getattr(options, name)
        try:
            if file and not file.absolute().parent.is_dir():
                troubles.append(f"benchmark --{name}: {file.parent}: no such folder; make it first")
            elif file and file.is_dir():
                troubles.append(f"benchmark --{name}: {file}: is a folder; name a file in it")
        except OSError as error:
            troubles.append(f"benchmark --{name}: {file}: {error.strerror}; name another")
    if options.recordings and options.random_weights:
        troubles.append(
            "benchmark --recordings: made-up weights write no text; give --checkpoint FOLDER"
        )
    elif options.recordings and (missing := accuracy.missing_packages()):
        troubles.append(
            f"benchmark --recordings: expected the packages {' and '.join(missing)}, found none: "
            "pip install 'roomscribe[benchmark]'"
        )
    if troubles:
        raise ConfigError(*troubles)


def _measure(subject: Subject, rows: Sequence[Row], options: argparse.Namespace) -> Result:
    speed = memory_speed(options.threads)
    there = [row for row in rows if row.plan]
    with _bar(len(there) * (options.repeats + 1), "measuring") as bar:
        tried = measure(rows, options.repeats, bar.update)
    troubles = {each.row.key: each.trouble for each in tried if each.trouble}
    measured = [each for each in tried if not each.trouble]
    scores: dict[str, accuracy.Score] = {}
    if options.recordings:
        scored = [each.row for each in measured if each.row.key not in UNSCORED]
        scores = _score(subject, scored, options)
    return Result(
        subject=subject,
        threads=options.threads,
        repeats=options.repeats,
        tokens=options.tokens,
        clock=options.clock,
        speech_s=options.speech or subject.bundle.window_s,
        speed=speed,
        rows=[replace(row, absent=row.absent or troubles.get(row.key, "")) for row in rows],
        measured=measured,
        scores=scores,
    )


def _score(
    subject: Subject, rows: Sequence[Row], options: argparse.Namespace
) -> dict[str, accuracy.Score]:
    recordings, longer = accuracy.read_recordings(options.recordings, subject.bundle.window_s)
    if longer:
        _tell(f"{longer} recordings are longer than a window and are left out of the errors")
    if not recordings:
        raise ConfigError(
            f"benchmark --recordings: expected recordings of at most "
            f"{subject.bundle.window_s:g} s in {options.recordings}, found none"
        )
    with _bar(len(rows) * len(recordings), "listening") as bar:
        found = accuracy.score_rows(rows, subject, recordings, bar.update)
    for key, trouble in found.items():
        if isinstance(trouble, str):
            _tell(f"the errors of {key} are left out: {trouble}")
    return {key: score for key, score in found.items() if isinstance(score, accuracy.Score)}


def _bar(total: int, name: str) -> tqdm:
    """A bar on standard error, where that is a terminal."""
    return tqdm(total=total, desc=name, leave=False, disable=None)


def _scratch() -> str | None:
    """Where the rows' files go: $TMPDIR if set, else /var/tmp if it is there."""
    return None if "TMPDIR" in os.environ or not Path(SCRATCH).is_dir() else SCRATCH


def _tell(line: str) -> None:
    print(f"roomscribe: {line}", file=sys.stderr, flush=True)
