"""Topics and payloads of the public MQTT contract. Pure functions."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from appliance.records import (
    HEARD_HERE,
    ApplianceState,
    ApplianceStats,
    AssistReply,
    Correction,
    Discarded,
    HeardIn,
    Partial,
    Phrase,
    acting_text,
    why_not_act,
)
from appliance.store import StoredTranscript

SCHEMA = 1
"""Version of the transcript's event; raised when a field changes its meaning or goes."""

AVAILABILITY, STATE, MICROPHONE = "availability", "state", "microphone"
TRANSCRIPT, LAST, SPEECH, DISCARDED = "transcript", "last", "speech", "discarded"
MUTE, STATS, PARTIAL = "mute", "stats", "partial"
ASSIST_REPLY, CORRECTION = "assist/reply", "correction"
COUNTERS = (
    "transcripts", "recovered", "frames_dropped", "lost_overload",
    "set_aside", "expired", "guesses", "guesses_used", "closed_early",
    "resumed", "partials", "wyoming_requests", "wyoming_refused", "wyoming_failed",
    "fleet_done", "fleet_sent", "fleet_own_cpu", "npu_failovers",
)  # fmt: skip
"""Of the `stats` message, with 0 for what never happened."""
ANSWER_BYTES = 60_000
"""Most bytes of transcripts in one answer of the control socket."""
ONLINE, OFFLINE = b"online", b"offline"
ON, OFF = b"ON", b"OFF"


def transcript(
    stored: StoredTranscript, node: str, published: datetime, late: bool
) -> dict[str, Any]:
    """Return the event of a transcript; `late` is true if its delivery had to wait."""
    one = stored.transcript
    event = {
        "schema": SCHEMA,
        "event_type": "transcript",
        "id": one.id,
        "seq": stored.seq,
        "node": node,
        "utterance_id": one.utterance_id,
        "window": one.window,
        "windows": one.windows,
        "start": timestamp(one.start),
        "end": timestamp(one.end),
        "published": timestamp(published),
        "text": one.text,
        "language": one.language,
        "confidence": rounded(one.confidence, 3),
        "avg_logprob": rounded(one.avg_logprob, 3),
        "level_dbfs": rounded(one.level_dbfs, 1),
        "snr_db": rounded(one.snr_db, 1),
        "no_speech_prob": rounded(one.no_speech_prob, 3),
        "compression_ratio": rounded(one.compression_ratio, 3),
        "flags": list(one.flags),
        "duration_s": rounded(one.duration_s, 3),
        "model": one.model,
        "encoder": one.encoder,
        "latency_ms": rounded(one.latency_ms),
        "encode_ms": rounded(one.encode_ms),
        "decode_ms": rounded(one.decode_ms),
        "queue_ms": rounded(one.queue_ms),
        "late": late,
    }
    if one.language_probability is not None:
        event["language_probability"] = rounded(one.language_probability, 3)
    if one.phrase:
        event |= phrase(one.phrase)
    reason = why_not_act(one, late=late)
    event["acts"] = reason is None
    event |= {"acts_on": acting_text(one)} if reason is None else {"acts_reason": reason.value}
    if one.continues:
        event["continues"] = one.continues
    if one.source != HEARD_HERE:
        event["source"] = one.source
    if one.correction is not None:
        event["correction"] = one.correction
    if one.heard_better_by:
        event["heard_better_by"] = one.heard_better_by
    if one.heard_also:
        event["heard_also"] = list(one.heard_also)
    if one.words:
        event["words"] = [word.as_json(0.0) for word in one.words]
    return event


def fit_transcripts(
    found: Sequence[StoredTranscript],
    node: str,
    limit: int,
) -> tuple[list[dict[str, Any]], bool]:
    """Return the events of at most `limit` transcripts that fit into ANSWER_BYTES together, as
    published when they were stored, and whether more were found."""
    shown: list[dict[str, Any]] = []
    free_bytes = ANSWER_BYTES
    for one in found[:limit]:
        event = transcript(one, node, one.stored, late=False)
        free_bytes -= len(encode(event)) + 2
        if free_bytes < 0:
            break
        shown.append(event)
    return shown, len(shown) < len(found)


def phrase(found: Phrase) -> dict[str, Any]:
    """Return the fields of a transcript's event about the expected sentence."""
    return {
        "phrase": found.sentence,
        "phrase_name": found.name,
        "slots": dict(found.slots),
        "phrase_confidence": rounded(found.confidence, 3),
    }


