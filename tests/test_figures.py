"""The figures of README.md and docs/figures.md are those of the model that is shipped."""

from __future__ import annotations

import re

import pytest
from evening_run.publish import BEGIN, END
from evening_run.results import weights_checksum
from rigs.checkout import BUILT_IN, ROOT


@pytest.mark.parametrize("name", ["README.md", "docs/figures.md"])
def test_the_evenings_figures_are_of_the_shipped_model(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", page, re.DOTALL)
    assert len(found) == 1, f"{name}: expected one block of scripts/evening --write"
    named = re.findall(r"\bmodel ([0-9a-f]{16})\b", found[0])
    assert named == [weights_checksum(BUILT_IN)], (
        f"{name} has the figures of another model: run scripts/evening --write on a quiet machine"
    )
