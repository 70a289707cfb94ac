"""`roomscribe model fit`: what it chooses, what it writes, and what it refuses."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import soundfile
from rigs.command import OBEYING_MODES, errors, roomscribe

from appliance.cli.model_fit import fit_added
from appliance.config import Settings
from appliance.convert import ProgressDisplay
from appliance.errors import ConfigError, ModelError
from appliance.lab.fit.choices import (
    Example,
    choose_act_confidence,
    choose_second_pass,
    doubtful_below,
    fit_calibration,
    fit_endings,
    fit_phrases,
)
from appliance.lab.fit.listening import Again, FoundSentence, SentenceListener, Text
from appliance.lab.fit.main import (
    NOISES,
    FitRequest,
    fit_model,
    read_corrections,
    similar_sentences,
    write_facts,
)
from appliance.lab.fit.measurements import FILE, Measurements
from appliance.lab.fit.speech import (
    CONDITIONS,
    Condition,
    cut_windows,
    is_same,
    place_sound,
    read_sound,
    recorded_clips,
    shipped_clips,
)
from appliance.lab.recordings import SHIPPED
from appliance.model.bundle import PACKAGED, Calibration, load_bundle
from appliance.system import lock

ONE_THREAD = replace(
    Settings(),
    encoder=replace(Settings().encoder, threads=1),
    decoder=replace(Settings().decoder, threads=1),
)
UNFITTED = ("calibration", "endings", "phrase_calibration", "vtln")


def silent(_step: str, _done: int, _total: int) -> None:
    """Show nothing."""


def stopped_after(limit: int) -> Callable[[str, int, int], object]:
    """Return what stops a fit at a step's number `limit`."""

    def show(_step: str, done: int, _total: int) -> None:
        if done >= limit:
            raise KeyboardInterrupt

    return show


@pytest.fixture
def unfitted(tmp_path: Path) -> Path:
    """The built-in model without what was fitted."""
    folder = Path(shutil.copytree(PACKAGED / "tiny.en", tmp_path / "unfitted"))
    manifest = json.loads((folder / "bundle.json").read_text())
    manifest |= dict.fromkeys(UNFITTED)
    (folder / "bundle.json").write_text(json.dumps(manifest))
    return folder


