"""The benchmark's rows on a Hailo, a simulated one."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hailo_fixture import npu_bundles, simulator
from hailo_simulator.control import Simulator

from appliance.config import ModelSettings, Settings
from appliance.lab.benchmark.main import run
from appliance.lab.benchmark.options import add_arguments
from appliance.model.bundle import Bundle

__all__ = ["npu_bundles", "simulator"]
TOKENS = 5


def measured(
    model: str | Path, checkpoint: Path, folder: Path, window_s: str = "2"
) -> dict[str, dict[str, Any]]:
    """The rows of a benchmark of `checkpoint` while `model` is in use."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = parser.parse_args(
        [
            *("--checkpoint", str(checkpoint), "--rows", "conservative,hybrid,npu"),
            *("--repeats", "2", "--tokens", str(TOKENS), "--window", window_s),
            *("--json", str(folder / "out.json")),
        ]
    )
    assert run(given, replace(Settings(), model=ModelSettings(bundle=str(model)))) == 0
    rows = json.loads((folder / "out.json").read_text())["rows"]
    return {row["key"]: row for row in rows}


def test_both_rows_run_one_after_the_other_on_the_one_chip(
    simulator: Simulator,
    npu_bundles: dict[str, Bundle],
    checkpoint_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", simulator.environment["PYTHONPATH"])
    simulator.plug(latency_ms=20)
    rows = measured(npu_bundles["home"].folder, checkpoint_folder, tmp_path)
    assert not rows["hybrid"].get("absent") and not rows["npu"].get("absent")
    assert rows["hybrid"]["encoder_ms"] >= 20
    assert rows["npu"]["decoder_ms"] >= TOKENS * 20
    assert rows["hybrid"]["decoder_ms"] < rows["npu"]["decoder_ms"]


def test_a_chip_without_a_fitting_hef_leaves_the_rows_out_with_the_reason(
    simulator: Simulator, npu_bundles: dict[str, Bundle], checkpoint_folder: Path, tmp_path: Path
) -> None:
    simulator.plug()
    rows = measured("home-en", checkpoint_folder, tmp_path)
    assert "home-en, has no encoder.hef" in rows["hybrid"]["absent"]
    assert "decoder.hef" in rows["npu"]["absent"]
    rows = measured(npu_bundles["home"].folder, checkpoint_folder, tmp_path, "4")
    assert "another shape or window" in rows["hybrid"]["absent"]
