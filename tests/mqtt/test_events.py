"""The public contract: names, forms and units of what subscribers receive.

Every payload is as its JSON Schema, which ships with the product, says.
"""

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from rigs import broker as rig_broker
from rigs.checkout import ROOT
from rigs.mqtt_client import Subscriber
from rigs.needs import module, needs_broker
from rigs.publishing import STATE, running, transcript
from rigs.waiting import until

from appliance.config import MqttSettings
from appliance.mqtt import events
from appliance.records import (
    ApplianceStats,
    AssistReply,
    Correction,
    Discarded,
    EchoState,
    Partial,
    Phrase,
    Transcript,
    Word,
    new_id,
)
from appliance.store.store import Store
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
        ("level_dbfs", None),
        ("snr_db", None),
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
        ("acts", True),
        ("acts_on", "turn on the light"),
    ]


DIMMED = Phrase("dim the hall to five percent", "light", {"area": "hall", "level": 5}, 0.7512)


@pytest.mark.parametrize(
    ("known", "fields"),
    [
        ({"heard_better_by": "kitchen"}, {"heard_better_by": "kitchen"}),
        ({"heard_also": ("hall", "office")}, {"heard_also": ["hall", "office"]}),
        (
            {"words": (Word("turn", 0.1, 0.34),)},
            {"words": [{"word": "turn", "start": 0.1, "end": 0.34}]},
        ),
        ({"continues": "01J0"}, {"continues": "01J0"}),
        ({"source": "wyoming"}, {"source": "wyoming", "acts_reason": "satellite"}),
        (
            {"phrase": DIMMED},
            {
                "phrase": DIMMED.sentence,
                "phrase_name": "light",
                "slots": {"area": "hall", "level": 5},
                "phrase_confidence": 0.751,
            },
        ),
        ({"language": "de", "language_probability": 0.98765}, {"language_probability": 0.988}),
    ],
)
def test_what_is_known_of_some_sentences_is_published_of_those(
    known: dict[str, Any], fields: dict[str, Any]
) -> None:
    plain, event = event_of(transcript()), event_of(transcript(**known))
    assert {name: value for name, value in event.items() if name not in plain} == fields


def test_the_state_has_exactly_the_fields_of_the_contract() -> None:
    ill = replace(STATE, status="degraded", reasons=("microphone unplugged",), queue_depth=2)
    assert events.state(ill, outbox_depth=7) == {
        "status": "degraded",
        "reasons": ["microphone unplugged"],
        "encoder": "cpu",
        "model": "tiny.en",
        "model_title": "Whisper tiny.en",
        "microphone": "Null Output",
        "queue_depth": 2,
        "outbox_depth": 7,
        "version": "0.1.0",
        "uptime_s": 12,
    }


@pytest.mark.parametrize(("where", "told"), [("0.0.0.0:10300", "0.0.0.0:10300"), (None, None)])
def test_the_state_says_where_speech_of_other_programs_is_transcribed(
    where: str | None, told: str | None
) -> None:
    assert events.state(replace(STATE, wyoming=where), 0)["wyoming"] == told
    assert "wyoming" not in events.state(STATE, 0)


def test_discarded_speech_is_published_without_text() -> None:
    assert events.discarded(Discarded("no_speech", "01J1", 1.23456)) == {
        "reason": "no_speech",
        "utterance_id": "01J1",
        "duration_s": 1.235,
    }


jsonschema = module("jsonschema")
referencing = module("referencing")

FOLDER = ROOT / "config" / "schemas"
SCHEMAS = {file.stem: json.loads(file.read_text("utf-8")) for file in FOLDER.glob("*.json")}
REGISTRY = referencing.Registry().with_resources(
    (f"{name}.json", referencing.Resource.from_contents(schema)) for name, schema in SCHEMAS.items()
)

