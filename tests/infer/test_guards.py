"""The guards keep the decoder in check, and judge what it wrote."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from appliance.config import GateSettings
from appliance.infer import gates as gates_module, guards
from appliance.records import Transcription

GATES = GateSettings()


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def transcription(
    text: str = "turn on the light",
    tokens: tuple[int, ...] = (1, 2, 3, 4),
    avg_logprob: float = -0.3,
    no_speech_prob: float = 0.1,
) -> Transcription:
    return Transcription(
        text=text,
        tokens=tokens,
        language="en",
        avg_logprob=avg_logprob,
        no_speech_prob=no_speech_prob,
        compression_ratio=gates_module.compression_ratio(text),
        ended=True,
        encoder="cpu",
        encode_ms=1.0,
        decode_ms=1.0,
    )


def test_a_no_speech_probability_above_the_sure_limit_discards_whatever_the_confidence() -> None:
    sure = replace(GATES, no_speech_sure=0.3)
    assert (
        gates_module.judge(transcription(no_speech_prob=0.31, avg_logprob=-0.1), sure)
        == "no_speech"
    )
    assert gates_module.judge(transcription(no_speech_prob=0.3, avg_logprob=-0.1), sure) is None
    off = replace(GATES, no_speech_sure=1.0)
    assert gates_module.judge(transcription(no_speech_prob=1.0, avg_logprob=-0.1), off) is None


def test_a_lone_word_that_the_model_doubts_needs_less_evidence_of_no_speech() -> None:
    gates = replace(GATES, no_speech_lone=0.003)

    def judged(text: str, probability: float, logprob: float) -> str | None:
        doubted = transcription(text, no_speech_prob=probability, avg_logprob=logprob)
        return gates_module.judge(doubted, gates)

    assert judged("fan", 0.003, -0.61) == "no_speech"
    assert judged("fan", 0.0029, -0.61) is None
    assert judged("yes", 0.02, -0.6) is None
    assert judged("lamp on", 0.02, -0.9) is None
    off = replace(GATES, no_speech_lone=1.0)
    assert (
        gates_module.judge(transcription("fan", no_speech_prob=0.5, avg_logprob=-0.9), off) is None
    )


def test_suppressed_tokens_become_impossible_and_the_input_stays() -> None:
    given = logits(1, 2, 3)
    assert guards.suppress(given, np.array([0, 2])).tolist() == [-np.inf, 2, -np.inf]
    assert guards.suppress(given, np.array([], np.intp)).tolist() == [1, 2, 3]
    assert given.tolist() == [1, 2, 3]


def columns(*values: int) -> np.ndarray:
    return np.array(values, np.intp)


END = 4
"""Of a vocabulary of five tokens, the end-of-text."""


def test_the_penalty_divides_positive_and_multiplies_negative_scores() -> None:
    given = logits(4, -4, 4, 0, -1)
    assert guards.penalise(given, columns(0, 1, 3), 2.0).tolist() == [2, -8, 4, 0, -1]
    assert given.tolist() == [4, -4, 4, 0, -1]


def test_the_penalty_falls_once_on_a_token_written_often() -> None:
    assert guards.penalise(logits(8, 1), columns(0, 0, 0), 2.0).tolist() == [4, 1]


def test_the_penalty_leaves_suppressed_tokens_impossible() -> None:
    assert guards.penalise(logits(-np.inf, 1), columns(0), 1.2)[0] == -np.inf


def test_a_penalty_of_one_changes_nothing() -> None:
    given = logits(3, -1)
    assert guards.penalise(given, columns(0, 1), 1.0) is given
    assert guards.penalise(given, columns(), 1.5) is given


def test_end_of_text_wins_when_it_comes_within_the_boost() -> None:
    given = logits(5.0, 1.0, 0.0, 0.0, 4.2)
    assert guards.boost_end(given, END, 0.7).argmax() == 0
    assert guards.boost_end(given, END, 0.9).argmax() == END
    assert given.argmax() == 0
    assert guards.boost_end(given, END, 0.0) is given


def test_no_boost_brings_a_suppressed_end_of_text_back() -> None:
    closed = guards.suppress(logits(1, 0, 0, 0, 3), columns(END))
    assert guards.boost_end(closed, END, 5.0).argmax() == 0


def test_the_rules_together_choose_as_by_hand() -> None:
    given = guards.suppress(logits(9.0, 4.0, 3.9, -1.0, 3.0), columns(0))
    scores = guards.penalise(given, columns(1), 1.25)
    assert scores.tolist() == pytest.approx([-np.inf, 3.2, 3.9, -1.0, 3.0])
    assert guards.sample(scores, 0.0, np.random.default_rng(0)) == 2
    assert guards.sample(guards.boost_end(scores, END, 1.0), 0.0, np.random.default_rng(0)) == END


def test_the_logarithm_of_the_sum_survives_large_and_impossible_logits() -> None:
    assert guards.log_sum(logits(1000.0, 1000.0, -np.inf)) == pytest.approx(1000.6931, abs=1e-3)
    assert guards.log_sum(logits(0.0, 0.0, 0.0, 0.0, 0.0)) == pytest.approx(np.log(5))


def test_the_best_besides_some_is_found_and_nothing_changes() -> None:
    given = logits(5, 4, 9, 1, 3)
    assert guards.best_besides(given, columns(2, 0)) == 1
    assert guards.best_besides(given, columns()) == 2
    assert given.tolist() == [5, 4, 9, 1, 3]


def test_draws_follow_the_temperature_and_the_seed() -> None:
    given, count = logits(0.0, np.log(3.0), -np.inf), 4000
    for temperature, share in ((1.0, 0.75), (0.5, 0.9)):
        rng = np.random.default_rng(1)
        drawn = [guards.sample(given, temperature, rng) for _ in range(count)]
        assert drawn.count(1) / count == pytest.approx(share, abs=0.03) and 2 not in drawn
        again = np.random.default_rng(1)
        assert drawn[:50] == [guards.sample(given, temperature, again) for _ in range(50)]


def test_repetition_compresses_well_and_speech_does_not() -> None:
    assert gates_module.compression_ratio("") == 0.0
    assert gates_module.compression_ratio("turn on the light in the kitchen please") < 1.3
    assert gates_module.compression_ratio("thank you " * 20) > 5


@pytest.mark.parametrize(
    "tokens",
    [
        (7,) * 12,
        (7, 8) * 6,
        (7, 8, 9) * 5,
        (1, 2, 3, 4, 5) + (7, 8, 9, 6) * 5 + (1, 2),
        tuple(range(20)) * 5,
    ],
)
def test_the_same_tokens_over_and_over_are_a_loop(tokens: tuple[int, ...]) -> None:
    assert gates_module.is_loop(tokens)


@pytest.mark.parametrize(
    "tokens",
    [
        (),
        (7,),
        (7,) * 11,
        (7, 8) * 4,
        (7, 8, 9) * 4,
        tuple(range(60)),
        (7, 7, 7, 7, 1, 7, 7, 7, 7, 2, 7, 7, 7, 7),
    ],
)
def test_a_few_repeated_words_are_no_loop(tokens: tuple[int, ...]) -> None:
    assert not gates_module.is_loop(tokens)


@pytest.mark.parametrize("text", ["yes", "no no no no", "seven seven seven seven"])
def test_a_short_answer_is_kept_even_of_low_confidence(text: str) -> None:
    heard = transcription(text, tuple(range(len(text.split()))), avg_logprob=-1.8)
    assert gates_module.judge(heard, GATES) is None
    assert gates_module.is_doubtful(heard, GATES)


def test_a_confident_text_is_kept_whatever_the_no_speech_probability() -> None:
    assert gates_module.judge(transcription(no_speech_prob=0.99, avg_logprob=-0.4), GATES) is None


def test_an_unsure_text_where_nobody_seems_to_speak_is_no_speech() -> None:
    assert (
        gates_module.judge(transcription(no_speech_prob=0.6, avg_logprob=-1.1), GATES)
        == "no_speech"
    )
    assert gates_module.judge(transcription(no_speech_prob=0.59, avg_logprob=-1.1), GATES) is None


def test_an_empty_text_is_no_speech() -> None:
    assert gates_module.judge(transcription("", ()), GATES) == "no_speech"


def test_a_loop_is_discarded_however_sure_the_model_is() -> None:
    by_text = transcription("thank you " * 20, avg_logprob=-0.01)
    by_tokens = transcription("abc", (5,) * 40, avg_logprob=-0.01)
    assert gates_module.judge(by_text, GATES) == "repetition"
    assert gates_module.judge(by_tokens, GATES) == "repetition"


def test_only_hopeless_confidence_discards_by_itself() -> None:
    assert gates_module.judge(transcription(avg_logprob=-2.4), GATES) is None
    assert gates_module.judge(transcription(avg_logprob=-2.6), GATES) == "low_confidence"
    assert not gates_module.is_doubtful(transcription(avg_logprob=-0.9), GATES)


def test_a_decode_is_tried_again_for_repetition_and_doubt_but_not_in_silence() -> None:
    good, loop = transcription(), transcription("thank you " * 20)
    assert not gates_module.is_failed(good, GATES) and gates_module.is_failed(loop, GATES)
    assert gates_module.is_failed(transcription(avg_logprob=-1.01), GATES)
    silent = replace(loop, avg_logprob=-1.2, no_speech_prob=0.61)
    assert not gates_module.is_failed(silent, GATES)
