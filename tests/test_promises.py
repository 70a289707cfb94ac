"""The page of guarantees shows what the recorded runs counted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from resilience import evidence


def test_the_pages_table_is_the_one_that_the_command_writes() -> None:
    page = evidence.PAGE.read_text(encoding="utf-8")
    assert evidence.render(page, evidence.read()) == page, "run scripts/torture --table"


def test_every_guarantee_has_its_wording_and_its_evidence() -> None:
    page = evidence.PAGE.read_text(encoding="utf-8")
    assert set(evidence.RUNS) == set(evidence.WORDINGS)
    for name, wording in evidence.WORDINGS.items():
        assert f"| {name} | {wording} |" in page


def test_a_recorded_run_replaces_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "promises.md"
    page.write_text(f"above\n{evidence.BEGIN}\nold\n{evidence.END}\nbelow\n")
    monkeypatch.setattr(evidence, "FILE", tmp_path / "promises.json")
    monkeypatch.setattr(evidence, "PAGE", page)
    for kills in (7, 1234):
        evidence.record("kill", {"kills": kills, "restarts": 3}, 1800.0)
    evidence.record("house", {"kills": 50}, 360.0)
    evidence.record("model", {"states": 2_000_000, "claims": 5000}, 0.0)
    evidence.write_page()
    kept = json.loads((tmp_path / "promises.json").read_text())
    assert (kept["kill"]["kills"], kept["kill"]["hours"]) == (1234, 0.5)
    text = page.read_text()
    assert re.search(r"\| owner \| 2,000,000 \|  \|  \| 1,234 \| 3 \|  \| 0.5 \|", text), text
    assert re.search(r"\| one room \| 5,000 \|  \|  \| 50 \|  \|  \| 0.1 \|", text), text
    assert text.startswith("above\n") and text.endswith("below\n") and "old" not in text
