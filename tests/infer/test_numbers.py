"""Numbers in words."""

from __future__ import annotations

import pytest
from rigs.needs import module

from appliance.infer.numbers import in_words, number_words


def test_numbers_are_spelled() -> None:
    assert [in_words(one) for one in (0, 13, 40, 99, 100, 342)] == [
        "zero",
        "thirteen",
        "forty",
        "ninety nine",
        "one hundred",
        "three hundred forty two",
    ]


@pytest.mark.parametrize(
    ("language", "number", "words"),
    [
        ("de", 21, ["einundzwanzig"]),
        ("de", 1, ["ein", "eine", "einem", "einen", "einer", "eines", "eins"]),
        ("fr", 80, ["quatre-vingts"]),
        ("es", 21, ["veintiuna", "veintiuno", "veintiún"]),
        ("nl", 22, ["tweeëntwintig"]),
    ],
)
def test_numbers_are_spelled_in_every_form_of_a_language(
    language: str, number: int, words: list[str]
) -> None:
    module("unicode_rbnf", "unicode-rbnf")
    assert number_words(number, language) == words
