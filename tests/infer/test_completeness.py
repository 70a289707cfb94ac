"""How long a sentence is waited for: by its text, the decoder, and what was said before."""

import math
from dataclasses import replace

import pytest
from rigs.transcriber import HEARD
from rigs.windows import a_window

from appliance.config import SegmenterSettings
from appliance.infer.completeness import OPEN_WORDS, is_begun, is_open, silence_ms
from appliance.records import Phrase

EARLY = SegmenterSettings(early_ms=350)
WHOLE = replace(HEARD, phrase=Phrase(HEARD.text, "all", {}, 0.9), phrase_continues=False)
"""Surely an expected sentence."""


@pytest.mark.parametrize(
    "language, text",
    [
        ("en", "Turn on the"),
        ("en", "set the volume to"),
        ("en", "turn on the kitchen light, "),
        ("en", "Turn off the..."),
        ("en", "the lamp and the—"),
        ("de", "Mach das Licht an und"),
        ("de", "stell den Timer für"),
        ("fr", "allume la"),
        ("es", "enciende la luz del"),
        ("it", "accendi la luce della"),
        ("nl", "zet de lamp in de"),
        ("pt", "acende a luz da"),
        ("ja", "電気を、"),
    ],
)
def test_a_text_is_open_that_ends_as_no_sentence_does(language: str, text: str) -> None:
    assert is_open(text, language)


@pytest.mark.parametrize(
    "language, text",
    [("en", "turn the lights on"), ("en", "Turn it off."), ("en", "turn it off please"), ("en", ""),
     ("de", "mach das Licht an"), ("de", "schalte die Heizung ein"), ("fr", "monte le son"),
     ("it", "tira su"), ("nl", "doe het licht uit"), ("xx", "turn on the"), ("ja", "電気をつけて")],
)  # fmt: skip
def test_a_text_that_may_be_a_sentence_is_not(language: str, text: str) -> None:
    assert not is_open(text, language)


@pytest.mark.parametrize(
    "text, sentence, expected",
    [("Play the", "", True), ("Play the", "play", True), ("What?", "", True), ("Stop.", "", False),
     ("Turn on", "turn on the light", True), ("What time is a", "what time is it", False),
     ("Turn it up to", "turn it up to", False), ("Say what time it is.", "", False),
     ("What is this for?", "", False), ("What is...", "", True), ("", "", False),
     ("Set it to 95%.", "set it to 95 percent", False)],
)  # fmt: skip
def test_nothing_may_act_on_the_beginning_of_a_sentence(
    text: str, sentence: str, expected: bool
) -> None:
    phrase = Phrase(sentence, "all", {}, 0.9) if sentence else None
    assert is_begun(replace(HEARD, text=text, phrase=phrase)) is expected


def test_every_table_is_of_words_that_texts_are_compared_with() -> None:
    for words in OPEN_WORDS.values():
        assert words.split() == words.casefold().split()
        assert len(set(words.split())) == len(words.split())


@pytest.mark.parametrize(
    "text, whole, longer, expected",
    [
        ("turn on the light", 0, 0, 600),
        ("turn on the", 0, 0, 1000),
        ("turn on the light", 1, 0, 350),
        ("turn on the light", 4, 1, 350),
        ("turn on the light", 3, 1, 600),
        ("turn on the light", 0, 1, 1000),
        ("turn it up to", 2, 0, 350),
        ("turn it up to", 1, 1, 600),
        ("stop", 3, 15, 600),
    ],
)
def test_what_was_said_before_goes_before_what_the_words_look_like(
    text: str, whole: int, longer: int, expected: int
) -> None:
    result = replace(HEARD, text=text)
    waited_ms = silence_ms(a_window(voiced_s=3.0), result, EARLY, whole=whole, longer=longer)
    assert waited_ms == expected


@pytest.mark.parametrize("paused", [{"index": 2}, {"continues": "01J0"}])
def test_who_has_paused_before_is_given_the_hang_over(paused: dict[str, object]) -> None:
    window = a_window(voiced_s=3.0, **paused)  # type: ignore[arg-type]
    for result in (WHOLE, HEARD):
        assert silence_ms(window, result, EARLY, whole=9) == 600
        assert silence_ms(window, result, EARLY, longer=9) == 600
    unfinished = replace(HEARD, text="and the")
    assert silence_ms(window, unfinished, EARLY) == 1000


