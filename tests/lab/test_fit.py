"""`roomscribe model fit`: what it chooses, what it writes, and what it refuses."""

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rigs.checkout import SPEECH
from rigs.command import OBEYING_MODES, errors, roomscribe

from appliance.cli.model_fit import describe
from appliance.config import Settings
from appliance.errors import AudioError, ConfigError, ModelError
from appliance.infer.opening import open_transcriber
from appliance.lab.fit.choices import ENOUGH, Example, choose_act_confidence, fit_texts
from appliance.lab.fit.main import FitRequest, fit_model, read_corrections, write_facts
from appliance.lab.fit.recordings import is_same, listen, spoken_recordings
from appliance.lab.words import Recorded, read_sound
from appliance.model.bundle import DEFAULT_CALIBRATION, PACKAGED, Calibration, load_bundle

ONE_THREAD = replace(
    Settings(),
    encoder=replace(Settings().encoder, threads=1),
    decoder=replace(Settings().decoder, threads=1),
)
TRUTH = Calibration(offset=3.0, mean=8.0, total=0.1, low=0.5)


@pytest.fixture
def added(tmp_path: Path) -> Path:
    """A copy of the built-in model."""
    return Path(shutil.copytree(PACKAGED / "tiny.en", tmp_path / "added"))


def drawn(count: int, now: Calibration | None = None, seed: int = 1) -> list[Example]:
    """Texts that are right as often as TRUTH says; the bundle has `now` or no calibration."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        tokens, mean = int(rng.integers(4, 20)), -float(rng.exponential(0.3))
        right = rng.random() < TRUTH.confidence([mean] * tokens)
        before = now.confidence([mean] * tokens) if now else math.exp(mean)
        found.append(Example(bool(right), (mean, mean * tokens), f"{number // 3}", before))
    return found


def test_a_calibration_finds_the_probabilities_that_texts_were_drawn_with() -> None:
    found, figures = fit_texts(drawn(1500))
    assert found is not None
    for mean in (-0.05, -0.3, -1.0):
        probability = TRUTH.confidence([mean] * 10)
        assert found.confidence([mean] * 10) == pytest.approx(probability, abs=0.06)
    assert figures["calibration_error"] < 0.05 < figures["calibration_error_before"]
    assert figures["error"] < figures["error_before"]
    assert 0.5 <= found.act < 1


def test_few_texts_move_the_offset_alone() -> None:
    now = replace(TRUTH, offset=TRUTH.offset + 3.0, act=0.8, low=0.3)
    found, figures = fit_texts(drawn(90, now=now), now)
    assert found == replace(now, offset=found.offset) if found else False
    assert found and found.offset == pytest.approx(TRUTH.offset, abs=1.0)
    assert figures["only_offset"] and figures["error"] < figures["error_before"]
    as_good, figures = fit_texts(drawn(90, now=TRUTH), TRUTH)
    assert as_good is None or abs(as_good.offset - TRUTH.offset) < 0.5
    assert not fit_texts(drawn(300))[1]["only_offset"]


def test_a_confidence_that_is_as_good_already_stays() -> None:
    found, figures = fit_texts(drawn(300, now=TRUTH))
    assert found is None
    assert figures["error"] >= figures["error_before"]


def test_sentences_of_one_group_do_not_judge_themselves() -> None:
    """Each group is right or wrong as a whole, whatever its texts: nothing can be learnt."""
    rng = np.random.default_rng(7)
    examples = [
        Example(group % 2 == 0, (-float(rng.random()), -group - 1.0), f"{group:02}", 0.5)
        for group in range(20)
        for _ in range(10)
    ]
    found, figures = fit_texts(examples)
    assert found is None
    assert figures["error"] > 0.25


@pytest.mark.parametrize("right", [0, ENOUGH - 1, 301 - ENOUGH, 300])
def test_too_few_right_or_wrong_texts_are_refused(right: int) -> None:
    texts = [Example(n < right, (-0.1, -1.0), f"{n}", 0.5) for n in range(300)]
    with pytest.raises(ConfigError, match=f"found {right}, {300 - right} and 300. Nothing was cha"):
        fit_texts(texts)


def test_too_few_different_sentences_are_refused() -> None:
    texts = [Example(n % 2 == 0, (-0.1, -1.0), f"{n % 4}", 0.5) for n in range(300)]
    with pytest.raises(ConfigError, match="found 150, 150 and 4"):
        fit_texts(texts)


def test_likelihoods_never_count_against_a_text() -> None:
    """Else a text would be the surer, the less likely its tokens are."""
    texts = [
        replace(one, features=(one.features[0], (-2 if one.right else 1) * one.features[1]))
        for one in drawn(400)
    ]
    found, _ = fit_texts(texts)
    assert found is not None
    assert found.mean >= 0
    assert found.total >= 0


def test_a_confidence_for_acting_lets_few_wrong_texts_through() -> None:
    rng = np.random.default_rng(6)
    confidences = rng.random(4000)
    right = rng.random(4000) < confidences
    act = choose_act_confidence(confidences, right)
    assert 0.9 < act < 0.97
    assert (~right[confidences >= act]).mean() <= 0.03
    few = choose_act_confidence(confidences[:20], right[:20])
    assert few >= 0.5, "20 texts prove nothing; the best of them is taken"


@pytest.mark.parametrize(
    "text",
    ["Set the living-room to 21%, please!", "set the living room to twenty one percent please"],
)
def test_texts_are_the_same_however_they_are_spelled(text: str) -> None:
    assert is_same(text, "set the livingroom to twenty-one percent please")
    assert not is_same(text, "set the living room to twenty two percent please")


def test_a_recording_is_heard_and_compared_with_what_was_said() -> None:
    said = "what is the weather like in chicago"
    sound = read_sound(SPEECH / "00.flac")
    clips = [Recorded(sound, said), Recorded(sound, "something else was said")]
    steps: list[tuple[int, int]] = []
    with open_transcriber(ONE_THREAD, bundle=load_bundle("tiny.en")) as transcriber:
        texts = listen(transcriber, ONE_THREAD, clips, lambda *step: steps.append(step))
    assert [one.right for one in texts] == [True, False]
    assert [one.group for one in texts] == [clip.text for clip in clips]
    mean, total = texts[0].features
    assert total < mean < 0
    assert texts[0].now == pytest.approx(DEFAULT_CALIBRATION.confidence([total]))
    assert steps == [(0, 2), (1, 2)]


def corrections(count: int, model: str = "tiny.en") -> str:
    """Lines of a log's export: texts with what was said."""
    lines = []
    for number, one in enumerate(drawn(count)):
        text = f"turn on the light in room {number}"
        spoken = text if one.right else f"turn off the light in room {number}"
        row = {"text": text, "correction": spoken, "avg_logprob": one.features[0], "model": model}
        lines.append(json.dumps(row))
    return "\n".join(lines)


