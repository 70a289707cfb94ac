"""All that one run found: as tables for people, as JSON for programs, and as a picture."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from appliance.lab.benchmark.accuracy import Score
from appliance.lab.benchmark.measure import TIMES, Measured
from appliance.lab.benchmark.rows import LABELS, OURS, Row
from appliance.lab.benchmark.subject import Subject
from appliance.system import writing

SCHEMA = 1
PACKAGES = ("numpy", "onnxruntime", "onnx", "ctranslate2")
CLOCK_NAMES = {"wall": "wall clock", "cpu": "PROCESSOR TIME (not the wall clock)"}
SPEED_HEAD = (
    *("ms per utterance", "mel", "encoder", "decoder", "total", "first token", "later", "RTF"),
    *("MB/token", "floor ms", "reached"),
)
MEMORY_HEAD = (
    *("resident memory, MB", "imports", "peak", "after warm-up", "less imports"),
    *("decoder alone: peak", "after warm-up", "less imports"),
)
RATIOS = {
    "decoder": "decoder_ms",
    "first_token": "first_ms",
    "later_tokens": "later_ms",
    "utterance": "total_ms",
    "peak_memory": "peak_mb",
    "decoder_memory": "decoder_peak_mb",
}
"""Figures of which a row's is shown over OURS'."""
DRAWN_BY = "matplotlib"


@dataclass(frozen=True, slots=True)
class Result:
    """All that one run found."""

    subject: Subject
    threads: int
    repeats: int
    tokens: int
    clock: str
    """wall or cpu."""
    speech_s: float
    """Seconds of sound in the window."""
    speed: float
    """Bytes a second that `threads` threads read from memory."""
    rows: Sequence[Row]
    measured: Sequence[Measured]
    scores: dict[str, Score]
    """Errors by row; empty without recordings."""

    def of(self, key: str) -> Measured | None:
        """A row's figures."""
        return next((each for each in self.measured if each.row.key == key), None)


def as_json(result: Result) -> dict[str, Any]:
    """Everything, times in ms (median and least of the repeats), memory in MB."""
    return {
        "schema": SCHEMA,
        "model": result.subject.name,
        "random_weights": result.subject.random,
        "checkpoint_sha256": result.subject.checkpoint.sha256,
        "window_s": result.subject.bundle.window_s,
        "speech_s": result.speech_s,
        "tokens": result.tokens,
        "threads": result.threads,
        "repeats": result.repeats,
        "clock": result.clock,
        "machine": machine(),
        "memory_speed_gb_s": round(result.speed / 1e9, 2),
        "rows": [_row_as_json(row, result) for row in result.rows],
        "ratios": ratios(result),
    }


def _row_as_json(row: Row, result: Result) -> dict[str, Any]:
    shown: dict[str, Any] = {"key": row.key, "label": row.label, "absent": row.absent or None}
    if each := result.of(row.key):
        shown |= {name: round(each.median(name), 3) for name in TIMES}
        shown["least"] = {name: round(each.least(name), 3) for name in TIMES}
        shown |= {name: value and round(value, 1) for name, value in each.memory.items()}
        shown |= {
            "real_time_factor": round(real_time_factor(each, result), 5),
            "token_mb": round(row.token_bytes / 1e6, 2),
            "floor_ms": round(floor_ms(row, result), 3),
            "share_of_floor": round(floor_ms(row, result) / each.median("later_ms"), 3),
        }
    if score := result.scores.get(row.key):
        shown |= {"wer": score.wer, "cer": score.cer, "recordings": score.recordings}
    return shown


def ratios(result: Result) -> dict[str, dict[str, float]]:
    """Each row's figures over OURS' (more than 1: the row is slower or larger), by RATIOS."""
    ours = result.of(OURS)
    if ours is None:
        return {}
    found: dict[str, dict[str, float]] = {}
    for each in result.measured:
        if each is not ours:
            pairs = {name: (each.figure(key), ours.figure(key)) for name, key in RATIOS.items()}
            found[each.row.key] = {
                name: round(row / ours, 3) for name, (row, ours) in pairs.items() if row and ours
            }
    return found


