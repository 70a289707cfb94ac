"""`roomscribe benchmark`: the run and its tables. Its options are in `options`."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from appliance.config import Settings
from appliance.errors import ConfigError, StoreError
from appliance.lab.benchmark import cache, guards, padding
from appliance.lab.benchmark.limits import describe_limits
from appliance.lab.benchmark.measure import Measured, measure, weigh
from appliance.lab.benchmark.options import DEFAULT_SENTENCES
from appliance.lab.benchmark.rows import FASTER_WHISPER, Row, make_rows, wanted_rows
from appliance.lab.benchmark.table import as_chart, as_markdown
from appliance.lab.recordings import SHIPPED
from appliance.lab.words import Recorded, count_words, missing_packages, read_recordings
from appliance.model import load_bundle
from appliance.records import SAMPLE_RATE
from appliance.system import writing

SCRATCH = "/var/tmp"
"""On a disk: /tmp is memory on Debian trixie, and the bundles of whisper-base are some 800 MB."""
SCHEMA = 3
PACKAGES = ("numpy", "onnxruntime", "faster-whisper", "ctranslate2")
COLUMNS = {
    "encoder_ms": "encoder ms",
    "decoder_ms": "decoder ms",
    "total_ms": "total ms",
    "speed_up": "speed-up",
    "real_time_factor": "real-time factor",
    "first_ms": "first token ms",
    "next_ms": "next tokens ms",
    "wer": "WER %",
    "interval": "95 % interval",
    "cer": "CER %",
    "plain_wer": "plain WER %",
    "plain_cer": "plain CER %",
    "right": "texts right",
    "loops": "loops",
    "discarded": "discarded",
}
MEMORY = {
    "encoder_mb": "encoder",
    "encoder_warm_mb": "+ first use",
    "decoder_mb": "decoder",
    "decoder_warm_mb": "+ first use",
    "peak_mb": "whole process, at most",
}
SIMULATED = ("encoder_ms", "total_ms", "speed_up", "real_time_factor", *list(MEMORY))
"""What a simulated chip says nothing of."""
UNMEASURED = "not measured"
OTHERS = {
    "cache": (cache.COLUMNS, cache.cache_table),
    "padding": (padding.COLUMNS, padding.padding_table),
    "guards": (guards.COLUMNS, guards.guards_table),
}
"""Tables apart from the rows, by their options."""


def run_benchmark(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe benchmark`: 0, or 1 if no row could be measured.

    A row that fails is left out by name. Raises ConfigError, and ModelError for the checkpoint.
    """
    for name in ("json", "chart"):
        _check_output(name, getattr(options, name))
    chosen = [name for name in OTHERS if getattr(options, name)]
    lacking = missing_packages()
    if chosen and options.checkpoint is None:
        raise ConfigError(f"benchmark --{chosen[0]}: expected --checkpoint FOLDER, found none")
    if chosen and lacking:
        needed = " and ".join(lacking)
        raise ConfigError(f"benchmark --{chosen[0]}: needs {needed}: pip install '.[benchmark]'")
    if chosen and options.chart:
        raise ConfigError(
            f"benchmark --chart: expected no --{chosen[0]}, which has no rows to draw"
        )
    tables = {}
    for name, lines in benchmark_tables(options, settings, chosen or ["rows"]):
        print(as_page(name, lines), flush=True)
        tables[name] = lines
    if options.json:
        packages = dict[str, str]()
        for name in PACKAGES:
            with suppress(PackageNotFoundError):
                packages[name] = version(name)
        content = {"schema": SCHEMA, "threads": options.threads, "packages": packages}
        _write(options.json, "json", json.dumps(content | tables, indent=1) + "\n")
    if options.chart:
        _write(options.chart, "chart", draw_chart(tables["rows"]))
    return int(not chosen and all("absent" in line for line in tables["rows"]))