def drawn(count: int, truth: Calibration, seed: int = 1) -> list[Example]:
    """Texts that are right as often as `truth` says."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        tokens, mean = int(rng.integers(4, 20)), -float(rng.exponential(0.3))
        right = rng.random() < truth.confidence([mean] * tokens)
        found.append(Example(bool(right), mean, mean * tokens, 1.0, f"{number // 3}"))
    return found


def test_a_calibration_finds_the_probabilities_that_texts_were_drawn_with() -> None:
    truth = Calibration(offset=3.0, mean=8.0, total=0.1, low=0.5)
    found, figures = fit_calibration(drawn(1500, truth))
    for mean in (-0.05, -0.3, -1.0):
        probability = truth.confidence([mean] * 10)
        assert found.confidence([mean] * 10) == pytest.approx(probability, abs=0.06)
    assert figures["calibration_error"] < 0.05


@pytest.mark.parametrize("right", [0, 5, 295, 300])
def test_too_few_right_or_wrong_texts_are_refused(right: int) -> None:
    texts = [Example(n < right, -0.1, -1.0, 1.0, f"{n}") for n in range(300)]
    with pytest.raises(ModelError, match=f"cannot be calibrated: of 300 texts {right} are right"):
        fit_calibration(texts)


def test_probabilities_that_say_nothing_are_refused() -> None:
    rng = np.random.default_rng(3)
    texts = [
        Example(bool(rng.random() < 0.5), -float(rng.random()), -3.0, 1.0, f"{n}")
        for n in range(300)
    ]
    with pytest.raises(ModelError, match="do not tell right texts from wrong"):
        fit_calibration(texts)


def test_likelihoods_never_count_against_a_text() -> None:
    """bundle.json allows no negative coefficient: the reader would refuse the bundle."""
    texts = [
        replace(one, total=-one.total * 2 if one.right else one.total)
        for one in drawn(400, Calibration(3.0, 8.0, 0.0, 0.5))
    ]
    found, _ = fit_calibration(texts)
    assert found.mean >= 0
    assert found.total >= 0


def test_a_confidence_for_acting_lets_few_wrong_texts_through() -> None:
    rng = np.random.default_rng(6)
    confidences = rng.random(4000)
    right = rng.random(4000) < confidences
    texts = [f"{number}" for number in range(4000)]
    act = choose_act_confidence(confidences, right, texts)
    assert 0.9 < act < 0.97
    assert (~right[confidences >= act]).mean() <= 0.03
    few = choose_act_confidence(confidences[:20], right[:20], texts[:20])
    assert few >= 0.5, "20 texts prove nothing; the best of them is taken"


def test_a_text_counts_once_for_acting_however_often_it_is_heard() -> None:
    confidences = np.array([0.97] * 200 + [0.9] * 30)
    right = np.arange(230) < 220
    texts = [f"{number}" for number in range(230)]
    assert choose_act_confidence(confidences, right, texts) == 0.97
    heard_ten_times = [*texts[:220], *["the same"] * 10]
    assert choose_act_confidence(confidences, right, heard_ten_times) == 0.9


def test_endings_take_few_beginnings_for_whole_and_few_sentences_for_open() -> None:
    rng = np.random.default_rng(2)
    whole, beginnings = rng.normal(-1.5, 0.8, 200), rng.normal(-7, 2, 200)
    found, figures = fit_endings([*whole, -math.inf], list(beginnings))
    assert found is not None
    assert found.open <= found.sure <= 0
    assert (beginnings >= found.sure).mean() <= 0.07
    assert (whole < found.open).mean() <= 0.03
    assert figures["endings_area"] > 0.95
    assert fit_endings(list(whole), list(whole))[0] is None
    assert fit_endings(list(whole[:5]), list(beginnings))[0] is None


def test_a_second_pass_is_chosen_only_where_it_mends() -> None:
    wrong, right = Text(False, -9.0, 9, True), Text(True, -1.0, 9, True)
    mends = [Again(wrong, right, 10.0, 20.0)] * 12
    vtln, _ = choose_second_pass(-0.5, [wrong] * 12, mends)
    assert vtln is not None
    assert vtln.warp > 0
    beam, _ = choose_second_pass(-0.5, [wrong] * 12, [Again(right, right, 10.0, 20.0)] * 12)
    assert beam is not None
    assert beam.warp == 0
    spoils = [*mends[:6], *[Again(wrong, wrong, 1.0, 2.0)] * 5]
    assert choose_second_pass(-0.5, [*[wrong] * 6, *[right] * 5], spoils)[0] is None
    slow = [replace_times(one, 60_000.0) for one in mends]
    assert choose_second_pass(-0.5, [wrong] * 12, slow)[0] is None
    assert choose_second_pass(-0.5, [], [])[0] is None
    assert -1.0 < doubtful_below([wrong, right] * 9) <= -0.1


def replace_times(one: Again, took_ms: float) -> Again:
    """The same, slower."""
    return one._replace(beam_ms=took_ms, warped_ms=took_ms)


def test_expected_sentences_are_calibrated_in_every_list() -> None:
    good, bad = FoundSentence(True, 0.97, -0.1, -1.0), FoundSentence(False, 0.5, -2.0, 4.0)
    fitted, figures = fit_phrases([[(good, True)] * 30, [(bad, False)] * 30])
    assert fitted is not None
    assert fitted.confidence(0.97, -0.1, -1.0) > 0.9
    assert fitted.confidence(0.5, -2.0, 4.0) < 0.1
    assert figures["sentences"] == 60
    assert fit_phrases([])[0] is None


def test_the_package_has_speech_that_is_heard() -> None:
    clips = shipped_clips()
    assert len(clips) >= 100
    assert len({clip.text for clip in clips}) == len(clips)
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 1e6
    sound = read_sound(clips[0].file)
    assert 0.5 < len(sound) / 16_000 < 10
    plain = place_sound(sound, Condition("plain"), "a")
    far = place_sound(sound, Condition("far", 5.0, -6.0), "a")
    assert len(cut_windows(plain, 10.0)) == 1
    assert np.array_equal(far, place_sound(sound, Condition("far", 5.0, -6.0), "a"))
    assert not np.array_equal(far, place_sound(sound, Condition("far", 5.0, -6.0), "b"))


@pytest.mark.parametrize(
    "text",
    ["Set the living-room to 21%, please!", "set the living room to twenty one percent please"],
)
def test_texts_are_the_same_however_they_are_spelled(text: str) -> None:
    assert is_same(text, "set the livingroom to twenty-one percent please")
    assert not is_same(text, "set the living room to twenty two percent please")


def test_similar_sentences_are_none_of_the_others() -> None:
    texts = [clip.text for clip in shipped_clips()]
    found = similar_sentences(texts)
    assert len(found) > 100
    assert not set(found) & set(texts)


@pytest.fixture
def nearly_fitted(unfitted: Path) -> Path:
    """The same, and the measurements as if a fit had been interrupted just before its end."""
    with pytest.raises(KeyboardInterrupt):
        fit_model(FitRequest(unfitted), ONE_THREAD, stopped_after(0))
    with (unfitted / FILE).open("a") as file:
        for key, value in measurements(Calibration(3.0, 8.0, 0.1, 0.5)):
            file.write(f"{json.dumps([key, value])}\n")
    return unfitted


def test_a_fit_writes_what_it_measured(nearly_fitted: Path) -> None:
    unfitted = nearly_fitted
    assert math.isnan(load_bundle(unfitted).confidence([-0.1]))
    fit_model(FitRequest(unfitted), ONE_THREAD, silent)
    after = load_bundle(unfitted)
    assert after.calibration is not None
    assert after.confidence([-0.01] * 8) > 0.8
    assert after.confidence([-1.0] * 8) < 0.2
    assert after.vtln is not None
    assert after.vtln.warp > 0
    assert after.endings is not None
    assert after.phrase_calibration is not None
    assert after.short_windows
    assert 0.5 <= after.act_confidence < 1
    fitted = json.loads((unfitted / "bundle.json").read_text())["fitted"]
    assert fitted["clips"] == 120
    assert 0.7 < fitted["area"] < 1
    assert fitted["short_windows"]["same_text"] == 120
    assert not (unfitted / FILE).exists()


class Display:
    """Keeps what a page would show."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_model_that_was_added_is_fitted_and_the_page_follows(
    nearly_fitted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOMSCRIBE_MODELS", str(nearly_fitted.parent))
    display = Display()
    lines = fit_added(nearly_fitted.name, ONE_THREAD, cast("ProgressDisplay", display))
    assert [line.partition(":")[0] for line in lines] == [
        "confidence", "acting on a text", "expected sentences", "end of a sentence", "second pass",
    ]  # fmt: skip
    assert lines[-1] == "second pass: on; short windows: on"
    assert load_bundle(nearly_fitted).calibration
    assert display.notes[0] == "fitting its confidence to its errors: listening, 0 %"
    assert len(display.notes) > 5


