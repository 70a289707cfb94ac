"""What a window's transcription says that is new, how it is marked, and why it is discarded."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from appliance.config import GateSettings, Settings
from appliance.infer import gates
from appliance.infer.gates import Gates, compression_ratio, first_round, is_loop, judge
from appliance.infer.opening import open_transcriber
from appliance.model.bundle import Bundle
from appliance.records import Transcription, Window

GATES = GateSettings(low_confidence=math.exp(-1))


def result(
    text: str = "turn on the light",
    tokens: tuple[int, ...] = (1, 2, 3, 4),
    *,
    avg_logprob: float = -0.3,
    no_speech_prob: float = 0.1,
) -> Transcription:
    return Transcription(
        text=text,
        tokens=tokens,
        language="en",
        compression_ratio=gates.compression_ratio(text),
        ended=True,
        encoder="cpu",
        encode_ms=1.0,
        decode_ms=1.0,
        avg_logprob=avg_logprob,
        confidence=math.exp(avg_logprob),
        no_speech_prob=no_speech_prob,
    )


def window(index: int, overlap_s: float = 0.0) -> Window:
    samples = np.zeros(16000, np.int16)
    return Window("u", index, False, samples, 0.0, 1.0, 1.0, overlap_s=overlap_s)


def test_a_suspicious_repetition_is_marked_and_kept() -> None:
    in_the_middle = (1, 2, 3, 7, 8, 7, 8, 7, 8, 4, 5)
    heard, reason = Gates(GATES).apply(window(1), result("turn it off", in_the_middle))
    assert (heard.flags, reason) == (("repetition",), None)
    for tokens in ((1, 1, 1, 1), (7, 8, 7, 8), (1, 2, 3, 1, 2, 4, 1, 2, 5)):
        heard, reason = Gates(GATES).apply(window(1), result("no no no no", tokens))
        assert (heard.flags, reason) == ((), None)


@pytest.mark.parametrize(
    ("text", "kept"),
    [("No, no, no, no, no, no.", "No."), ("stop " * 20, "stop"), ("Ja! " * 7, "Ja!")],
)
def test_one_word_said_again_and_again_is_kept_once(text: str, kept: str) -> None:
    said = result(text, (7, 8) * len(text.split()))
    assert judge(said) == "repetition"
    heard, reason = Gates(GATES).apply(window(1), said)
    assert (heard.text, heard.flags, reason) == (kept, ("repetition",), None)
    looping = replace(said, ended=False)
    assert Gates(GATES).apply(window(1), looping)[1] == "repetition"
    others = replace(said, text="turn it off " * 9)
    assert Gates(GATES).apply(window(1), others)[1] == "repetition"


def test_a_later_window_is_freed_of_what_it_repeats() -> None:
    verdicts = Gates(GATES)
    verdicts.apply(window(1), result("turn on the light"))
    heard, reason = verdicts.apply(window(2, 0.8), result("the light in the kitchen"))
    assert (heard.text, reason) == ("in the kitchen", None)


def test_a_window_that_says_nothing_new_is_a_repetition() -> None:
    verdicts = Gates(GATES)
    verdicts.apply(window(1), result("turn on the light"))
    assert verdicts.apply(window(2, 0.8), result("the light"))[1] == "repetition"
    heard, reason = verdicts.apply(window(3, 0.8), result("the light please"))
    assert (heard.text, reason) == ("please", None)


def test_the_words_of_a_window_that_was_discarded_are_not_taken_for_told() -> None:
    verdicts = Gates(GATES)
    verdicts.apply(window(1), result("the light", avg_logprob=-5.0))
    heard, reason = verdicts.apply(window(2, 0.8), result("the light please"))
    assert (heard.text, reason) == ("the light please", None)


def test_the_window_before_is_recalled_where_another_process_wrote_it_down() -> None:
    heard, reason = Gates(GATES).apply(
        window(2, 0.8), result("light please"), lambda: "turn on the light"
    )
    assert (heard.text, reason) == ("please", None)


def test_a_preview_is_what_follows_and_leaves_no_trace() -> None:
    verdicts = Gates(GATES)
    verdicts.apply(window(1), result("turn on the light in the"))
    for text in ("in the hall and", "in the hall and the kitchen"):
        assert verdicts.preview(window(2, 1.0), result(text)) == text.removeprefix("in the ")
    heard, _ = verdicts.apply(window(2, 1.0), result("in the hall and the kitchen"))
    assert heard.text == "hall and the kitchen"
    assert verdicts.preview(window(3, 1.0), result("the kitchen")) == ""
    assert verdicts.preview(window(3), result("")) == ""


def test_marks_follow_one_another() -> None:
    doubtful = result("thank you", (5,) * 7, avg_logprob=-1.2)
    assert gates.find_flags(doubtful, GATES) == ("low_confidence", "repetition")


@pytest.mark.parametrize(
    ("confidence", "flags"),
    [(0.4, ("low_confidence",)), (0.6, ("unsure_to_act",)), (0.89, ("unsure_to_act",)), (0.9, ())],
)
def test_nothing_acts_on_a_text_below_the_confidence_that_the_fit_found(
    confidence: float, flags: tuple[str, ...]
) -> None:
    heard = replace(result("stop the music"), confidence=confidence)
    limits = replace(GATES, low_confidence=0.5, act_confidence=0.9)
    assert gates.find_flags(heard, limits) == flags
    assert "unsure_to_act" not in gates.find_flags(heard, replace(limits, act_confidence=0.0))


def test_repetition_compresses_well_and_speech_does_not() -> None:
    assert compression_ratio("") == 0.0
    assert compression_ratio("turn on the light in the kitchen please") < 1.3
    assert compression_ratio("thank you " * 20) > 5


@pytest.mark.parametrize(
    "tokens",
    [(7,) * 12, (7, 8) * 6, (1, 2, 3, 4) + (7, 8, 9, 6) * 5 + (1, 2), tuple(range(20)) * 5],
)
def test_the_same_tokens_over_and_over_are_a_loop(tokens: tuple[int, ...]) -> None:
    assert is_loop(tokens)


@pytest.mark.parametrize(
    "tokens",
    [(), (7,) * 11, (7, 8, 9) * 4, tuple(range(60)), (7, 7, 7, 7, 1, 7, 7, 7, 7, 2, 7, 7, 7, 7)],
)
def test_a_few_repeated_words_are_no_loop(tokens: tuple[int, ...]) -> None:
    assert not is_loop(tokens)


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        ((1, 2, 3) + (7, 8, 9) * 5 + (7,), 6),
        ((1, 2) + (7,) * 11, 13),
        ((1, 2) + (7, 8, 9, 5, 6, 4) * 2, 14),
        ((7, 8) * 6 + (1,), 13),
    ],
)
def test_of_a_loop_at_the_end_the_first_round_is_kept(tokens: tuple[int, ...], kept: int) -> None:
    assert first_round(tokens) == kept


@pytest.mark.parametrize("text", ["yes", "no no no no", "seven seven seven seven"])
def test_a_short_answer_is_kept_even_of_low_confidence(text: str) -> None:
    heard = result(text, tuple(range(len(text.split()))), avg_logprob=-1.8)
    assert judge(heard) is None
    assert "low_confidence" in gates.find_flags(heard, GATES)


@pytest.mark.parametrize(
    ("no_speech_prob", "avg_logprob", "reason"),
    [
        (0.89, -0.52, "no_speech"),  # what base makes of a chime: "you"
        (0.69, -0.87, "no_speech"),  # tiny.en: "Bye."
        (0.45, -2.61, "low_confidence"),  # base, whistling: "I"
        (0.1, -2.0, "low_confidence"),
        (0.49, -0.26, None),  # people: "who repeated poetry but now and my lady heard him"
        (0.37, -0.71, None),  # "next"
        (0.55, -0.9, None),  # "four"
        (0.1, -1.8, None),
        (math.nan, math.nan, None),
    ],
)
def test_noise_is_told_from_speech_by_both_probabilities(
    no_speech_prob: float, avg_logprob: float, reason: str | None
) -> None:
    heard = result(no_speech_prob=no_speech_prob, avg_logprob=avg_logprob)
    assert judge(heard) == reason


def test_an_empty_text_is_no_speech() -> None:
    assert judge(result("", ())) == "no_speech"


def test_a_loop_is_discarded_however_sure_the_model_is() -> None:
    by_text = result("thank you " * 20, avg_logprob=-0.01)
    by_tokens = result("abc", (5,) * 40, avg_logprob=-0.01)
    assert judge(by_text) == "repetition"
    assert judge(by_tokens) == "repetition"


def test_the_configured_gates_reach_the_transcriber(bundle: Bundle) -> None:
    configured = GateSettings(low_confidence=0.0, act_confidence=0.14)
    assert len(fields(configured)) == 2, "a new key belongs into this test"
    with open_transcriber(Settings(gates=configured), bundle=bundle) as transcriber:
        assert transcriber.gates == configured
    left = replace(configured, low_confidence=-1.0, act_confidence=-1.0)
    with open_transcriber(Settings(gates=left), bundle=bundle) as transcriber:
        assert transcriber.gates == replace(
            left, low_confidence=bundle.calibration.low, act_confidence=bundle.calibration.act
        )
