"""Charts of words and of times as SVG, in light and in dark colours."""

from collections.abc import Mapping, Sequence
from html import escape
from math import log10
from typing import Any

import numpy as np

from appliance.lab.benchmark.table import as_svg

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 50, 40, 40, 50
STYLE = """
text { font: 13px sans-serif; fill: #1f2328 } .page { fill: #ffffff } .grid { stroke: #d1d9e0 }
.ours { fill: #3b6fb6; stroke: #3b6fb6 } .theirs { fill: #e08b2c; stroke: #e08b2c }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .page { fill: #0d1117 } .grid { stroke: #3d444d }
  .ours { fill: #79b0f5; stroke: #79b0f5 } .theirs { fill: #f2b46b; stroke: #f2b46b }
}"""
ROWS = {"cpu": ("microphone", 1, 4), "cpu-beam": ("files", 1, 4),
        "faster-whisper": ("beam 1", -1, -7),
        "faster-whisper-beam": ("beam 5", -1, 17)}  # fmt: skip
"""Rows in the chart: name, side of the text, and how far it is below the point."""
DOT = '<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="5"/>'.format
TIMES_MS, MOST_WER = (100, 200, 500, 1000, 2000), 20
BIN_MS, BINS, SHARES = 100, 15, 50


def draw_words(rows: Mapping[str, Sequence[Mapping[str, Any]]], about: str) -> str:
    """Return the word errors of models' rows against their processor time, with their 95 %
    intervals; `about` says what was measured."""
    shapes = []
    for kind, left, label in (("ours", 520, "Roomscribe"), ("theirs", 620, "faster-whisper")):
        shapes += [DOT(kind, left, 16), _text(left + 9, 20, label)]
    for model, lines in rows.items():
        for line in (line for line in lines if line["key"] in ROWS and "wer" in line):
            x = _x(_share(line["total_ms"]))
            y, low, high = (_y(min(1, float(one) / MOST_WER))
                            for one in (line["wer"], *line["interval"].split("-")))  # fmt: skip
            name, side, lower = ROWS[line["key"]]
            kind = "ours" if side > 0 else "theirs"
            shapes += [
                f'<path class="{kind}" d="M{x:.1f} {low:.1f}V{high:.1f}" opacity=".35"/>',
                DOT(kind, x, y),
                _text(x + 9 * side, y + lower, f"{model}, {name}", side),
            ]
    across = {f"{one}": _share(one) for one in TIMES_MS}
    up = {f"{one}": one / MOST_WER for one in range(0, MOST_WER + 1, 5)}
    below = f"{about}; processor time of a recording, ms (log scale)"
    return _page("Words wrong, %", below, across, up, shapes)


def draw_times(answers_ms: Sequence[float], about: str) -> str:
    """Return how many of the answers came how long after the end of the speech; `about` says what
    was measured."""
    late = BINS * BIN_MS
    counts, _ = np.histogram(np.minimum(answers_ms, late - 1), BINS, (0, late))
    shapes = []
    for at, share in enumerate(100 * counts / max(1, len(answers_ms))):
        x, y, width = _x(at / BINS), _y(min(1, share / SHARES)), _x(1 / BINS) - _x(0) - 2
        shapes.append(f'<rect class="ours" x="{x + 1:.1f}" y="{y:.1f}" width="{width:.1f}" '
                      f'height="{HEIGHT - BOTTOM - y:.1f}"/>')  # fmt: skip
    across = {f"{at * BIN_MS}": at / BINS for at in range(0, BINS, 2)}
    up = {f"{one}": one / SHARES for one in range(0, SHARES + 1, 10)}
    title = f"From the end of speech to the subscriber, % of {len(answers_ms)} sentences"
    return _page(title, f"{about}; ms (the last: {late - BIN_MS} and more)", across, up, shapes)


def _share(took_ms: float) -> float:
    return log10(took_ms / TIMES_MS[0]) / log10(TIMES_MS[-1] / TIMES_MS[0])


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _text(x: float, y: float, text: str, side: int = 1) -> str:
    anchor = {-1: "end", 0: "middle", 1: "start"}[side]
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _page(
    title: str, below: str, across: Mapping[str, float], up: Mapping[str, float],
    shapes: Sequence[str],
) -> str:  # fmt: skip
    grid = [f'<path class="grid" d="M{LEFT} {_y(at):.1f}H{WIDTH - RIGHT}"/>' for at in up.values()]
    texts = [_text(LEFT - 8, _y(at) + 4, text, -1) for text, at in up.items()]
    texts += [_text(_x(at), HEIGHT - BOTTOM + 18, text, 0) for text, at in across.items()]
    texts += [_text(8, 20, title), _text(WIDTH - RIGHT, HEIGHT - 10, below, -1)]
    return as_svg(title, STYLE, WIDTH, HEIGHT, [*grid, *shapes, *texts])
