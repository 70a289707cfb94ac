"""What subscribers are told: topics and payloads of the public MQTT contract. Pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from appliance.records import ApplianceState, ApplianceStats, Discarded
from appliance.store import StoredTranscript

SCHEMA = 1
"""Version of the transcript's event; raised when a field changes its meaning or goes."""

AVAILABILITY, STATE, MICROPHONE = "availability", "state", "microphone"
TRANSCRIPT, LAST, SPEECH, DISCARDED = "transcript", "last", "speech", "discarded"
MUTE, STATS = "mute", "stats"
COUNTERS = (
    "transcripts", "recovered", "frames_dropped", "lost_overload", "lost_store_refused",
    "set_aside", "expired", "passed_over",
)  # fmt: skip
"""Of the `stats` message, with 0 for what never happened."""
ONLINE, OFFLINE = b"online", b"offline"
ON, OFF = b"ON", b"OFF"


def topic(node: str, name: str) -> str:
    """The topic `name` of the appliance `node`."""
    return f"roomscribe/{node}/{name}"


def transcript(
    stored: StoredTranscript, node: str, published: datetime, late: bool
) -> dict[str, Any]:
    """The event of a transcript; `late` when its delivery waited for a broker."""
    heard = stored.transcript
    return {
        "schema": SCHEMA,
        "event_type": "transcript",
        "id": heard.id,
        "seq": stored.seq,
        "node": node,
        "utterance_id": heard.utterance_id,
        "window": heard.window,
        "windows": heard.windows,
        "start": timestamp(heard.start),
        "end": timestamp(heard.end),
        "published": timestamp(published),
        "text": heard.text,
        "language": heard.language,
        "confidence": _number(heard.confidence),
        "avg_logprob": _number(heard.avg_logprob),
        "no_speech_prob": _number(heard.no_speech_prob),
        "compression_ratio": _number(heard.compression_ratio),
        "flags": list(heard.flags),
        "duration_s": _number(heard.duration_s),
        "model": heard.model,
        "encoder": heard.encoder,
        "latency_ms": _whole(heard.latency_ms),
        "encode_ms": _whole(heard.encode_ms),
        "decode_ms": _whole(heard.decode_ms),
        "queue_ms": _whole(heard.queue_ms),
        "late": late,
    }


def state(
    appliance: ApplianceState,
    outbox_depth: int,
    faults: tuple[str, ...] = (),
    waits: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The `state` message. `faults` between store and broker degrade it, `waits` do not."""
    degraded = faults and appliance.status == "running"
    return {
        "status": "degraded" if degraded else appliance.status,
        "reasons": [*appliance.reasons, *faults, *waits],
        "encoder": appliance.encoder,
        "model": appliance.model,
        "microphone": appliance.microphone,
        "queue_depth": appliance.queue_depth,
        "outbox_depth": outbox_depth,
        "version": appliance.version,
        "uptime_s": _whole(appliance.uptime_s),
    }


def discarded(speech: Discarded) -> dict[str, Any]:
    """The `discarded` message: why there is no transcript, without its text."""
    return {
        "reason": speech.reason,
        "utterance_id": speech.utterance_id,
        "duration_s": _number(speech.duration_s),
    }


def stats(
    appliance: ApplianceStats,
    latencies_ms: Sequence[float],
    undelivered: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The `stats` message; `latencies_ms` are those of the transcripts of the past hour.

    `undelivered` counts those that are in the log and were not told: expired, passed_over.
    """
    prefix = "discarded_"
    counters = {**appliance.counters, **(undelivered or {})}
    return {
        "uptime_s": _whole(appliance.uptime_s),
        **{name: counters.get(name, 0) for name in COUNTERS},
        "discarded": {
            name.removeprefix(prefix): number
            for name, number in sorted(counters.items())
            if name.startswith(prefix)
        },
        "latency_ms_p50": _percentile(latencies_ms, 0.50),
        "latency_ms_p95": _percentile(latencies_ms, 0.95),
        "npu_temperature_c": _reading(appliance.npu_temperature_c),
        "soc_temperature_c": _reading(appliance.soc_temperature_c),
        "throttling": None if appliance.throttling is None else list(appliance.throttling),
    }


def encode(payload: dict[str, Any]) -> bytes:
    """A payload as JSON in UTF-8."""
    return json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()


def timestamp(moment: datetime) -> str:
    """UTC with milliseconds and a Z: 2026-11-21T08:14:03.120Z."""
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(timespec="milliseconds") + "Z"


def _number(value: float) -> float | None:
    """Three decimals; None for what JSON cannot say (infinite, not a number)."""
    return round(float(value), 3) if math.isfinite(value) else None


def _reading(value: float | None) -> float | None:
    """One decimal, as a thermometer has it."""
    return None if value is None or not math.isfinite(value) else round(value, 1)


def _percentile(values: Sequence[float], share: float) -> int | None:
    """The smallest value that `share` of them do not exceed; None without values."""
    known = sorted(value for value in values if math.isfinite(value))
    return round(known[max(0, math.ceil(share * len(known)) - 1)]) if known else None


def _whole(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None