def test_a_fit_writes_what_is_better_and_says_so(added: Path, tmp_path: Path) -> None:
    file = tmp_path / "corrections.jsonl"
    file.write_text(corrections(300))
    facts = fit_model(FitRequest(added, corrections=file), ONE_THREAD)
    after = load_bundle(added)
    assert after.calibration != DEFAULT_CALIBRATION
    assert after.calibration.confidence([-0.01] * 8) > 0.8
    assert after.calibration.confidence([-1.5] * 8) < 0.2
    manifest = json.loads((added / "bundle.json").read_text())
    assert manifest["fitted"] == facts["fitted"]
    assert facts["fitted"]["corrections"] == 300
    lines = describe(facts)
    assert lines[0].startswith("confidence: fitted; 300 texts, ")
    assert lines[1].startswith("acting on a text: from a confidence of ")


def test_a_fit_that_is_no_better_changes_nothing_and_says_so(added: Path, tmp_path: Path) -> None:
    """Right and wrong texts have the same log-probabilities: all that is learnt is their share,
    which the bundle's calibration says already."""
    manifest = json.loads((added / "bundle.json").read_text())
    manifest["calibration"] = {"offset": 0.0, "mean": 0.0, "total": 0.0, "low": 0.5, "act": 0.0}
    (added / "bundle.json").write_text(json.dumps(manifest))
    before = (added / "bundle.json").read_bytes()
    rows = [
        {"text": "yes", "correction": ["yes", "no"][n % 2] + f" {n}" * (n % 2),
         "avg_logprob": -0.1, "model": "tiny.en"}
        for n in range(200)
    ]  # fmt: skip
    file = tmp_path / "corrections.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    facts = fit_model(FitRequest(added, corrections=file), ONE_THREAD)
    assert (added / "bundle.json").read_bytes() == before
    assert describe(facts)[0].startswith("confidence: not changed; 200 texts, 100 wrong; on those")


