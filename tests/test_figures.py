"""The figures of README.md and docs/figures.md are of the shipped model, and within the limits."""

from __future__ import annotations

import json
import re

import pytest
from evening_run.publish import BEGIN, END
from evening_run.results import weights_checksum
from figures.gate import FILE, MARKS, MEASURES, PAGE, faults, page_table, unmeasured
from rigs.checkout import BUILT_IN, ROOT


@pytest.mark.parametrize("name", ["README.md", "docs/figures.md"])
def test_the_evenings_figures_are_of_the_shipped_model(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", page, re.DOTALL)
    assert len(found) == 1, f"{name}: expected one block of scripts/measure evening --write"
    named = re.findall(r"\bmodel ([0-9a-f]{16})\b", found[0])
    assert named == [weights_checksum(BUILT_IN)], (
        f"{name} is of another model: run scripts/measure evening --write on a quiet machine"
    )


def test_the_last_release_is_measured_within_the_limits_and_on_the_page() -> None:
    record = json.loads(FILE.read_text(encoding="utf-8"))
    values = record["releases"][0]["values"]
    assert unmeasured(values) == []
    assert faults(values, record["limits"]) == []
    assert set(record["limits"]) <= set(MEASURES)
    table = f"{MARKS[0]}\n{page_table(record)}\n{MARKS[1]}"
    assert table in PAGE.read_text(encoding="utf-8"), "run scripts/measure gate --write"