PHRASE = ("phrase", "phrase_name", "slots", "phrase_confidence")
OPTIONAL = (
    *("continues", "source", "language_probability", "correction", "heard_better_by", "heard_also"),
    "words",
    *("acts_on", "acts_reason"),
    *PHRASE,
)
TEXTS = {"availability", "microphone", "speech", "mute", "mute-set"}


def check(name: str, payload: bytes) -> None:
    """Fails unless the payload is valid and every field of it is described."""
    schema = SCHEMAS[name]
    found = payload.decode() if name in TEXTS else json.loads(payload)
    jsonschema.Draft202012Validator(schema, registry=REGISTRY).validate(found)
    if isinstance(found, dict):
        assert set(found) <= set(schema["properties"]), f"{name}: a field that is not described"


def is_valid(name: str, found: object) -> bool:
    validator = jsonschema.Draft202012Validator(SCHEMAS[name], registry=REGISTRY)
    return bool(validator.is_valid(found))


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_a_schema_is_one_and_says_what_it_is_of(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name]["title"].startswith(("roomscribe/<node>/", "roomscribe/house/"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"windows": None, "flags": ()},
        {"avg_logprob": -math.inf, "no_speech_prob": math.nan, "latency_ms": math.inf},
        {"text": "“Grüße”, 日本 🎤\n", "language": "de", "encoder": "cpu"},
        {"continues": new_id(), "source": "wyoming", "language_probability": 0.9},
        {"phrase": Phrase("turn on the light", "light", {"area": "hall", "level": 5}, math.nan)},
        {"correction": "turn off the light"},
        {"level_dbfs": -31.2, "snr_db": 18.0, "heard_better_by": "hall", "heard_also": ("hall",)},
        {"words": (Word("turn", 0.1, 0.3),)},
    ],
    ids=[
        "plain",
        "unfinished",
        "not numbers",
        "beyond ascii",
        "from elsewhere",
        "phrase",
        "corrected",
        "rooms",
        "words",
    ],
)
def test_a_transcript_is_as_its_schema_says(changes: dict[str, Any]) -> None:
    stored = StoredTranscript(7, transcript(**changes), MOMENT, "", 0.0)
    event = events.transcript(stored, "kitchen", MOMENT, late=True)
    check("transcript", events.encode(event))
    more = {*changes, *(PHRASE if "phrase" in changes else ())} & {*OPTIONAL}
    assert set(event) == {*SCHEMAS["transcript"]["required"], "acts_reason", *more}


def test_state_stats_and_discarded_are_as_their_schemas_say() -> None:
    ill = replace(STATE, status="degraded", reasons=("unplugged",), uptime_s=math.nan)
    ill = replace(ill, rooms=("hall",))
    muted = replace(STATE, status="muted", muted=True)
    camera = replace(STATE, echo=EchoState(21.0, 120))
    updated = replace(STATE, updated=("0.1.0", MOMENT))
    for state in (STATE, ill, muted, replace(muted, muted_until=MOMENT), camera, updated):
        check("state", events.encode(events.state(state, 3, ("faulty",), ("waiting",))))
    bare, full = (
        ApplianceStats({}, 1.0),
        ApplianceStats(
            {"transcripts": 4, "discarded_overload": 1}, 1.0, 51.26, 60.0, ("throttled",)
        ),
    )
    check("stats", events.encode(events.stats(bare, [])))
    check("stats", events.encode(events.stats(full, [300.2, 100.0, 200.0])))
    check("discarded", events.encode(events.discarded(Discarded("set_aside", new_id(), 0.5))))


def test_a_partial_text_is_as_its_schema_says() -> None:
    said = Partial(new_id(), 1, 3, "turn on the light", 11)
    plain = events.partial(said)
    assert set(plain) == {*SCHEMAS["partial"]["required"]}
    for one in (said, replace(said, eager=True), replace(said, resumed=True, continues=new_id())):
        check("partial", events.encode(events.partial(one)))
    for wrong in ({"final": True}, {"rev": 0}, {"text": ""}, {"eager": True, "resumed": True}):
        assert not is_valid("partial", plain | wrong)


