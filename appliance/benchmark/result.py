"""All that one run found, and as JSON for programs."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from appliance.benchmark.accuracy import Score
from appliance.benchmark.measure import TIMES, Measured
from appliance.benchmark.rows import OURS, Row
from appliance.benchmark.subject import Subject

SCHEMA = 1
PACKAGES = ("numpy", "onnxruntime", "onnx", "ctranslate2")


@dataclass(frozen=True, slots=True)
class Result:
    """All that one run found."""

    subject: Subject
    threads: int
    repeats: int
    tokens: int
    clock: str
    """wall or cpu."""
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
        shown |= {name: _rounded(value) for name, value in each.memory.items()}
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
    """Each row's figure over OURS' (more than 1: the row is slower or larger)."""
    ours = result.of(OURS)
    if ours is None:
        return {}
    found = {}
    for each in result.measured:
        if each is not ours:
            found[each.row.key] = {
                "decoder": _over(each.median("decoder_ms"), ours.median("decoder_ms")),
                "first_token": _over(each.median("first_ms"), ours.median("first_ms")),
                "later_tokens": _over(each.median("later_ms"), ours.median("later_ms")),
                "utterance": _over(each.median("total_ms"), ours.median("total_ms")),
                "peak_memory": _over(each.memory["peak_mb"], ours.memory["peak_mb"]),
                "decoder_memory": _over(
                    each.memory["decoder_peak_mb"], ours.memory["decoder_peak_mb"]
                ),
            }
    return {
        key: {name: value for name, value in values.items() if value is not None}
        for key, values in found.items()
    }


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


def _over(one: float | None, other: float | None) -> float | None:
    return round(one / other, 3) if one and other else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