def machine() -> dict[str, str]:
    """Processor, architecture, and the versions that the figures belong to."""
    found = {"processor": _processor(), "architecture": platform.machine()}
    found |= {"cores": str(len(os.sched_getaffinity(0))), "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def real_time_factor(each: Measured, result: Result) -> float:
    """Seconds of computing per second of the window."""
    return each.median("total_ms") / 1000 / result.subject.bundle.window_s


def floor_ms(row: Row, result: Result) -> float:
    """Milliseconds in which the memory gives what a later token reads."""
    return row.token_bytes / result.speed * 1000


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else "unknown"


def as_text(result: Result) -> str:
    """The report as `roomscribe benchmark` prints it."""
    parts = [_head(result), _table(_speed_cells(result)), _table(_memory_cells(result))]
    if result.scores:
        parts.append(_table(_score_cells(result)))
    if result.of(OURS):
        parts.append(_table(_ratio_cells(result)))
    left_out = [f"left out: {row.label}: {row.absent}" for row in result.rows if row.absent]
    return "\n\n".join([*parts, *(["\n".join(left_out)] if left_out else [])])


def _head(result: Result) -> str:
    subject = result.subject
    about = "RANDOM WEIGHTS (speed and memory only)" if subject.random else "real weights"
    known = machine()
    return (
        f"{subject.name}, {about}; window {subject.bundle.window_s:g} s, "
        f"speech {result.speech_s:g} s, {result.tokens} tokens, "
        f"{result.threads} thread(s), {CLOCK_NAMES[result.clock]}, "
        f"medians of {result.repeats} interleaved rounds\n"
        + ", ".join(f"{name} {value}" for name, value in known.items())
        + f"\nmemory read at {result.speed / 1e9:.1f} GB/s by {result.threads} thread(s)"
    )


def _speed_cells(result: Result) -> list[list[str]]:
    cells = [[*SPEED_HEAD]]
    for each in result.measured:
        floor = floor_ms(each.row, result)
        later = each.median("later_ms")
        times = [f"{each.median(name):.1f}" for name in TIMES[:4]]
        cells.append(
            [
                each.row.label,
                *times,
                f"{each.median('first_ms'):.2f}",
                f"{later:.2f}",
                f"{real_time_factor(each, result):.4f}",
                f"{each.row.token_bytes / 1e6:.1f}",
                f"{floor:.2f}",
                f"{floor / later:.0%}",
            ]
        )
    return cells


def _memory_cells(result: Result) -> list[list[str]]:
    cells = [[*MEMORY_HEAD]]
    for each in result.measured:
        memory = each.memory
        cells.append(
            [
                each.row.label,
                *(_mb(memory[name]) for name in ("imports_mb", "peak_mb", "running_mb")),
                _mb(_difference(memory["running_mb"], memory["imports_mb"])),
                *(_mb(memory[name]) for name in ("decoder_peak_mb", "decoder_running_mb")),
                _mb(_difference(memory["decoder_running_mb"], memory["decoder_imports_mb"])),
            ]
        )
    return cells


def _ratio_cells(result: Result) -> list[list[str]]:
    cells = [[f"row / {LABELS[OURS]}", *(name.replace("_", " ") for name in RATIOS)]]
    for key, values in ratios(result).items():
        figures = (f"{values[name]:.2f}" if name in values else "-" for name in RATIOS)
        cells.append([LABELS[key], *figures])
    return cells


def _score_cells(result: Result) -> list[list[str]]:
    cells = [["errors, %", "WER", "CER", "recordings"]]
    for row in result.rows:
        if score := result.scores.get(row.key):
            cells.append([row.label, f"{score.wer:.1%}", f"{score.cer:.1%}", str(score.recordings)])
    return cells


def _table(cells: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for first, *others in cells:
        aligned = map(str.rjust, others, widths[1:])
        lines.append("  ".join([first.ljust(widths[0]), *aligned]))
    return "\n".join(lines)


def _difference(minuend: float | None, subtrahend: float | None) -> float | None:
    if minuend is None or subtrahend is None:
        return None
    return minuend - subtrahend


def _mb(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def check_package() -> str:
    """Why no picture can be drawn; "" when one can."""
    return "" if find_spec(DRAWN_BY) else f"the package {DRAWN_BY} is not installed"


def draw(result: Result, file: Path) -> None:
    """Write the rows as stacked bars, a PNG, whole or not at all. Raises OSError."""
    from matplotlib.figure import Figure

    rows = list(reversed(result.measured))
    names = [each.row.label for each in rows]
    figure = Figure(figsize=(11, 1.6 + 0.45 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    left = [0.0] * len(rows)
    for name, colour in (("mel", "#bbbbbb"), ("encoder", "#4477aa"), ("decoder", "#ee6677")):
        widths = [each.median(f"{name}_ms") for each in rows]
        axes.barh(names, widths, left=left, label=name, color=colour)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    for row, total in enumerate(left):
        axes.text(total, row, f" {total:.0f}", va="center")
    weights = ", random weights" if result.subject.random else ""
    axes.set_xlabel("ms per utterance")
    axes.set_title(
        f"{result.subject.name}{weights}: {result.subject.bundle.window_s:g} s window, "
        f"{result.tokens} tokens, {result.threads} thread(s)"
    )
    axes.set_xlim(0, 1.1 * max(left))
    axes.legend(loc="lower right")
    with writing(file) as draft:
        figure.savefig(draft, format="png", dpi=120)
