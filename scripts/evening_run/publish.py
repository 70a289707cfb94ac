"""Write figures into README.md and docs/figures.md, between their markers."""

import re
from pathlib import Path
from typing import Any

from evening_run.charts import draw_times
from evening_run.programme import SENTENCE
from evening_run.results import scored
from evening_run.score import answer_ms
from evening_run.table import more, number, of_groups
from rigs.checkout import ROOT

from appliance.lab.benchmark.table import as_markdown
from appliance.system import write_whole

PAGE = ROOT / "docs" / "figures.md"
Record = dict[str, Any]


def write(root: Path, evening: Record) -> None:
    """Write the figures into both pages, and the chart."""
    put(headline(evening), "evening", root / "README.md")
    put(table(evening), "evening", root / "docs" / "figures.md")
    items = (one for one in evening["items"] if one["kind"] == SENTENCE and one["intact"])
    times = [one for one in map(answer_ms, items) if one is not None]
    chart = draw_times(times, f"{evening['date']}, {evening['commit']}")
    write_whole(root / "docs" / "evening.svg", chart, 0o644)


def put(text: str, name: str, page: Path = PAGE) -> None:
    """Write a figure's text between its markers of a page. Raises ValueError where it has none."""
    begin, end = marks(name)
    wanted = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    before = page.read_text(encoding="utf-8")
    if len(wanted.findall(before)) != 1:
        raise ValueError(f"expected one {begin} with {end} behind it")
    write_whole(page, wanted.sub(lambda _: f"{begin}\n{text}\n{end}", before), 0o644)


def marks(name: str) -> tuple[str, str]:
    """Return what stands before and behind a figure's text."""
    command = name.partition(" ")[0]
    return f"<!-- {name}: written by scripts/measure {command} --write -->", f"<!-- /{name} -->"


def about(evening: Record) -> str:
    """Return what was measured, on what."""
    return (
        f"commit {evening['commit']}, model {evening['model']}, {evening['processor']}, "
        f"{evening['date']}, seed {evening['seed']}"
    )


def headline(evening: Record) -> str:
    """Return the sentence of README."""
    rows, _ = scored(evening)
    how = "from the end of speech to the subscriber, median (95th percentile):"
    lines = [f"`scripts/measure evening`, everything switched on; {how}", ""]
    names = {"speech": "synthetic sentences", "commands": "people's commands"}
    names |= {"room 0.6 s, 3 m": "commands from 3 m in a living room", "all": "all sentences"}
    lines += [
        f"- {names[row.group]}: {number(row.p50_ms)} ms ({number(row.p95_ms)} ms), "
        f"{row.either} of {row.verbatim} right"
        for row in rows
        if row.group in names
    ]
    after = next((one for one in evening["memory"] if one["label"] == "end"), None)
    if after:
        lines.append(f"- memory of the appliance's own: {after['uss_mb']:.0f} MB")
    return "\n".join([*lines, "", f"({about(evening)})"])


def table(evening: Record) -> str:
    """Return the tables of docs/figures.md."""
    rows, whole = scored(evening)
    title = f"`scripts/measure evening`: {about(evening)}."
    return "\n\n".join([title, of_groups(rows), as_markdown(("", ""), more(whole, evening))])
