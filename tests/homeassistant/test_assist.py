"""Sentences for Assist: what begins with the phrase, and all that speaks against one."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rigs.publishing import transcript

from appliance.homeassistant.assist import (
    AHEAD_S,
    FILE_NAME,
    LATE_S,
    REMEMBERED,
    RefusalKind,
    RefusedText,
    SentIds,
    find_command,
    why_not_matched,
)
from appliance.records import Phrase

NO_NAME, NO_SENSE = RefusalKind.NO_SUCH_NAME, RefusalKind.NOT_UNDERSTOOD


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, "turn on the light"),
        ({"text": "turn on the light"}, "turn on the light"),  # after the phrase alone
        ({"text": "Computer."}, ""),
        ({"flags": ()}, ""),
        ({"flags": ("addressed", "low_confidence")}, ""),
        ({"end": -LATE_S - 0.1}, ""),
        ({"end": AHEAD_S + 60}, ""),
        ({"phrase": Phrase("computer stop", "stop", {}, 0.9)}, "stop"),
        ({"phrase": Phrase("stop", "stop", {}, 0.9)}, "stop"),
        ({"phrase": Phrase("computer stop", "stop", {}, 0.6)}, "turn on the light"),
    ],
    ids=range(10),
)
def test_what_is_said_to_the_home_and_may_be_acted_on_is_handed_over(
    changes: dict[str, Any], wanted: str
) -> None:
    end = datetime.now(UTC) + timedelta(seconds=changes.get("end", 0))
    plain = transcript("computer turn on the light", flags=("addressed",), end=end)
    assert find_command(replace(plain, **changes | {"end": end}), "computer") == wanted


@pytest.mark.parametrize(
    ("understood", "why"),
    [
        ({}, "Home Assistant does not understand it"),
        ({"match": True, "slots": {"area": "Bath"}, "unmatched_slots": {}}, ""),
        ({"match": True, "source": "trigger", "sentence_template": "good night"}, ""),
        ({"match": False, "slots": {}}, "Home Assistant does not understand it"),
        (  # 2026.11.0: do not turn on the light
            {
                "intent": {"name": "HassTurnOn"},
                "slots": {},
                "details": {},
                "targets": {},
                "match": False,
                "sentence_template": "[activate] [<the>] {name} [scene] <in> [<the>] {area}",
                "unmatched_slots": {"name": "do not turn ", "area": "light"},
                "source": "builtin",
            },
            'Home Assistant has no "do not turn" and no "light"',
        ),
        ({"match": True, "unmatched_slots": {"area": "attic"}}, 'Home Assistant has no "attic"'),
        ({"match": "true"}, "Home Assistant does not understand it"),
    ],
    ids=str,
)
def test_only_what_home_assistant_understands_whole_is_handed_over(
    understood: dict[str, Any], why: str
) -> None:
    found = why_not_matched(understood)
    assert (found.why if found else "") == why


@pytest.mark.parametrize(
    ("refused", "language", "spoken"),
    [
        (RefusedText("", NO_NAME, ("a", "b")), "en-GB", "Sorry, I know no a or b."),
        (RefusedText("", NO_NAME, ("Bad",)), "de", "Tut mir leid, Bad kenne ich nicht."),
        (RefusedText("", NO_SENSE), "de-CH", "Das habe ich leider nicht verstanden."),
        (RefusedText("x"), "fr", "Sorry, Home Assistant does not answer."),
    ],
    ids=range(4),
)  # fmt: skip
def test_a_refusal_is_spoken_in_the_language_of_the_pipeline(
    refused: RefusedText, language: str, spoken: str
) -> None:
    assert refused.spoken(language) == (spoken, "de" if language.startswith("de") else "en")


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