def measurements(truth: Calibration) -> Iterator[tuple[str, object]]:
    """What listening to the package's speech gives, drawn."""
    rng = np.random.default_rng(4)
    for clip in shipped_clips():
        for condition in CONDITIONS:
            mean = -float(rng.exponential(0.3))
            right = bool(rng.random() < truth.confidence([mean] * 8))
            text, better = [right, 8 * mean, 8, True], [True, -0.5, 8, True]
            prior, good = float(rng.normal(-1)), bool(rng.random() < 0.5)
            phrase = [good, 0.9 if good else 0.4, mean, -1.0 if good else 3.0]
            yield f"{clip.file} {condition.name}", [text, prior, phrase, phrase]
            yield f"{clip.file} {condition.name} again", [text, better, 9.0, 9.0]
        yield f"{clip.file} beginning", float(rng.normal(-8))
        yield f"{clip.file} short", [True, False]
    for number in range(NOISES):
        yield f"noise {number} short", [True, False]


def test_a_sentence_is_heard_as_it_is_spoken(unfitted: Path) -> None:
    clip = shipped_clips()[0]
    texts = [clip.text, "stop the music"]
    with SentenceListener(load_bundle(unfitted), ONE_THREAD, texts, texts[1:]) as listener:
        heard = listener.hear(clip, CONDITIONS[0], phrases=True)
        again = listener.hear_again(clip, CONDITIONS[0])
    assert heard is not None
    assert again is not None
    assert heard.text.kept
    assert heard.text.length > 3
    assert again.beam.total >= heard.text.total - 1e-3
    assert again.warped.total >= again.beam.total - 1e-3
    assert heard.listed is not None
    assert heard.listed.right


def test_an_interrupted_fit_continues(unfitted: Path) -> None:
    before = (unfitted / "bundle.json").read_bytes()
    request = FitRequest(unfitted, every=40)

    with pytest.raises(KeyboardInterrupt):
        fit_model(request, ONE_THREAD, stopped_after(4))
    assert (unfitted / "bundle.json").read_bytes() == before
    kept = (unfitted / FILE).read_text().splitlines()
    assert len(kept) == 5
    assert (unfitted / FILE).stat().st_mode & 0o777 == 0o600
    assert "light" not in "".join(kept[1:])
    (unfitted / FILE).write_text("\n".join([*kept, '["half', ""])[:-1])
    with pytest.raises(KeyboardInterrupt):
        fit_model(request, ONE_THREAD, stopped_after(6))
    again = (unfitted / FILE).read_text().splitlines()
    assert again[:5] == kept
    assert len(again) == 8