@pytest.mark.parametrize("text, no_speech_prob", [("", 0.0), ("turn on the", 0.99)])
def test_a_guess_that_would_be_discarded_says_nothing(text: str, no_speech_prob: float) -> None:
    result = replace(WHOLE, text=text, no_speech_prob=no_speech_prob, avg_logprob=-2.0)
    assert silence_ms(a_window(voiced_s=3.0), result, EARLY, whole=9) == 600


@pytest.mark.parametrize(
    "hang_over_ms, early, late", [(200, 200, 600), (700, 350, 1000), (3000, 350, 3000)]
)
def test_the_limits_go_with_the_hang_over(hang_over_ms: int, early: int, late: int) -> None:
    settings = replace(EARLY, hang_over_ms=hang_over_ms)
    window = a_window(voiced_s=3.0)
    assert silence_ms(window, WHOLE, settings) == early
    assert silence_ms(window, replace(HEARD, text="on the"), settings) == late


@pytest.mark.parametrize(
    "text, sentence, confidence, expected",
    [
        ("what time is", "what time is it", 0.7, 600),
        ("What time is...", "what time is it", 0.7, 600),
        ("turn the volume up to", "turn the volume up to", 0.9, 600),
        ("what time is", "what time is it", 0.69, 1000),
        ("what time is", "what is the time", 0.89, 1000),
        ("what time is the", "what time is it", 0.89, 1000),
    ],
)
def test_an_open_text_of_a_sentence_that_was_expected_is_not_waited_for(
    text: str, sentence: str, confidence: float, expected: int
) -> None:
    phrase = Phrase(sentence, "all", {}, confidence)
    result = replace(HEARD, text=text, phrase=phrase)
    assert silence_ms(a_window(voiced_s=3.0), result, EARLY) == expected
    assert silence_ms(a_window(voiced_s=3.0), result, EARLY, longer=1) == 1000


@pytest.mark.parametrize(
    "text, confidence, longer, expected",
    [
        ("What is the date?", 0.9, False, 350),
        ("what is the date", 0.9, True, 400),
        ("what is the date", 0.89, False, 600),
        ("what is the date", 0.69, False, 600),
        ("what is the", 0.9, False, 600),
        ("what was the date", 0.89, False, 600),
        ("what was the date", 0.9, False, 350),
        ("what was the date", 0.9, True, 400),
    ],
)
def test_a_sentence_that_was_expected_and_that_none_goes_on_after_ends_early(
    text: str, confidence: float, longer: bool, expected: int
) -> None:
    phrase = Phrase("what is the date", "ask", {}, confidence)
    result = replace(HEARD, text=text, phrase=phrase, phrase_continues=longer)
    assert silence_ms(a_window(voiced_s=3.0), result, EARLY) == expected
    paused = a_window(voiced_s=3.0, continues="01J0")
    assert silence_ms(paused, result, EARLY) >= 600


@pytest.mark.parametrize(
    "probability, longer, expected", [(0.6, False, 350), (0.6, True, 400), (0.4, False, 600)]
)
def test_a_text_that_is_an_expected_sentence_ends_early_before_any_search(
    probability: float, longer: bool, expected: int
) -> None:
    result = replace(
        HEARD, avg_logprob=math.log(probability), is_listed=True, text_continues=longer
    )
    assert silence_ms(a_window(voiced_s=3.0), result, EARLY) == expected
    paused = a_window(voiced_s=3.0, continues="01J0")
    assert silence_ms(paused, result, EARLY) == 600


@pytest.mark.parametrize("text, expected", [("play some jazz", 450), ("play some...", 1000)])
def test_who_has_spoken_briefly_is_waited_for_less(text: str, expected: int) -> None:
    result = replace(HEARD, text=text)
    assert silence_ms(a_window(voiced_s=1.9), result, EARLY) == expected
    assert silence_ms(a_window(voiced_s=1.9, continues="01J0"), result, EARLY) >= 600
