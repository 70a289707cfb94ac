"""The public contract: names, forms and units of what subscribers receive."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

from publishing import STATE, transcript

from appliance.mqtt import events
from appliance.records import Discarded, Transcript
from appliance.store.tables import StoredTranscript

MOMENT = datetime(2026, 11, 21, 8, 14, 7, 20000, UTC)


def event_of(heard: Transcript, late: bool = False) -> dict[str, object]:
    stored = StoredTranscript(4182, heard, MOMENT, "", 0.0)
    encoded = events.encode(events.transcript(stored, "kitchen", MOMENT, late))
    return dict(json.loads(encoded))


def test_an_event_has_exactly_the_fields_of_the_contract_in_its_order() -> None:
    heard = transcript(id="01J0", utterance_id="01J1", flags=())
    assert list(event_of(heard).items()) == [
        ("schema", 1),
        ("event_type", "transcript"),
        ("id", "01J0"),
        ("seq", 4182),
        ("node", "kitchen"),
        ("utterance_id", "01J1"),
        ("window", 1),
        ("windows", 1),
        ("start", "2026-11-21T08:14:03.120Z"),
        ("end", "2026-11-21T08:14:06.480Z"),
        ("published", "2026-11-21T08:14:07.020Z"),
        ("text", "turn on the light"),
        ("language", "en"),
        ("confidence", 0.811),
        ("avg_logprob", -0.21),
        ("no_speech_prob", 0.03),
        ("compression_ratio", 1.1),
        ("flags", []),
        ("duration_s", 3.36),
        ("model", "tiny"),
        ("encoder", "hailo8"),
        ("latency_ms", 540),
        ("encode_ms", 95),
        ("decode_ms", 310),
        ("queue_ms", 20),
        ("late", False),
    ]


def test_flags_lateness_and_an_unfinished_utterance_are_told() -> None:
    event = event_of(transcript(windows=None, flags=("demo_model", "cut_at_window")), late=True)
    assert event["windows"] is None
    assert event["flags"] == ["demo_model", "cut_at_window"]
    assert event["late"] is True


def test_times_of_any_zone_are_told_in_utc_with_milliseconds() -> None:
    berlin = timezone(timedelta(hours=1))
    assert events.timestamp(datetime(2026, 1, 1, 0, 30, tzinfo=berlin)) == (
        "2025-12-31T23:30:00.000Z"
    )


def test_a_number_that_json_cannot_say_becomes_null() -> None:
    event = event_of(transcript(avg_logprob=-math.inf, no_speech_prob=math.nan))
    assert event["avg_logprob"] is None
    assert event["no_speech_prob"] is None
    assert event["confidence"] == 0


def test_text_beyond_ascii_survives() -> None:
    assert event_of(transcript('“Grüße”, 日本, 🎤 \\ "'))["text"] == '“Grüße”, 日本, 🎤 \\ "'


def test_the_state_has_exactly_the_fields_of_the_contract() -> None:
    ill = replace(STATE, status="degraded", reasons=("microphone unplugged",), queue_depth=2)
    assert events.state(ill, outbox_depth=7) == {
        "status": "degraded",
        "reasons": ["microphone unplugged"],
        "encoder": "cpu",
        "model": "home-en",
        "microphone": "Null Output",
        "queue_depth": 2,
        "outbox_depth": 7,
        "version": "0.1.0",
        "uptime_s": 12,
    }


def test_discarded_speech_is_told_without_a_text() -> None:
    assert events.discarded(Discarded("no_speech", "01J1", 1.23456)) == {
        "reason": "no_speech",
        "utterance_id": "01J1",
        "duration_s": 1.235,
    }


def test_topics_live_under_the_node() -> None:
    assert events.topic("kitchen", events.TRANSCRIPT) == "roomscribe/kitchen/transcript"
