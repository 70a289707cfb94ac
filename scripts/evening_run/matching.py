"""Match events to sentences by the events' times."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from paho.mqtt.client import MQTTMessage

from appliance.records import JOINED

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""The digits of a ULID."""
BEFORE_S, AFTER_S = 0.3, 0.5
"""An event that lies so near to a sentence belongs to it."""
OPENED_LATE_S = 0.5
"""A discarded utterance has no times: its id was made at most so long after its beginning."""


class Span(NamedTuple):
    """A stretch of time.monotonic(), s."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Event:
    """A transcript as it came first. Times are those of time.monotonic()."""

    id: str
    seq: int
    utterance_id: str
    window: int
    begin_s: float
    end_s: float
    arrival_s: float
    text: str
    confidence: float
    phrase: str
    phrase_confidence: float
    flags: tuple[str, ...]
    late: bool
    acts_on: str
    """What something may act on; "" if nothing may."""
    assist: str
    """What Assist was given of it; "" where it was not."""


@dataclass(frozen=True, slots=True)
class Discard:
    """An utterance that gave no text, and about when it was said."""

    reason: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Received:
    """What came over MQTT."""

    events: list[Event]
    discards: list[Discard]
    repeated: list[str]
    """Ids that came again without being marked late."""
    disorder: int
    """Transcripts that came behind one with a higher number."""
    partials: int
    broken_partials: int
    """Transcripts of another text than the eager partial one before them promised."""


def read(messages: Iterable[MQTTMessage], wall_s: float) -> Received:
    """Sorts what came; `wall_s` is time.time() less time.monotonic()."""
    found = [(one.topic.split("/", 2)[2], one) for one in messages]
    given: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for topic, message in found:
        if topic in ("transcript", "discarded", "assist/reply", "partial"):
            parsed = json.loads(message.payload)
            given.setdefault(topic, []).append((message.timestamp, parsed))
    replies = [one for _, one in given.get("assist/reply", ()) if one["took_ms"] is not None]
    handed = {one["id"]: one["text"] for one in replies}
    events: dict[str, Event] = {}
    repeated, disorder, highest = [], 0, 0
    for arrival_s, one in given.get("transcript", ()):
        if one.get("source"):
            continue
        if one["id"] in events:
            if not one["late"]:
                repeated.append(one["id"])
            continue
        disorder += one["seq"] < highest
        highest = max(highest, one["seq"])
        events[one["id"]] = event(one, arrival_s, wall_s, handed.get(one["id"], ""))
    discards = [discard(one, wall_s) for _, one in given.get("discarded", ())]
    partials = [one for _, one in given.get("partial", ())]
    broken = count_broken(partials, events.values())
    return Received(list(events.values()), discards, repeated, disorder, len(partials), broken)


def event(one: dict[str, Any], arrival_s: float, wall_s: float, assist: str) -> Event:
    """Return a transcript's event."""
    begin_s, end_s = (datetime.fromisoformat(one[key]).timestamp() for key in ("start", "end"))
    return Event(
        one["id"], one["seq"], one["utterance_id"], one["window"], begin_s - wall_s, end_s - wall_s,
        arrival_s, one["text"], one["confidence"] or 0.0, one.get("phrase", ""),
        one.get("phrase_confidence") or 0.0, tuple(one["flags"]), one["late"],
        one.get("acts_on", ""), assist,
    )  # fmt: skip


def discard(one: dict[str, Any], wall_s: float) -> Discard:
    """Return a discarded utterance, dated by its id (a ULID begins with the time it was made)."""
    millis = 0
    for letter in one["utterance_id"][:10]:
        millis = millis * 32 + CROCKFORD.index(letter)
    opened_s = millis / 1000 - wall_s
    length_s = max(one["duration_s"] or 0.0, OPENED_LATE_S)
    return Discard(one["reason"], opened_s - OPENED_LATE_S, opened_s + length_s)


def count_broken(partials: Iterable[dict[str, Any]], events: Iterable[Event]) -> int:
    """Return how many transcripts differ from the last eager partial text of their window, where
    no later one took that back. One that joins two parts has a window of its own."""
    promised: dict[tuple[str, int], str | None] = {}
    for one in partials:
        if one["eager"] or one["resumed"]:
            key = one["utterance_id"], one["window"]
            promised[key] = one["text"] if one["eager"] else None
    apart = (one for one in events if JOINED not in one.flags)
    texts = ((one.text, promised.get((one.utterance_id, one.window))) for one in apart)
    return sum(promise is not None and promise != text for text, promise in texts)


def assign(spans: Sequence[Span], found: Iterable[Event | Discard]) -> list[int | None]:
    """Return for each of `found` which of the spans it overlaps most; None: it overlaps none."""
    owners: list[int | None] = []
    for one in found:
        shares = [
            min(one.end_s, span.end_s + AFTER_S) - max(one.begin_s, span.begin_s - BEFORE_S)
            for span in spans
        ]
        best = max(range(len(spans)), key=shares.__getitem__, default=None)
        owners.append(best if best is not None and shares[best] > 0 else None)
    return owners
