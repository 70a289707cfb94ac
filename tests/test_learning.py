"""`scripts/measure learning`: it tests nothing that it has learnt, and learns what is there."""

from __future__ import annotations

import numpy as np
import pytest
from figures.learning import (
    CORRECTIONS,
    LAST,
    PEOPLE,
    Baseline,
    Learnt,
    Lesson,
    Listener,
    Outcome,
    Sentence,
    bias_tokens,
    choose_lessons,
    differing_tokens,
    fit_bias,
    keep_unused,
    list_log,
    offer,
    softmax,
    split_folds,
)
from figures.model import alike, read, to_int16
from rigs.recordings import sentences

from appliance.infer.transcriber import Encoded

NO_SOUND = Encoded(np.zeros((1, 1), np.float32), 1.0, "cpu", 0.0)


def said(*texts: str) -> list[Sentence]:
    return [Sentence(f"{at}", "ann", PEOPLE, text, NO_SOUND) for at, text in enumerate(texts)]


@pytest.mark.parametrize("count", [6, 16, 40])
def test_no_words_that_are_tested_are_among_the_corrections(count: int) -> None:
    spoken = said(*(f"set the lamp to {at} percent" for at in range(count)), "Lamp on", "lamp on!")
    folds = split_folds(spoken)
    assert sorted(one.key for fold in folds for one in fold) == sorted(one.key for one in spoken)
    for fold in folds:
        tested = {tuple(alike(one.text)) for one in fold}
        rest = [one for one in spoken if one not in fold]
        assert rest and not tested & {tuple(alike(one.text)) for one in rest}
        assert count < 40 or len(rest) >= CORRECTIONS


def test_only_texts_that_are_in_the_log_and_wrong_are_corrected() -> None:
    spoken = said(*["lamp on"] * 100)
    heard = ["Lamp on.", "", *["lamp off"] * 30, *["lamp on"] * 68]
    lessons = [Lesson(one, text, ()) for one, text in zip(spoken, heard, strict=True)]
    wrong, right = choose_lessons(lessons)
    assert [one.heard for one in wrong] == ["lamp off"] * CORRECTIONS
    assert len(wrong) + len(right) == LAST and all(one.is_right for one in right)


def test_words_and_replacements_are_those_that_the_page_offers() -> None:
    pairs = [("call wind stone now", "call Winston now"), ("is it so", "is it on")]
    assert offer(pairs) == (("Winston",), {"wind stone": "Winston", "so": "on"})


def test_words_that_another_sentence_of_the_log_has_are_not_replaced() -> None:
    spoken = said("play it in the sauna", "dim the sauna", "play a song", "Lights on", "lights on")
    texts = ["play it in the song", "dim the sun are", "play a song", "lights on", "lights on"]
    lessons = [Lesson(one, text, ()) for one, text in zip(spoken, texts, strict=True)]
    log = list_log(lessons, spoken[3:4], lessons[:2])
    assert log == ["play a song"], "neither corrected nor tested, nor the same words"
    found = {"song": "sauna", "sun are": "sauna", "so": "sauna", "son": "sauna"}
    assert list(keep_unused(found, log, 3)) == ["sun are", "son"]


def test_a_token_that_was_missing_gains_and_one_too_many_loses() -> None:
    missing, extra = differing_tokens([((1, 2, 3), (1, 4, 3)), ((4,), (5, 4, 2))])
    assert (missing, extra) == ([4, 5, 2], [2])
    bias = bias_tokens(np.array(missing), np.array(extra), 6, 2.0)
    assert bias.tolist() == [0, 0, 0, 0, 2, 2]


def test_the_regression_recovers_a_planted_bias() -> None:
    rng = np.random.default_rng(3)
    embedding = rng.standard_normal((40, 5)).astype(np.float32)
    states = rng.standard_normal((1500, 5)).astype(np.float32)
    planted = np.array([1.0, -0.5, 0.25, 0.0, -1.0], np.float32)
    odds = softmax((states + planted) @ embedding.T)
    wanted = (odds.cumsum(axis=1) > rng.random((1500, 1))).argmax(axis=1)
    logits = states @ embedding.T
    assert np.abs(fit_bias(logits, wanted, embedding, 1e-6) - planted).max() < 0.15
    assert np.abs(fit_bias(logits, wanted, embedding, 1e6)).max() < 1e-3
    # whole steps of Newton's method diverge where the model is sure of something else
    sure = 20 * logits
    found = fit_bias(sure[:50], wanted[:50], embedding, 1e-3)
    likely = np.log(softmax(sure[:50] + embedding @ found) + 1e-30)
    before = np.log(softmax(sure[:50]) + 1e-30)
    rows = np.arange(50)
    assert likely[rows, wanted[:50]].mean() > before[rows, wanted[:50]].mean() + 1


def test_a_speakers_own_sentences_do_not_choose_the_strength() -> None:
    base = Baseline(
        {"a": "ann", "b": "bob", "c": "cem"}, dict.fromkeys("abc", 10), dict.fromkeys("abc", 5)
    )

    def outcomes(ann: int, bob: int, cem: int) -> list[Outcome]:
        return [
            Outcome("ann", 1, {"a": ann}, {"c": cem}, 0.0),
            Outcome("bob", 1, {"b": bob}, {"a": ann, "c": cem}, 0.0),
        ]

    tables = {1.0: outcomes(9, 3, 5), 2.0: outcomes(0, 4, 5), 3.0: outcomes(0, 0, 6)}
    assert base.choose(tables, "ann") == 1.0, "3 harms cem, and only ann gains more from 2"
    assert base.choose(tables, "bob") == 2.0
    assert base.rates(tables[2.0], "own").change == pytest.approx(-60)


def test_a_bias_of_the_logits_reaches_the_text_and_none_changes_nothing() -> None:
    listener, one = Listener(), sentences()[1]
    spoken = Sentence("one", "pico", PEOPLE, one.text, listener.encode(to_int16(read(one.file))))
    text, tokens = listener.listen(spoken, Learnt())
    assert text == one.text and listener.spell(one.text) == tokens
    logits, rows = listener.logits(spoken.encoded.states, tokens), listener.embedding
    wanted = listener.columns([*tokens, listener.bundle.tokens.end_of_text])
    assert (logits.argmax(axis=1) == wanted).all()
    states = np.linalg.lstsq(rows, logits.T, rcond=None)[0]
    assert np.abs(rows @ states - logits.T).max() < 1e-3, "logits are the last layer's, times rows"
    shut = np.zeros(len(rows), np.float32)
    shut[wanted[0]] = -50.0
    other, _ = listener.listen(spoken, Learnt(bias=shut))
    assert other and other.split()[0] != one.text.split()[0]
    assert listener.listen(spoken, Learnt()) == (text, tokens)
