"""How much each guarantee was tested: a table in docs/promises.md, made of what the runs counted.

`scripts/torture --record NAME...` adds what each whole run counted to docs/promises.json and writes
the table; `scripts/torture --table` writes the table alone.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from evening_run.publish import put
from protocol.claims import GUARANTEES as ROOM_GUARANTEES
from protocol.search import GUARANTEES
from rigs.checkout import ROOT

FILE, PAGE = ROOT / "docs/promises.json", ROOT / "docs/promises.md"
BEGIN, END = "<!-- scripts/torture --table -->", "<!-- end of the table -->"
RUNS = {
    "owner": ("model", "kill", "disk", "power", "fleet"),
    "once": ("model", "kill", "broker", "fleet"),
    "order": ("model", "kill", "broker", "fleet"),
    "stored first": ("model", "kill", "power"),
    "retention": ("model",),
    "deletion": ("model", "power"),
    "own text": ("model", "kill", "fleet"),
    "one room": ("model", "house"),
    "some room": ("model", "house"),
    "mute": ("model",),
    "delivery": ("model", "kill", "broker", "fleet", "soak"),
}
"""The runs that test each guarantee."""
COLUMNS = {
    "states": "states of the model",
    "steps": "random steps",
    "traces": "traces",
    "kills": "kills",
    "restarts": "broker restarts",
    "cuts": "power cuts",
    "hours": "hours",
}
"""What is counted, and its heading."""

WORDINGS = {**GUARANTEES, **ROOM_GUARANTEES}
Evidence = Mapping[str, Mapping[str, Any]]


def read() -> Evidence:
    """Return what the recorded runs counted, by the name of the run."""
    found: Evidence = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return found


def record(name: str, counts: Mapping[str, int], seconds: float) -> None:
    """Keep what a run that broke nothing counted, in place of the one before."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    run = {
        "commit": commit,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "hours": round(seconds / 3600, 3),
        **counts,
    }
    kept = {**read(), name: run}
    lines = json.dumps(dict(sorted(kept.items())), indent=2)
    FILE.write_text(f"{lines}\n", encoding="utf-8")


def count(evidence: Evidence, guarantee: str, what: str) -> float:
    """Return how often a guarantee was tested in that way."""
    # which room acts has a model of its own, and the other model knows no rooms
    own = {"states": "claims", "steps": "", "traces": ""} if guarantee in ROOM_GUARANTEES else {}
    runs = [evidence[name] for name in RUNS[guarantee] if name in evidence]
    return float(sum(run.get(own.get(what, what), 0) for run in runs))


def table(evidence: Evidence) -> str:
    """Return the table and the runs that it is made of, as Markdown."""
    lines = [f"| guarantee | {' | '.join(COLUMNS.values())} |", f"|---{'|---:' * len(COLUMNS)}|"]
    for guarantee in WORDINGS:
        cells = [_cell(what, count(evidence, guarantee, what)) for what in COLUMNS]
        lines.append(f"| {guarantee} | {' | '.join(cells)} |")
    runs = ", ".join(
        f"{name} ({run['date']}, {run['commit']})" for name, run in sorted(evidence.items())
    )
    return "\n".join([*lines, "", f"Runs: {runs}."])


def _cell(what: str, value: float) -> str:
    if not value:
        return ""
    return f"{value:.1f}" if what == "hours" else f"{value:,.0f}"


def render(page: str, evidence: Evidence) -> str:
    """Return the page with the table of that evidence."""
    return put(page, table(evidence), BEGIN, END)


def write_page() -> None:
    """Write the table of what is recorded into the page."""
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")
