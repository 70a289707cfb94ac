from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from evening_run.matching import Span, assign, count_broken, discard, event, read
from paho.mqtt.client import MQTTMessage

from appliance.records import new_id

WALL_S = 1_000_000.0
"""time.time() less time.monotonic()."""


def told(seq: int, begin_s: float, end_s: float, **more: Any) -> dict[str, Any]:
    """A transcript as MQTT has it."""

    def at(moment_s: float) -> str:
        moment = datetime.fromtimestamp(moment_s + WALL_S, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    return {
        "id": f"id-{seq}", "seq": seq, "utterance_id": f"utterance-{seq}", "window": 1,
        "start": at(begin_s), "end": at(end_s), "text": "turn on the light", "confidence": 0.9,
        "flags": [], "late": False, **more,
    }  # fmt: skip


def message(topic: str, payload: dict[str, Any], at_s: float = 5.0) -> MQTTMessage:
    found = MQTTMessage(topic=f"roomscribe/kitchen/{topic}".encode())
    found.payload = json.dumps(payload).encode()
    found.timestamp = at_s
    return found


def test_an_event_belongs_to_the_sentence_that_it_overlaps_most() -> None:
    spans = [Span(10, 12), Span(13, 15), Span(30, 32)]
    found = [Span(9.5, 12.2), Span(11.9, 14), Span(12.1, 12.4), Span(20, 21), Span(31, 31.5)]
    assert assign(spans, found) == [0, 1, 0, None, 2]
    assert assign([], found) == [None] * 5


def test_a_transcripts_times_are_those_of_the_monotonic_clock() -> None:
    found = event(told(1, 3.0, 4.5, phrase="turn on the light"), 5.0, WALL_S, "on the light")
    assert found.begin_s == pytest.approx(3.0)
    assert found.end_s == pytest.approx(4.5)
    assert (found.arrival_s, found.assist, found.phrase) == (5.0, "on the light", found.text)


def test_a_discarded_utterance_is_dated_by_its_id() -> None:
    now_s = time.time()
    one = {"reason": "no_speech", "utterance_id": new_id(now_s), "duration_s": 2.0}
    span = discard(one, now_s - 100.0).span
    assert span.begin_s < 100.0 < span.end_s
    assert span.end_s == pytest.approx(102.0, abs=0.01)


def test_what_came_again_or_out_of_order_is_counted_and_the_first_one_is_kept() -> None:
    mail = read(
        [
            message("transcript", told(2, 3, 4)),
            message("transcript", told(1, 1, 2)),
            message("transcript", told(2, 3, 4), 9.0),
            message("transcript", told(1, 1, 2, late=True)),
            message("transcript", told(3, 6, 7, source="wyoming")),
            message("speech", {}),
            message("assist/reply", {"id": "id-1", "text": "refused here", "took_ms": None}),
            message("assist/reply", {"id": "id-2", "text": "on the light", "took_ms": 9}),
        ],
        WALL_S,
    )
    assert [(one.seq, one.arrival_s, one.assist) for one in mail.events] == [
        (2, 5.0, "on the light"),
        (1, 5.0, ""),
    ]
    assert (mail.repeated, mail.disorder) == (["id-2"], 1)


@pytest.mark.parametrize(
    ("partials", "broken"),
    [
        ([("turn on the light", True, False)], 0),
        ([("turn on", True, False)], 1),
        ([("turn on", True, False), ("turn on", False, True)], 0),
        ([("turn on", True, False), ("turn", False, True), ("turn on a", True, False)], 1),
        ([("turn on", False, False)], 0),
        ([], 0),
    ],
)
def test_a_transcript_has_the_text_of_its_last_eager_partial_one(
    partials: list[tuple[str, bool, bool]], broken: int
) -> None:
    sent = [
        {"utterance_id": "utterance-1", "window": 1, "text": text, "eager": eager, "resumed": back}
        for text, eager, back in partials
    ]
    assert count_broken(sent, [event(told(1, 3, 4), 5.0, WALL_S, "")]) == broken
