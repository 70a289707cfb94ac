"""Tables of the benchmark: Markdown that can be read in a terminal, and a chart as SVG."""

from collections.abc import Sequence
from html import escape

BAR_PX, LEFT_PX, RIGHT_PX, LINE_PX = 14, 430, 60, 26
WIDTH_PX = 900
STYLE = """
text { font: 13px sans-serif; fill: #1f2328 } .encoder { fill: #3b6fb6 } .decoder { fill: #e08b2c }
.page { fill: #ffffff }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .page { fill: #0d1117 }
  .encoder { fill: #79b0f5 } .decoder { fill: #f2b46b }
}"""
Bar = tuple[str, float, float]
"""A row's name, and the ms of its encoder and its decoder."""


def as_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table, its columns padded; all but the first are aligned right."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    lines = (
        [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
        for row in (columns, rule, *rows)
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_chart(title: str, bars: Sequence[Bar]) -> str:
    """Return an SVG with one stacked bar for each row, in light and in dark colours."""
    longest_ms = max((sum(bar[1:]) for bar in bars), default=1.0) or 1.0
    scale = (WIDTH_PX - LEFT_PX - RIGHT_PX) / longest_ms
    shapes = [_text(8, 20, title)]
    for number, (name, encoder_ms, decoder_ms) in enumerate(bars):
        top = 36 + number * LINE_PX
        widths = encoder_ms * scale, decoder_ms * scale
        shapes += [
            _text(8, top + 11, name),
            _bar("encoder", LEFT_PX, top, widths[0]),
            _bar("decoder", LEFT_PX + widths[0], top, widths[1]),
            _text(LEFT_PX + sum(widths) + 6, top + 11, f"{encoder_ms + decoder_ms:.0f}"),
        ]
    bottom = 36 + len(bars) * LINE_PX
    shapes += [_bar("encoder", 8, bottom, BAR_PX), _text(28, bottom + 11, "encoder, ms")]
    shapes += [_bar("decoder", 128, bottom, BAR_PX), _text(148, bottom + 11, "decoder, ms")]
    return as_svg(title, STYLE, WIDTH_PX, bottom + LINE_PX, shapes)


def as_svg(title: str, style: str, width: int, height: int, shapes: Sequence[str]) -> str:
    """Return an SVG with these shapes on a page of that size; `style` has the class page."""
    size = f'width="{width}" height="{height}"'
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    head = f'<svg {box} {size} role="img">\n<title>{escape(title)}</title>'
    page = f'<style>{style}\n</style>\n<rect class="page" {size}/>'
    return "\n".join([head, page, *shapes, "</svg>\n"])


def _bar(kind: str, x: float, y: float, width: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR_PX}"/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y}">{escape(text)}</text>'
