"""The quality gate: the shipped model passed it, and a damaged one does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figures.gate import confidence_error, hear_clip, main, of_bundle, word_errors
from figures.gate_record import (
    CARD,
    FILE,
    MARKS,
    MEASURES,
    bundle_checksum,
    card_table,
    faults,
    read_record,
    record_faults,
    title,
    with_release,
    write_record,
)
from figures.model import read
from rigs.checkout import TINY_EN
from rigs.recordings import sentences

from appliance.infer.opening import open_transcriber
from appliance.model.bundle import enter_files, load_bundle

SOME = 6
AGAIN = "run scripts/measure gate --write on a quiet machine"


def test_the_shipped_model_passed_the_gate() -> None:
    load_bundle(TINY_EN)  # its files are those that bundle.json names
    assert record_faults(read_record(TINY_EN), bundle_checksum(TINY_EN)) == [], AGAIN


def test_the_model_card_has_the_last_releases() -> None:
    card = (TINY_EN / CARD).read_text(encoding="utf-8")
    assert f"{MARKS[0]}\n{card_table(read_record(TINY_EN))}\n{MARKS[1]}" in card, AGAIN


@pytest.mark.parametrize(
    ("key", "value", "passes"),
    [
        ("description", "another text", True),
        ("calibration", {"offset": 0.0, "mean": 1.0, "total": 0.0, "low": 0.5}, False),
        ("files", {}, False),
    ],
)
def test_a_change_of_weights_or_calibration_needs_a_new_gate(
    key: str, value: object, passes: bool, tmp_path: Path
) -> None:
    manifest = json.loads((TINY_EN / "bundle.json").read_text(encoding="utf-8"))
    (tmp_path / "bundle.json").write_text(json.dumps(manifest | {key: value}), encoding="utf-8")
    found = record_faults(read_record(TINY_EN), bundle_checksum(tmp_path))
    assert (found == []) == passes


def test_recorded_values_must_be_complete_and_within_the_limits_and_time_is_not_looked_at() -> None:
    record = read_record(TINY_EN)
    newest = record["releases"][0]
    checksum = newest["checksum"]

    def found(**values: float) -> list[str]:
        changed = newest | {"values": newest["values"] | values}
        return record_faults(with_release(record, changed), checksum)

    assert found(time_ratio=9.0) == []
    assert found(wrong_actions=99.0)[0].startswith("wrong actions, tests/speech: 99 is above")
    assert len(found(noise_texts=float("nan"))) == 1
    del newest["values"]["noise_texts"]
    assert found() == [f"not measured: {MEASURES['noise_texts']}"]


def in_calibration(folder: Path) -> None:
    calibration = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))["calibration"]
    enter_files(folder, (), calibration=calibration | {"offset": calibration["offset"] - 4})


def in_weights(folder: Path) -> None:
    file = folder / "embedding.bin"
    weights = np.fromfile(file, np.float32)
    noise = np.random.default_rng(7).standard_normal(len(weights), np.float32)
    (weights + weights.std() * noise).tofile(file)
    enter_files(folder, (file.name,))


@pytest.mark.parametrize(
    ("damaged", "broken"),
    [
        (None, set()),
        (in_calibration, {"confidence_error"}),
        (in_weights, {"speech_word_errors"}),
    ],
)
def test_a_damaged_model_breaks_a_limit(
    damaged: Callable[[Path], None] | None, broken: set[str], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY_EN, folder)
    if damaged:
        damaged(folder)
    settings = of_bundle(folder)
    with open_transcriber(settings) as transcriber:
        clips = [(one.text, read(one.file)) for one in sentences()[:SOME]]
        heard = [hear_clip(settings, transcriber, clip) for clip in clips]
    values = {
        "speech_word_errors": word_errors(heard),
        "confidence_error": confidence_error(heard),
    }
    if not damaged:
        del values["confidence_error"]  # of six right texts: too few
    lines = faults(values, read_record(TINY_EN)["limits"])
    assert bool(lines) == bool(broken)
    assert all(any(line.startswith(title(name)) for line in lines) for name in broken), lines


def test_a_release_replaces_its_own_values_or_comes_first(tmp_path: Path) -> None:
    record: dict[str, Any] = read_record(TINY_EN)
    entry = record["releases"][0] | {"release": "99.0.0", "checksum": "0123456789abcdef"}
    longer = with_release(record, entry)
    assert [one["release"] for one in longer["releases"][1:]] == [
        one["release"] for one in record["releases"]
    ]
    assert with_release(longer, entry) == longer
    (tmp_path / CARD).write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nbehind\n", "utf-8")
    write_record(tmp_path, longer)
    assert json.loads((tmp_path / FILE).read_text(encoding="utf-8")) == longer
    card = (tmp_path / CARD).read_text(encoding="utf-8")
    assert card.startswith("before\n") and card.endswith("\nbehind\n") and "old" not in card
    assert "| model |  | 0123456789abcdef |" in card


@pytest.mark.parametrize(
    "words", [["--bundle", "no-such-model"], ["--commit", "no-such-commit"]]
)  # fmt: skip
def test_wrong_use_gives_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gate: ") and words[1] in line