def test_a_model_that_was_replaced_meanwhile_stays_as_it_is(added: Path) -> None:
    before = (added / "bundle.json").read_bytes()
    with pytest.raises(ModelError, match="was replaced while it was being fitted"):
        write_facts(added, b"another", {"description": "fitted"})
    assert (added / "bundle.json").read_bytes() == before
    write_facts(added, before, {"description": "fitted"})
    assert load_bundle(added).description == "fitted"


def test_the_built_in_model_is_never_written_to() -> None:
    with pytest.raises(ConfigError, match=r"tiny\.en belongs to the package"):
        fit_model(FitRequest(PACKAGED / "tiny.en"), ONE_THREAD)


def test_nothing_to_fit_to_is_refused_in_one_line(added: Path) -> None:
    done = roomscribe("model", "fit", f"{added}/")
    assert done.returncode == 78
    assert errors(done) == [
        "roomscribe: A model is fitted to your own voice. Name your recordings with --recordings "
        "FOLDER, or your corrections with --corrections FILE."
    ]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (None, "expected MANIFEST.tsv or transcripts.tsv in it, found neither"),
        (b"file\ttext\n", "its list has no text"),
        (b"name\twords\na.wav\thello\n", "expected the columns file and text"),
        (b"file\ttext\nnone.wav\thello\n", "none.wav"),
    ],
)
def test_recordings_without_a_good_list_are_refused(
    tmp_path: Path, table: bytes | None, message: str
) -> None:
    if table is not None:
        (tmp_path / "transcripts.tsv").write_bytes(table)
    with pytest.raises((ConfigError, AudioError), match=message):
        spoken_recordings(tmp_path)


def test_corrections_of_this_model_count(tmp_path: Path) -> None:
    lines = [
        {
            "text": "turn it on",
            "correction": "turn it off",
            "avg_logprob": -0.5,
            "model": "tiny.en",
        },
        {
            "text": "Turn it on.",
            "correction": "turn it on",
            "avg_logprob": -0.1,
            "model": "tiny.en",
        },
        {"text": "turn it on", "correction": None, "avg_logprob": -0.1, "model": "tiny.en"},
        {"text": "turn it on", "correction": "turn it on", "avg_logprob": -0.1, "model": "other"},
    ]
    file = tmp_path / "corrections.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    bundle = load_bundle("tiny.en")
    assert [one.right for one in read_corrections(file, bundle)] == [False, True]
    file.write_text("nothing\n")
    with pytest.raises(ConfigError, match="line 1: expected a transcript with a correction"):
        read_corrections(file, bundle)


@pytest.mark.skipif(os.geteuid() != 0, reason="root may write everywhere")
def test_a_model_that_this_user_may_not_write_is_refused(added: Path) -> None:
    file = added.parent / "corrections.jsonl"
    file.write_text(corrections(300))
    added.parent.chmod(0o755)
    added.chmod(0o555)
    done = roomscribe("model", "fit", f"{added}/", "--corrections", file, wrapper=OBEYING_MODES)
    assert done.returncode == 78
    assert "run it with sudo" in done.stderr
    assert len(errors(done)) == 1