def test_a_correction_is_as_its_schema_says() -> None:
    for text in ("turn on the light", None):
        found = events.correction(Correction(new_id(), text, MOMENT))
        check("correction", events.encode(found))
        assert set(found) == {*SCHEMAS["correction"]["required"]}
    for wrong in ({"event_type": "transcript"}, {"transcript_id": "x"}, {"text": 7}):
        assert not is_valid("correction", found | wrong)


def test_a_reply_of_assist_is_as_its_schema_says() -> None:
    done = AssistReply(new_id(), "turn on", "action_done", "Turned on", "en", "", "c-1", 84.2)
    for one in (done, AssistReply(new_id(), "turn on", "failed", error="Home Assistant is away")):
        found = events.assist_reply(one)
        check("assist-reply", events.encode(found))
        assert set(found) == {*SCHEMAS["assist-reply"]["required"]}
    for wrong in ({"status": "done"}, {"text": ""}, {"id": "x"}, {"took_ms": -1}):
        assert not is_valid("assist-reply", events.assist_reply(done) | wrong)


def test_the_schemas_refuse_what_is_wrong() -> None:
    stored = StoredTranscript(7, transcript(), MOMENT, "", 0.0)
    event = events.transcript(stored, "kitchen", MOMENT, late=False)
    assert is_valid("transcript", event)
    for field, wrong in {"id": "x", "late": "no", "confidence": 2, "start": "today"}.items():
        assert not is_valid("transcript", event | {field: wrong}), field
    for field in event:
        assert not is_valid("transcript", {k: v for k, v in event.items() if k != field}), field
    assert not is_valid("mute", "on")
    assert all(is_valid("mute-set", one) for one in ("ON", "OFF", "ON 30m", "ON tomorrow"))
    assert not any(is_valid("mute-set", one) for one in ("on", "OFF 30m", "ON 0m", "30m", "ON "))


@needs_broker
def test_every_message_on_a_needs_broker_has_its_schema(store: Store) -> None:
    stats = ApplianceStats({"transcripts": 1}, 9.0)
    with rig_broker.Broker() as broker, Subscriber(broker.port) as heard:
        settings = MqttSettings(host=broker.host, port=broker.port, partials=True)
        with running(settings, store, stats=lambda: stats) as publisher:
            until(lambda: heard.payloads("state"))
            publisher.live.on_speech(True)
            publisher.live.on_partial(Partial(new_id(), 1, 1, "turn on", 0))
            publisher.live.on_discarded(Discarded("no_speech", new_id(), 0.5))
            publisher.live.on_correction(Correction(new_id(), "turn off", MOMENT))
            publisher.live.on_reply(
                AssistReply(new_id(), "turn on the light", "action_done", "Done")
            )
            store.append(transcript())
            publisher.on_change()
            until(lambda: heard.payloads("last") and heard.payloads("discarded"))
        until(lambda: heard.payloads("availability")[-1] == b"offline")
        seen = set()
        for message in heard.messages:
            name = message.topic.removeprefix("roomscribe/kitchen/")
            check(
                "transcript" if name == "last" else name.replace("/", "-"), bytes(message.payload)
            )
            seen.add(name.replace("/", "-"))
            assert len(message.payload) < 8192, "Home Assistant's recorder drops long attributes"
        incoming = {"mute-set", "expect-request", "expect-response"}
        with_other_rooms = {"act", "house-claim"}  # tests/house/test_house.py
        assert seen == set(SCHEMAS) - incoming - with_other_rooms | {"last"}


def test_the_examples_of_the_documentation_are_as_the_schemas_say() -> None:
    text = (ROOT / "docs" / "mqtt.md").read_text("utf-8")
    examples = re.findall(r"<!-- ([a-z-]+) -->\n```json\n(.*?)```", text, re.DOTALL)
    known = {"transcript", "state", "stats", "discarded", "partial", "assist-reply"}
    assert known <= {name for name, _ in examples}
    for name, example in examples:
        check(name, example.encode())
