"""The quality gate: what was recorded is within limits, and what is heard otherwise is not."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from figures.gate import (
    FILE,
    MARKS,
    MEASURES,
    PAGE,
    Heard,
    faults,
    hear_clip,
    main,
    of_bundle,
    page_table,
    right_actions,
    title,
    unmeasured,
    with_release,
    word_errors,
    write_record,
    wrong_actions,
)
from rigs.checkout import BUILT_IN
from rigs.recordings import sentences
from rigs.sounds import read

from appliance.infer.opening import open_transcriber

SOME = 6


@pytest.fixture
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def test_the_last_release_is_measured_and_within_limits(record: dict[str, Any]) -> None:
    values = record["releases"][0]["values"]
    assert unmeasured(values) == []
    assert faults(values, record["limits"]) == []
    assert set(record["limits"]) <= set(MEASURES)


def test_the_page_of_figures_has_the_last_releases(record: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"{MARKS[0]}\n{page_table(record)}\n{MARKS[1]}" in page, (
        "run scripts/measure gate --write"
    )


def test_a_value_beyond_its_limit_is_a_fault_and_one_without_a_limit_is_none() -> None:
    limits = {"noise_texts": 2.0, "people_right_actions": 10.0}
    assert faults({"noise_texts": 2.0, "people_right_actions": 10.0, "cpu_ms": 9e9}, limits) == []
    (line,) = faults({"noise_texts": 3.0}, limits)
    assert line == f"{title('noise_texts')}: 3 is beyond the limit of 2"
    assert len(faults({"noise_texts": float("nan")}, limits)) == 1
    assert len(faults({"people_right_actions": 9.0}, limits)) == 1


def test_the_built_in_model_is_within_the_limits_and_one_that_hears_other_words_is_not(
    record: dict[str, Any],
) -> None:
    settings = of_bundle(BUILT_IN)
    with open_transcriber(settings) as transcriber:
        clips = [(one.text, read(one.file)) for one in sentences()[:SOME]]
        heard = [hear_clip(settings, transcriber, clip) for clip in clips]
    others = [replace(one, said=other.said) for one, other in pairwise(heard)]
    for hears, broken in ((heard, 0), (others, 1)):
        lines = faults({"speech_word_errors": word_errors(hears)}, record["limits"])
        assert len(lines) == broken


def test_an_expected_sentence_is_acted_on_rightly_or_wrongly() -> None:
    event = {"phrase": "turn on the light", "phrase_confidence": 0.9, "text": "Turn on the night.",
             "confidence": 0.0, "flags": [], "late": False}  # fmt: skip
    doubtful = event | {"phrase_confidence": 0.6}
    heard = [
        Heard("turn on the light", (event,)), Heard("turn off the light", (event,)),
        Heard("turn on the light", (doubtful,)), Heard("turn on the light", ()),
    ]  # fmt: skip
    assert (right_actions(heard), wrong_actions(heard)) == (1, 1)


def test_a_release_replaces_its_own_values_or_comes_first(
    tmp_path: Path, record: dict[str, Any]
) -> None:
    entry = record["releases"][0] | {"release": "99.0.0", "model": "0123456789abcdef"}
    longer = with_release(record, entry)
    assert [one["release"] for one in longer["releases"][1:]] == [
        one["release"] for one in record["releases"]
    ]
    assert with_release(longer, entry) == longer
    file, page = tmp_path / "gate.json", tmp_path / "page.md"
    page.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nbehind\n", "utf-8")
    write_record(longer, file, page)
    assert json.loads(file.read_text(encoding="utf-8")) == longer
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("\nbehind\n") and "old" not in text
    assert "| model |  | 0123456789abcdef |" in text


def test_an_unknown_model_gives_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bundle", "no-such-model"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gate: ") and "no-such-model" in line