def state(
    appliance: ApplianceState,
    outbox_depth: int,
    troubles: tuple[str, ...] = (),
    waits: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the `state` message. `troubles` with the broker degrade it, `waits` do not."""
    degraded = troubles and appliance.status == "running"
    role, server = appliance.fleet or ("", "")
    before, at = appliance.updated or ("", None)
    echo = asdict(appliance.echo) if appliance.echo else {}
    echo.pop("problem", None)  # it is among the reasons
    optional = {
        "updated": {"from": before, "at": timestamp(at)} if at else None,
        "muted_until": timestamp(appliance.muted_until) if appliance.muted_until else None,
        "reference": echo,
        "assist": dict(appliance.assist),
        "rooms": list(appliance.rooms),
        "fleet": {"role": role, "server": server or None} if role else None,
    }
    return {
        "status": "degraded" if degraded else appliance.status,
        "reasons": [*appliance.reasons, *troubles, *waits],
        "encoder": appliance.encoder,
        "model": appliance.model,
        "model_title": appliance.model_title,
        "microphone": appliance.microphone,
        "queue_depth": appliance.queue_depth,
        "outbox_depth": outbox_depth,
        "version": appliance.version,
        "uptime_s": rounded(appliance.uptime_s),
        **({} if appliance.wyoming == "" else {"wyoming": appliance.wyoming}),
        **{name: value for name, value in optional.items() if value},
    }


def discarded(speech: Discarded) -> dict[str, Any]:
    """Return the `discarded` message: why there is no transcript, without text."""
    return {
        "reason": speech.reason,
        "utterance_id": speech.utterance_id,
        "duration_s": rounded(speech.duration_s, 3),
    }


def heard_in(heard: HeardIn) -> dict[str, Any]:
    """Return the control socket's `heard_in` event: other rooms that heard a sentence."""
    return {
        "transcript_id": heard.transcript_id,
        "heard_better_by": heard.heard_better_by or None,
        "heard_also": list(heard.heard_also),
    }


def partial(text: Partial) -> dict[str, Any]:
    """Return the `partial` message: text while somebody speaks."""
    message = asdict(text) | {"final": False}
    if not text.continues:
        del message["continues"]
    return message


def assist_reply(reply: AssistReply) -> dict[str, Any]:
    """Return the `assist/reply` message: the result of a sentence for Assist."""
    fields = asdict(reply)
    for name in ("language", "error", "conversation_id"):
        fields[name] = fields[name] or None
    return {
        "schema": SCHEMA,
        **fields,
        "took_ms": rounded(reply.took_ms),
    }


def correction(made: Correction) -> dict[str, Any]:
    """Return the `correction` message: what was really said in an earlier transcript."""
    return {
        "schema": SCHEMA,
        "event_type": "correction",
        "transcript_id": made.transcript_id,
        "text": made.text,
        "time": timestamp(made.at),
    }


def stats(
    appliance: ApplianceStats,
    latencies_ms: Sequence[float],
    expired: int = 0,
) -> dict[str, Any]:
    """Return the `stats` message; `latencies_ms` are those of the past hour's transcripts.

    `expired` transcripts were not published because they were too old.
    """
    prefix = "discarded_"
    counters = {**appliance.counters, "expired": expired}
    return {
        "uptime_s": rounded(appliance.uptime_s),
        **{name: counters.get(name, 0) for name in COUNTERS},
        "discarded": {
            name.removeprefix(prefix): number
            for name, number in sorted(counters.items())
            if name.startswith(prefix)
        },
        "latency_ms_p50": _percentile(latencies_ms, 0.50),
        "latency_ms_p95": _percentile(latencies_ms, 0.95),
        "npu_temperature_c": rounded(appliance.npu_temperature_c, 1),
        "soc_temperature_c": rounded(appliance.soc_temperature_c, 1),
        "throttling": None if appliance.throttling is None else list(appliance.throttling),
    }


def encode(payload: dict[str, Any]) -> bytes:
    """Return a payload as JSON in UTF-8."""
    return json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()


def timestamp(moment: datetime) -> str:
    """Return the time in UTC with milliseconds and a Z: 2026-11-21T08:14:03.120Z."""
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(timespec="milliseconds") + "Z"


def parse_time(text: object) -> datetime:
    """Return an ISO 8601 time with its zone as UTC. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text if isinstance(text, str) else "")
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError("expected a time with its zone, such as 2026-11-21T08:00:00Z")


def rounded(value: float | None, digits: int | None = None) -> float | None:
    """Return the value as a whole number, or with `digits`; None for infinite and NaN."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


def _percentile(values: Sequence[float], share: float) -> int | None:
    """Return the smallest value that `share` of them do not exceed; None without values."""
    known = sorted(value for value in values if math.isfinite(value))
    return round(known[max(0, math.ceil(share * len(known)) - 1)]) if known else None
