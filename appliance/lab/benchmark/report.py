"""All that one run found: as a table for people, as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from appliance.lab.benchmark.measure import Measured
from appliance.lab.benchmark.rows import Row
from appliance.lab.words import WordCounts

SCHEMA = 2
PACKAGES = ("numpy", "onnxruntime", "faster-whisper", "ctranslate2")
HEAD = (
    *("ms of the processor per recording", "encoder", "decoder", "total", "wall", "peak MB"),
    *("WER", "CER", "right", "loops", "discarded"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A row with what was found."""

    row: Row
    measured: Measured | None = None
    words: WordCounts | None = None

    @property
    def absent(self) -> str:
        """Why there are no figures; "" if there are."""
        return self.row.absent or (self.measured.trouble if self.measured else "")


def as_text(lines: Sequence[Line]) -> str:
    """The table, with the rows that are left out below it."""
    cells = [HEAD, *(_cells(line) for line in lines if not line.absent)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
    shown = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in cells
    ]
    left_out = [
        f"left out: {line.row.key} ({line.row.label}): {line.absent}"
        for line in lines
        if line.absent
    ]
    return "\n".join((shown if len(cells) > 1 else []) + left_out)


def _cells(line: Line) -> tuple[str, ...]:
    measured, words = line.measured or Measured(), line.words
    times = (f"{measured.mean(name):.0f}" for name in ("encoder_ms", "decoder_ms", "total_ms"))
    sizes = (f"{measured.wall_ms:.0f}", f"{measured.peak_mb:.0f}")
    errors = ("-",) * 5
    if words:
        right = f"{words.right}/{words.recordings}"
        errors = (
            *(f"{words.wer:.2f}", f"{words.cer:.2f}", right),
            *(str(words.loops), str(words.discarded)),
        )
    return (f"{line.row.key}: {line.row.label}", *times, *sizes, *errors)


def as_json(lines: Sequence[Line], threads: int) -> dict[str, Any]:
    """Everything; times in ms of the processor per recording, memory in MB, errors in percent."""
    return {
        "schema": SCHEMA,
        "threads": threads,
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "rows": [_row_as_json(line) for line in lines],
    }


def _row_as_json(line: Line) -> dict[str, Any]:
    shown: dict[str, Any] = {"key": line.row.key, "label": line.row.label}
    if line.absent or line.measured is None:
        return shown | {"absent": line.absent}
    measured = line.measured
    for name in ("encoder_ms", "decoder_ms", "total_ms"):
        shown[name] = round(measured.mean(name), 2)
    shown |= {"wall_ms": round(measured.wall_ms, 2), "peak_mb": round(measured.peak_mb, 1)}
    if words := line.words:
        shown |= asdict(words) | {"wer": round(words.wer, 3), "cer": round(words.cer, 3)}
    return shown


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