def test_measurements_of_something_else_are_started_again(tmp_path: Path) -> None:
    with Measurements(tmp_path, ["a"]) as measured:
        assert measured.take("one", lambda: [1, None]) == [1, None]
    with Measurements(tmp_path, ["a"]) as measured:
        assert measured.take("one", lambda: pytest.fail("measured again")) == [1, None]
    with Measurements(tmp_path, ["b"]) as measured:
        assert measured.take("one", lambda: 2) == 2


def test_two_fits_at_once_are_refused(unfitted: Path) -> None:
    with (
        lock(unfitted / FILE),
        pytest.raises(ModelError, match="another `roomscribe model fit` is working on this model"),
    ):
        fit_model(FitRequest(unfitted), ONE_THREAD, silent)


def test_a_model_that_was_replaced_meanwhile_stays_as_it_is(unfitted: Path) -> None:
    before = (unfitted / "bundle.json").read_bytes()
    with pytest.raises(ModelError, match="was replaced while it was being fitted"):
        write_facts(unfitted, b"another", {"description": "fitted"})
    assert (unfitted / "bundle.json").read_bytes() == before
    write_facts(unfitted, before, {"description": "fitted"})
    assert load_bundle(unfitted).description == "fitted"


def test_the_built_in_model_is_never_written_to() -> None:
    with pytest.raises(ConfigError, match="belongs to the package and is fitted already"):
        fit_model(FitRequest(PACKAGED / "tiny.en"), ONE_THREAD, silent)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (None, "expected a folder with transcripts.tsv, found none"),
        (b"file\ttext\n", "lists no text"),
        (b"name\twords\na.wav\thello\n", "expected the columns file and text"),
        (b"file\ttext\nnone.wav\thello\n", "none.wav: transcripts.tsv lists it"),
        (b"file\ttext\n\xff\xfe\thello\n", "cannot be read"),
    ],
)
def test_recordings_without_a_good_list_are_refused(
    tmp_path: Path, table: bytes | None, message: str
) -> None:
    if table is not None:
        (tmp_path / "transcripts.tsv").write_bytes(table)
    with pytest.raises(ConfigError, match=message):
        recorded_clips(tmp_path)


def test_recordings_count_more_than_the_packages_speech(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 16_000)
    (tmp_path / "transcripts.tsv").write_text("file\ttext\na.wav\tHello there\n")
    assert recorded_clips(tmp_path)[0].weight > shipped_clips()[0].weight


def test_corrections_of_this_model_count(tmp_path: Path) -> None:
    lines = [
        {"text": "turn it on", "correction": "turn it off", "avg_logprob": -0.5, "model": "mine"},
        {"text": "Turn it on.", "correction": "turn it on", "avg_logprob": -0.1, "model": "mine"},
        {"text": "turn it on", "correction": None, "avg_logprob": -0.1, "model": "mine"},
        {"text": "turn it on", "correction": "turn it on", "avg_logprob": -0.1, "model": "other"},
    ]
    file = tmp_path / "corrections.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert [one.right for one in read_corrections(file, "mine")] == [False, True]
    file.write_text("nothing\n")
    with pytest.raises(ConfigError, match="line 1: expected a transcript with a correction"):
        read_corrections(file, "mine")


@pytest.mark.skipif(os.geteuid() != 0, reason="root may write everywhere")
def test_a_model_that_this_user_may_not_write_is_refused_at_once(unfitted: Path) -> None:
    unfitted.parent.chmod(0o755)
    unfitted.chmod(0o555)
    done = roomscribe("model", "fit", f"{unfitted}/", wrapper=OBEYING_MODES)
    assert done.returncode == 78
    assert "run it with sudo" in done.stderr
    assert len(errors(done)) == 1


def test_a_model_that_knows_nothing_ends_with_one_line(bundle_folder: Path) -> None:
    """Random weights: every text is wrong."""
    before = (bundle_folder / "bundle.json").read_bytes()
    with pytest.raises(ModelError, match=r"this model cannot be calibrated.*nothing was changed"):
        fit_model(FitRequest(bundle_folder, every=5), ONE_THREAD, silent)
    assert (bundle_folder / "bundle.json").read_bytes() == before
    (bundle_folder / FILE).unlink()
