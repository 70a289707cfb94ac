"""The rows as stacked bars: encoder and decoder, milliseconds per utterance."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from appliance.benchmark.result import Result

PACKAGE = "matplotlib"


def check_package() -> str:
    """Why no picture can be drawn; "" when one can."""
    return "" if find_spec(PACKAGE) else f"the package {PACKAGE} is not installed"


def draw(result: Result, file: Path) -> None:
    """Writes the picture as PNG, beside its place first."""
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
    for place, total in enumerate(left):
        axes.text(total, place, f" {total:.0f}", va="center")
    weights = ", random weights" if result.subject.random else ""
    axes.set_xlabel("ms per utterance")
    axes.set_title(
        f"{result.subject.name}{weights}: {result.subject.bundle.window_s:g} s window, "
        f"{result.tokens} tokens, {result.threads} thread(s)"
    )
    axes.set_xlim(0, 1.1 * max(left))
    axes.legend(loc="lower right")
    draft = file.with_name(f".{file.name}.draft")
    figure.savefig(draft, format="png", dpi=120)
    draft.rename(file)