def benchmark_tables(
    options: argparse.Namespace, settings: Settings, names: Sequence[str], simulated: bool = False
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the tables of these names: of "rows" the figures, of the others their cells by column.

    `simulated`: no real chip stands behind the settings' model. Raises as `run_benchmark`.
    """
    keys = wanted_rows(options.rows)
    recordings = _read(options)
    with tempfile.TemporaryDirectory(prefix="roomscribe-benchmark.", dir=_scratch()) as scratch:
        for name in names:
            _tell(f"making the models of {name}")
            if name == "rows":
                given = settings, options.threads, Path(scratch)
                made = make_rows(keys, options.checkpoint, *given)
                rows = [replace(row, decoder=options.npu_decoder) for row in made]
                yield name, list(_measure_all(rows, recordings, simulated))
                continue
            columns, table = OTHERS[name]
            cells = table(options.checkpoint, recordings, Path(scratch))
            yield name, [dict(zip(columns, row, strict=True)) for row in cells]


def _measure_all(
    rows: Sequence[Row], recordings: Sequence[Recorded], simulated: bool
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each row; tell after each how long all of them take."""
    begun_s, first_ms = time.monotonic(), 0.0
    sound_ms = 1000 * sum(len(one.samples) for one in recordings) / SAMPLE_RATE / len(recordings)
    for number, row in enumerate(rows, 1):
        line = _measure(row, recordings)
        if total_ms := line.get("total_ms"):
            first_ms = first_ms or total_ms
            line["speed_up"] = round(first_ms / total_ms, 2)
            line["real_time_factor"] = round(total_ms / sound_ms, 3)
        if simulated and row.on_chip and "absent" not in line:
            line["label"] += " (a simulated chip)"
            left = SIMULATED if row.key == "hybrid" else (*SIMULATED, "decoder_ms")
            line |= dict.fromkeys(left, UNMEASURED)
        yield line
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
    for name in ("wall_ms", "peak_mb", "first_ms", "next_ms"):
        if (found := getattr(measured, name)) is not None:
            line[name] = round(found, 2)
    for part in ("encoder", "decoder") if row.has_cache else ():
        weighed = weigh(row, part)
        if not isinstance(weighed, str):
            names = f"{part}_mb", f"{part}_warm_mb"
            line |= {name: round(mb, 1) for name, mb in zip(names, weighed, strict=True)}
    if not missing_packages():
        words = count_words(measured.heard, recordings)
        plain = count_words(measured.heard, recordings, normalised=False)
        low, high = words.interval
        line |= asdict(words) | {"interval": f"{low:.1f}-{high:.1f}"}
        for name, counts in (("", words), ("plain_", plain)):
            line |= {f"{name}wer": round(counts.wer, 3), f"{name}cer": round(counts.cer, 3)}
    if row.key.startswith(FASTER_WHISPER):
        line.pop("discarded", None)  # it does not tell
    if row.key == "cpu" and row.folder and find_spec("onnx"):
        line["limits"] = describe_limits(load_bundle(row.folder))
    return line


def as_page(name: str, lines: Sequence[dict[str, Any]]) -> str:
    """Return a table of `benchmark_tables` as Markdown."""
    if name == "rows":
        return _rows_as_text(lines)
    return as_markdown(list(lines[0]), [list(line.values()) for line in lines])


def _rows_as_text(lines: Sequence[dict[str, Any]]) -> str:
    """Return the tables of the rows; below them what is the least, and the rows left out."""
    found = [line for line in lines if "absent" not in line]
    tables = []
    for first, columns in (
        ("ms of the processor per recording", COLUMNS),
        ("memory, MB, each part in a process of its own", MEMORY),
    ):
        cells = [[line["label"], *(_cell(line.get(name)) for name in columns)] for line in found]
        tables += [as_markdown([first, *columns.values()], cells)] if found else []
    left_out = [
        f"left out: {line['key']} ({line['label']}): {line['absent']}"
        for line in lines
        if "absent" in line
    ]
    limits = [line["limits"] for line in lines if "limits" in line]
    return "\n\n".join([*tables, *limits, "\n".join(left_out)])


def _cell(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def draw_chart(lines: Sequence[dict[str, Any]]) -> str:
    """Return the rows whose times were measured as an SVG."""
    bars = [
        (line["label"], line["encoder_ms"], line["decoder_ms"])
        for line in lines
        if not isinstance(line.get("encoder_ms", ""), str)
    ]
    return as_chart("Processor time of a recording, ms", bars)


def _write(file: Path, option: str, text: str) -> None:
    try:
        with writing(file) as path:
            path.write_text(text, "utf-8")
    except OSError as error:
        raise StoreError(f"benchmark --{option}: cannot be written: {error}") from None


def _read(options: argparse.Namespace) -> list[Recorded]:
    folder: Path | None = options.recordings
    if folder is None and not SHIPPED.is_dir():
        raise ConfigError("benchmark: no sentences come with this installation; give --recordings")
    most = options.most or (0 if folder else DEFAULT_SENTENCES)
    found = read_recordings(folder or SHIPPED, most)
    if not found:
        raise ConfigError(f"benchmark --recordings: no recording in {folder} has a text")
    if missing := missing_packages():
        _tell(f"no word errors without {' and '.join(missing)}: pip install '.[benchmark]'")
    return found


def _check_output(option: str, file: Path | None) -> None:
    """Raise ConfigError for a place that would fail only after the measurement."""
    if file and not file.absolute().parent.is_dir():
        raise ConfigError(f"benchmark --{option}: {file.parent}: no such folder; make it first")
    if file and file.is_dir():
        raise ConfigError(f"benchmark --{option}: {file}: is a folder; name a file in it")


def _scratch() -> str | None:
    return None if "TMPDIR" in os.environ or not Path(SCRATCH).is_dir() else SCRATCH


def _tell(line: str) -> None:
    print(f"roomscribe: {line}", file=sys.stderr, flush=True)
