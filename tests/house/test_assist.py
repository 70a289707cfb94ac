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
from appliance.house.assist import AHEAD_S, FILE_NAME, LATE_S, REMEMBERED, Sent, command, why_not
from appliance.records import Transcript

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
        ({"confidence": math.nan}, "confidence"),
        ({"flags": ("low_confidence",)}, "low_confidence"),
        ({"flags": ("demo_model",)}, "demo_model"),
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


def test_an_id_is_taken_once_over_restarts(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert Sent(folder).take("one")
    sent = Sent(folder)
    assert not sent.take("one")
    assert sent.take("two")
    for number in range(REMEMBERED):
        assert sent.take(str(number))
    assert len(json.loads((folder / FILE_NAME).read_bytes())) == REMEMBERED
    assert not Sent(folder).take(str(REMEMBERED - 1))


def test_an_id_that_cannot_be_written_down_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("no folder", encoding="utf-8")
    assert not Sent(tmp_path / "run").take("one")


@pytest.mark.parametrize("content", [b"", b"{", b"7", b"[7, null]", b"[" * 100_000])
def test_a_damaged_memory_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert Sent(tmp_path).take("one")
    assert not Sent(tmp_path).take("one")
