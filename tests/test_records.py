"""The one rule for acting on a transcript."""

import math
from dataclasses import replace
from typing import Any

import pytest
from rigs.publishing import transcript

from appliance.records import ADDRESSED, NoAct, Phrase, acting_text, why_not_act

SURE = Phrase("turn on the kitchen light", "light", {}, 0.7)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"flags": ("clipped", "gap", "corrected")}, None),
        ({"source": "wyoming"}, NoAct.SATELLITE),
        ({"window": 2, "windows": 2}, NoAct.PART),
        ({"windows": None}, NoAct.PART),
        *(({"flags": ("clipped", why.value)}, why) for why in NoAct if why.value != "satellite"),
        ({"flags": ("low_confidence", "repetition")}, NoAct.REPETITION),
        ({"flags": (ADDRESSED, "unsure_to_act")}, None),
        ({"flags": (ADDRESSED, "low_confidence")}, NoAct.LOW_CONFIDENCE),
        ({"flags": (ADDRESSED, "token_limit")}, NoAct.TOKEN_LIMIT),
        ({"flags": ("low_confidence",), "phrase": SURE}, None),
        ({"flags": ("unsure_to_act",), "phrase": SURE}, None),
        ({"flags": ("token_limit", "low_confidence"), "phrase": SURE}, NoAct.TOKEN_LIMIT),
        ({"source": "wyoming", "phrase": SURE}, NoAct.SATELLITE),
    ],
    ids=str,
)
def test_nothing_acts_on_what_is_doubtful(changes: dict[str, Any], why: NoAct | None) -> None:
    one = replace(transcript(flags=()), **changes)
    assert why_not_act(one) is why
    assert why_not_act(one, late=True) is not None


@pytest.mark.parametrize(("confidence", "acts"), [(0.29, False), (0.5, True), (0.9, True)])
def test_one_word_alone_acts_only_if_the_text_is_likely(confidence: float, acts: bool) -> None:
    flags = ("unsure_to_act",) if confidence < 0.7 else ()
    one = transcript("No!", flags=flags, confidence=confidence, phrase=replace(SURE, sentence="no"))
    assert (why_not_act(one) is None) is acts
    assert why_not_act(replace(one, phrase=SURE)) is None


@pytest.mark.parametrize(
    ("confidence", "wanted"),
    [(0.7, SURE.sentence), (0.69, "turn on a light"), (math.nan, "turn on a light")],
)
def test_the_words_of_an_expected_sentence_count_if_it_is_sure(
    confidence: float, wanted: str
) -> None:
    expected = Phrase(SURE.sentence, "light", {}, confidence)
    assert acting_text(transcript("turn on a light", phrase=expected)) == wanted
