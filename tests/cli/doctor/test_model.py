"""The bundle's check and the self-test: a known sentence in, known text out."""

import filecmp
from dataclasses import replace
from pathlib import Path

import pytest
from rigs.needs import needs_model
from rigs.recordings import sentences

from appliance.cli.doctor import model as transcribing
from appliance.cli.doctor.model import FILE, TEXT
from appliance.cli.doctor.outcome import Surroundings
from appliance.config import ModelSettings, Settings
from appliance.model.bundle import Bundle
from appliance.records import Transcription

RESULT = Transcription(TEXT, (1,), "en", -0.1, 0.0, 1.0, True, "cpu", 1.0, 1.0, 0.9)


def around(bundle: Path | str) -> Surroundings:
    return Surroundings(Settings(model=ModelSettings(bundle=str(bundle))))


@needs_model
def test_the_built_in_model_passes() -> None:
    found = transcribing.bundle(around("tiny.en"))
    assert found.status == "ok"
    assert found.found.startswith("Whisper tiny.en, en, 10 s windows")


@needs_model
def test_the_built_in_model_reads_the_packaged_sentence() -> None:
    found = transcribing.self_test(around("tiny.en"))
    assert found.status == "ok", found.found
    assert "Whisper tiny.en heard the test sentence word for word: 'What is" in found.found


def test_another_model_may_write_any_text_that_ends(bundle_folder: Path) -> None:
    found = transcribing.self_test(around(bundle_folder))
    assert f"words wrong: it is '{TEXT}'" in found.found


@pytest.mark.parametrize(
    ("name", "result", "status"),
    [
        ("tiny.en", replace(RESULT, text="What is the weather like in Chicago?"), "ok"),
        ("tiny.en", replace(RESULT, text="what is the weather like in the car go"), "failed"),
        ("base", replace(RESULT, text="What is the weather like in the car go?"), "ok"),
        ("base", replace(RESULT, text=" ."), "failed"),
        ("base", replace(RESULT, ended=False), "failed"),
    ],
)
def test_texts_are_judged_by_what_the_model_knows(
    bundle: Bundle, name: str, result: Transcription, status: str
) -> None:
    model = replace(bundle, name=name)
    assert transcribing.judge_text(model, result, 1.0).status == status


def test_the_packaged_sentence_is_one_of_the_test_set() -> None:
    [file] = [one.file for one in sentences() if one.text == TEXT]
    assert filecmp.cmp(FILE, file, shallow=False)
