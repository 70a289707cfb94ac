"""Sentences that are said to the home: with the address phrase, and after it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rigs.publishing import transcript

from appliance.homeassistant.address import AddressPhrase, after_phrase
from appliance.records import ADDRESSED, NoAct, Phrase, Transcript, why_not_act

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("computer turn on the light", "turn on the light"),
        ("Computer, turn on the light.", "turn on the light."),
        ("COMPUTER! What time is it?", "What time is it?"),
        ("komputer turn on the light", "turn on the light"),
        ("compute turn on the light", "turn on the light"),
        ("computers turn on the light", "turn on the light"),
        ("com puter turn on the light", "turn on the light"),
        ("computer a light", "a light"),
        ("computer", ""),
        ("Computer...", ""),
        ("", ""),
        ("the computer is on", ""),
        ("turn on the computer", ""),
        ("commuters are late", ""),
        ("komputor turn on the light", ""),
        ("computer's light", ""),
        ("computer-aided design", ""),
    ],
)
def test_a_sentence_that_begins_with_the_phrase_has_a_command(text: str, wanted: str) -> None:
    assert (after_phrase(text, "computer") or "") == wanted


@pytest.mark.parametrize(
    ("phrase", "text", "wanted"),
    [
        ("Hey Jarvis", "hey jarvis lights off", "lights off"),
        ("Hey Jarvis", "hay jarvis lights off", "lights off"),
        ("Hey Jarvis", "heyjarvis lights off", "lights off"),
        ("Hey Jarvis", "hey lights off", ""),
        ("Hal", "hal open the door", "open the door"),
        ("Hal", "hall light off", ""),
        ("Küche", "küche licht an", "licht an"),
        ("コンピュータ", "コンピュータ 電気", "電気"),
        ("", "turn on the light", ""),
    ],
)
def test_the_phrase_is_whatever_it_is(phrase: str, text: str, wanted: str) -> None:
    assert (after_phrase(text, phrase) or "") == wanted


def said(text: str, after_s: float = 1.0, **changes: Any) -> Transcript:
    """A sentence of half a second."""
    start = NOW + timedelta(seconds=after_s)
    return transcript(text, start=start, end=start + timedelta(seconds=0.5), **changes)


def addressed(*sentences: Transcript) -> list[bool]:
    """Which of these are said to the home."""
    phrase = AddressPhrase("computer")
    return [ADDRESSED in phrase.mark(one).flags for one in sentences]


CALL = said("Computer.", -0.5, confidence=0.05, flags=("low_confidence",))


@pytest.mark.parametrize("pause_s", [-0.2, 0.8, 4.9])
def test_after_the_phrase_alone_the_next_sentence_is_the_command(pause_s: float) -> None:
    assert addressed(CALL, said("turn on the light", pause_s)) == [True, True]


def test_only_one_sentence_that_begins_soon_belongs_to_the_phrase() -> None:
    light = said("turn on the light")
    assert addressed(CALL, light, said("turn it off", 2.0)) == [True, True, False]
    assert addressed(CALL, said("turn on the light", 5.1)) == [True, False]
    assert addressed(CALL, said("turn on the light", -3.0)) == [True, False]
    assert addressed(CALL, said("computer turn on the radio"), light) == [True, True, False]
    assert addressed(light) == [False]
    longer = said("Computer.", -2.0)  # a command behind it was not understood
    longer = replace(longer, end=longer.start + timedelta(seconds=1.9))
    assert addressed(longer, light) == [True, False]


def test_a_sentence_of_a_satellite_is_no_command_and_leaves_the_phrase() -> None:
    other = said("computer turn on the radio", source="wyoming")
    assert addressed(CALL, other, said("turn on the light", 2.0)) == [True, False, True]
    assert addressed(said("computer", source="wyoming"), said("stop", 2.0)) == [False, False]


@pytest.mark.parametrize(("confidence", "found"), [(0.9, True), (0.6, False)])
def test_an_expected_sentence_may_begin_with_the_phrase(confidence: float, found: bool) -> None:
    expected = Phrase("computer stop", "stop", {}, confidence)
    assert addressed(said("commuters stop", phrase=expected)) == [found]


def test_without_a_phrase_nothing_is_said_to_the_home() -> None:
    assert AddressPhrase("").mark(CALL) is CALL


def test_while_a_player_plays_only_the_phrase_makes_a_sentence_act() -> None:
    phrase = AddressPhrase("computer", lambda since: since == NOW + timedelta(seconds=1))
    marked = [phrase.mark(said(text)) for text in ("light on", "computer light on")]
    assert [why_not_act(one) for one in marked] == [NoAct.MEDIA, None]
    assert why_not_act(phrase.mark(said("light on", 2.0))) is None
    assert AddressPhrase("", lambda _: True).mark(CALL) is CALL
