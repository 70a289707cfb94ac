"""Sentences for Assist: what begins with the phrase, and all that speaks against one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rigs.publishing import transcript

from appliance.config import AssistSettings
from appliance.homeassistant.assist import (
    AHEAD_S,
    FILE_NAME,
    LATE_S,
    REMEMBERED,
    Assist,
    SentIds,
    command,
    expected_command,
    is_guess,
    unknown_place,
    why_not,
)
from appliance.records import Phrase, Transcript

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SETTINGS = AssistSettings(phrase="computer")


def sentence(**changes: Any) -> Transcript:
    """One that is to be handed over."""
    plain = transcript("computer turn on the light")
    sure = replace(plain, end=NOW - timedelta(seconds=1), confidence=0.9, flags=())
    return replace(sure, **changes)


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
    assert command(text, "computer") == wanted


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
    assert command(text, phrase) == wanted


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"flags": ("clipped",)}, ""),
        ({"confidence": 0.8}, ""),
        ({"confidence": 0.79}, "confidence"),
        ({"confidence": math.nan, "avg_logprob": math.nan}, "confidence"),
        ({"confidence": math.inf, "avg_logprob": math.inf}, "confidence"),
        ({"confidence": math.nan, "avg_logprob": -0.04}, ""),
        ({"confidence": math.nan, "avg_logprob": -0.06}, "confidence"),
        ({"flags": ("low_confidence",)}, "low_confidence"),
        ({"flags": ("unsure_to_act",)}, "unsure_to_act"),
        ({"flags": ("clipped", "repetition")}, "repetition"),
        ({"flags": ("interrupted",)}, "interrupted"),
        ({"source": "wyoming"}, "source"),
        ({"window": 2, "windows": 2}, "long"),
        ({"windows": None}, "long"),
        ({"end": NOW - timedelta(seconds=LATE_S - 0.1)}, ""),
        ({"end": NOW - timedelta(seconds=LATE_S + 0.1)}, "late"),
        ({"end": NOW + timedelta(seconds=AHEAD_S + 0.1)}, "late"),
    ],
)
def test_nothing_doubtful_is_acted_upon(changes: dict[str, Any], why: str) -> None:
    assert why_not(sentence(**changes), SETTINGS, NOW) == why


def expecting(sentence: str, confidence: float = 0.9, **slots: Any) -> Phrase:
    return Phrase(sentence, "light", slots, confidence)


@pytest.mark.parametrize(
    ("phrase", "wanted"),
    [
        (None, ""),
        (expecting("computer turn on the kitchen light"), "turn on the kitchen light"),
        (expecting("computer turn on the kitchen light", 0.79), ""),
        (expecting("computer turn on the kitchen light", math.nan), ""),
        (expecting("turn on the kitchen light"), ""),
    ],
)
def test_the_expected_sentence_is_the_command_if_it_is_sure(
    phrase: Phrase | None, wanted: str
) -> None:
    said = sentence(phrase=phrase, text="computer torn on the chicken light", confidence=0.3)
    assert expected_command(said, SETTINGS) == wanted


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("low_confidence",), ""),
        (("unsure_to_act",), ""),
        (("token_limit", "low_confidence"), "token_limit"),
    ],
)
def test_the_confidence_of_the_expected_sentence_counts(flags: tuple[str, ...], why: str) -> None:
    sure = expecting("computer turn on the kitchen light")
    assert why_not(sentence(phrase=sure, confidence=0.1, flags=flags), SETTINGS, NOW) == why


@pytest.mark.parametrize(
    ("slots", "unknown"),
    [
        ({"area": "Living Room"}, ""),
        ({"area": "nursery"}, "nursery"),
        ({"floor": "upstairs"}, "upstairs"),
        ({"area": "Attic", "floor": "upstairs"}, "upstairs"),
        ({"area": "living_1"}, ""),  # an id; the sentence has the name
        ({"device": "radio"}, ""),
        ({}, ""),
    ],
)
def test_a_place_that_home_assistant_does_not_have_is_unknown(
    slots: dict[str, Any], unknown: str
) -> None:
    words = "computer turn on the living room light in the nursery upstairs"
    said = sentence(phrase=expecting(words, **slots))
    assert unknown_place(said, ["Living room", "Attic", "Ceiling lamp"]) == unknown
    assert unknown_place(said, []) == "", "the names are not known yet"


GUESS = {"match": True, "fuzzy_match": True}


@pytest.mark.parametrize(
    ("understood", "guess"),
    [
        ({}, False),
        ({"match": True, "fuzzy_match": False, "slots": {}}, False),
        ({"match": False, "fuzzy_match": True, "slots": {}}, False),
        ({**GUESS, "slots": {"domain": "light"}}, True),
        ({**GUESS, "slots": {"domain": "light", "area": "Office"}}, True),  # this room's
        ({**GUESS, "slots": {"domain": "light", "area": "Bath"}}, False),
        ({**GUESS, "slots": {"name": "Big lamp"}}, True),
        (GUESS, True),
    ],
)
def test_an_inexact_match_without_a_place_of_the_text_is_a_guess(
    understood: dict[str, Any], guess: bool
) -> None:
    assert is_guess("turn on the lights in the bath please", understood) == guess


def said(text: str, after_s: float = 1.0, **changes: Any) -> Transcript:
    """A sentence of half a second that begins `after_s` behind a moment of five seconds ago."""
    start = datetime.now(UTC) + timedelta(seconds=after_s - 5)
    times = {"start": start, "end": start + timedelta(seconds=0.5)}
    return sentence(**{"text": text} | times | changes)


def commands(folder: Path, *sentences: Transcript) -> list[str]:
    """What is handed over of sentences that are said one after the other."""
    assist = Assist(SETTINGS, folder)
    return [assist.wants(assist.addressed(one)) for one in sentences]


@pytest.mark.parametrize("pause_s", [-0.2, 0.8, 4.9])
def test_after_the_phrase_alone_the_next_sentence_is_the_command(
    tmp_path: Path, pause_s: float
) -> None:
    first = said("Computer.", -0.5)
    assert commands(tmp_path, first, said("turn on the light", pause_s)) == [
        "",
        "turn on the light",
    ]


def test_only_one_sentence_that_begins_soon_belongs_to_the_phrase(tmp_path: Path) -> None:
    call, light = said("computer", -0.5), said("turn on the light")
    assert commands(tmp_path, call, light, said("turn it off", 2.0)) == ["", light.text, ""]
    assert commands(tmp_path, call, said("turn on the light", 5.1)) == ["", ""]
    assert commands(tmp_path, call, said("turn on the light", -3.0)) == ["", ""]
    whole = said("computer turn on the radio")
    assert commands(tmp_path, call, whole, light) == ["", "turn on the radio", ""]
    assert commands(tmp_path, light) == [""]


@pytest.mark.parametrize(
    "changes",
    [
        {"confidence": 0.79},
        {"flags": ("low_confidence",)},
        {"flags": ("unsure_to_act",)},
        {"flags": ("interrupted",)},
        {"source": "wyoming"},
        {"windows": None},
        {"text": "computers are on"},
    ],
    ids=str,
)
def test_a_doubtful_phrase_calls_nobody(tmp_path: Path, changes: dict[str, Any]) -> None:
    call = replace(said("computer", -0.5), **changes)
    assert commands(tmp_path, call, said("turn on the light"))[1] == ""


@pytest.mark.parametrize(
    "changes", [{"confidence": 0.5}, {"flags": ("cut_at_window",)}, {"windows": None}], ids=str
)
def test_a_doubtful_command_after_the_phrase_is_not_handed_over_and_uses_it_up(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    doubtful = said("turn on the light", **changes)
    again = said("turn on the light", 2.0)
    assert commands(tmp_path, said("computer", -0.5), doubtful, again) == ["", "", ""]


def test_a_sentence_from_another_room_is_no_command_and_leaves_the_phrase(tmp_path: Path) -> None:
    call, other = said("computer", -0.5), said("turn on the radio", source="wyoming")
    light = said("turn on the light", 2.0)
    assert commands(tmp_path, call, other, light) == ["", "", light.text]


def test_the_command_after_the_phrase_may_be_an_expected_sentence(tmp_path: Path) -> None:
    sure = expecting("turn on the kitchen light")
    torn = said("torn on the chicken light", phrase=sure, confidence=0.1)
    assert commands(tmp_path, said("computer", -0.5), torn) == ["", "turn on the kitchen light"]


def test_an_id_is_taken_once_over_restarts(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert SentIds(folder).add("one")
    sent = SentIds(folder)
    assert not sent.add("one")
    assert sent.add("two")
    for number in range(REMEMBERED):
        assert sent.add(str(number))
    assert len(json.loads((folder / FILE_NAME).read_bytes())) == REMEMBERED
    assert not SentIds(folder).add(str(REMEMBERED - 1))


def test_an_id_that_cannot_be_written_down_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("no folder", encoding="utf-8")
    assert not SentIds(tmp_path / "run").add("one")


@pytest.mark.parametrize("content", [b"", b"{", b"7", b"[7, null]", b"[" * 100_000])
def test_a_damaged_memory_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert SentIds(tmp_path).add("one")
    assert not SentIds(tmp_path).add("one")
