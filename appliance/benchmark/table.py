"""The figures as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.benchmark.measure import TIMES
from appliance.benchmark.result import Result, floor_ms, machine, ratios, real_time_factor
from appliance.benchmark.rows import LABELS, OURS

CLOCK_NAMES = {"wall": "wall clock", "cpu": "PROCESSOR TIME (not the wall clock)"}
SPEED_HEAD = (
    "ms per utterance",
    "mel",
    "encoder",
    "decoder",
    "total",
    "first token",
    "later",
    "RTF",
    "MB/token",
    "floor ms",
    "reached",
)
MEMORY_HEAD = (
    "resident memory, MB",
    "imports",
    "peak",
    "after warm-up",
    "less imports",
    "decoder alone: peak",
    "after warm-up",
    "less imports",
)


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
        f"{subject.name}, {about}; window {subject.bundle.window_s:g} s, {result.tokens} tokens, "
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
                _mb(_less(memory["running_mb"], memory["imports_mb"])),
                *(_mb(memory[name]) for name in ("decoder_peak_mb", "decoder_running_mb")),
                _mb(_less(memory["decoder_running_mb"], memory["decoder_imports_mb"])),
            ]
        )
    return cells


def _ratio_cells(result: Result) -> list[list[str]]:
    names = ["decoder", "first_token", "later_tokens", "utterance", "peak_memory", "decoder_memory"]
    cells = [[f"row / {LABELS[OURS]}", *(name.replace("_", " ") for name in names)]]
    found = ratios(result)
    for each in result.measured:
        if values := found.get(each.row.key):
            cells.append(
                [
                    each.row.label,
                    *(f"{values[name]:.2f}" if name in values else "-" for name in names),
                ]
            )
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


def _less(one: float | None, other: float | None) -> float | None:
    return one - other if one is not None and other is not None else None


def _mb(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
