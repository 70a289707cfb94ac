"""Write docs/demo.svg: a real run of scripts/demo, its lines appearing as they came.

    PYTHONPATH=.:tests:scripts .venv/bin/python -m generate.demo_recording [--seed N]

The SVG has no script: each line is shown by an animation of CSS, over and over.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from html import escape

from rigs.checkout import ROOT

from appliance.system import write_whole

FILE = ROOT / "docs" / "demo.svg"
COLUMNS, LETTER_PX, LINE_PX, LONGEST_WAIT_S, REST_S = 112, 8.43, 19, 1.6, 6.0
STYLE = """
text { font: 14px ui-monospace, 'DejaVu Sans Mono', monospace; white-space: pre; fill: #d0d7de }
.page { fill: #0d1117 } .heard { fill: #7ee787 } .said { fill: #79c0ff } .note { fill: #8b949e }
@media (prefers-color-scheme: light) {
  text { fill: #1f2328 } .page { fill: #f6f8fa }
  .heard { fill: #116329 } .said { fill: #0550ae } .note { fill: #59636e }
}"""
KINDS = {"==": "note", "said": "said", "heard": "heard"}
Line = tuple[float, str]
"""Seconds from the beginning, and what was printed."""


def main() -> int:
    """Run the demonstration and write the file; return the demonstration's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    command = [sys.executable, "-u", "-m", "figures.demo", "--seed", str(options.seed)]
    begun_s, lines = time.monotonic(), list[Line]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append((time.monotonic() - begun_s, line.rstrip()))
    if process.returncode == 0:
        write_whole(FILE, draw(lines), 0o644)
        print(f"{FILE}: {FILE.stat().st_size} bytes")
    return process.returncode


def draw(lines: Sequence[Line]) -> str:
    """Return the SVG of what was printed."""
    shown = [(0.4, "$ scripts/demo"), *((at_s, each) for at_s, each in folded(shortened(lines)))]
    whole_s = shown[-1][0] + REST_S
    width, height = round(COLUMNS * LETTER_PX) + 24, len(shown) * LINE_PX + 24
    rules, texts = [], []
    for number, (at_s, line) in enumerate(shown):
        begin = 100 * at_s / whole_s
        rules.append(f"@keyframes k{number} {{ 0%, {begin:.2f}% {{ opacity: 0 }} "
                     f"{begin + 0.01:.2f}%, 100% {{ opacity: 1 }} }}")  # fmt: skip
        rules.append(f"#l{number} {{ animation: k{number} {whole_s:.1f}s infinite }}")
        kind = next((name for begin, name in KINDS.items() if line.startswith(begin)), "plain")
        y = 24 + number * LINE_PX
        texts.append(
            f'<text id="l{number}" class="{kind}" x="12" y="{y}">{escape(line, quote=False)}</text>'
        )
    still = "@media (prefers-reduced-motion: reduce) { text { animation: none !important } }"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            "<title>scripts/demo: five sentences are spoken, and a subscriber shows them</title>",
            "<style>", STYLE, *rules, still, "</style>",
            f'<rect class="page" width="{width}" height="{height}" rx="6"/>',
            *texts,
            "</svg>\n",
        ]
    )  # fmt: skip


def shortened(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with long waits made short: nobody watches a model being loaded."""
    found, now_s, before_s = list[Line](), 0.4, 0.0
    for at_s, line in lines:
        now_s += min(at_s - before_s, LONGEST_WAIT_S)
        before_s = at_s
        found.append((now_s, line))
    return found


def folded(lines: Sequence[Line]) -> list[Line]:
    """Return the lines cut to COLUMNS, the rest of one below it."""
    return [
        (at_s, line[start : start + COLUMNS])
        for at_s, line in lines
        for start in range(0, max(1, len(line)), COLUMNS)
    ]


if __name__ == "__main__":
    sys.exit(main())
