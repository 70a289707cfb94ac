"""`command/history`: what was heard after a transcript or a time, as JSON. Pure but for the store.

    {"since_id": "01J...", "limit": 50}   or   {"since": "2026-11-21T08:00:00Z"}

gives {"schema": 1, "node": ..., "status": "ok", "transcripts": [...], "more": false}, the oldest
first, with `late` true. With `more`, ask again from the last id.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from appliance.publish import events
from appliance.store.store import Store

REQUEST_BYTES = 1024
"""A longer request is none."""
ANSWER_BYTES = 60_000
"""An answer holds no more transcripts than fit into so much."""
_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


class RequestError(ValueError):
    """A request that is not as it should be: what was expected, never what was said."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that makes sense."""

    since: str | datetime
    """Id of a transcript, which is left out; or a time, and what ended then is in."""
    limit: int


def parse(payload: bytes, most: int) -> Request:
    """The request in `payload`, for at most `most` transcripts. Raises RequestError."""
    if len(payload) > REQUEST_BYTES:
        raise RequestError(f"expected at most {REQUEST_BYTES} bytes, found {len(payload)}")
    try:
        request = json.loads(payload)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise RequestError('expected a JSON object such as {"since": "2026-11-21T08:00:00Z"}')
    if request.keys() - {"since", "since_id", "limit"}:
        raise RequestError("expected no other keys than since, since_id and limit")
    if ("since" in request) == ("since_id" in request):
        raise RequestError("expected one of since and since_id")
    limit = request.get("limit", most)
    if type(limit) is not int or limit < 1:
        raise RequestError("limit: expected a whole number of 1 or more")
    since = _time(request["since"]) if "since" in request else _id(request["since_id"])
    return Request(since, min(limit, most))


def answer(store: Store, node: str, request: Request) -> bytes:
    """The transcripts that were asked for, as far as they fit. Raises PublishError."""
    now = datetime.now(UTC)
    found = store.following(request.since, request.limit + 1)
    shown: list[dict[str, Any]] = []
    room = ANSWER_BYTES
    for stored in found[: request.limit]:
        event = events.transcript(stored, node, now, late=True)
        room -= len(events.encode(event)) + 2
        if room < 0:
            break
        shown.append(event)
    head = {"schema": events.SCHEMA, "node": node, "status": "ok"}
    return events.encode(head | {"transcripts": shown, "more": len(shown) < len(found)})


def refusal(node: str, why: str) -> bytes:
    """The answer to what cannot be answered."""
    return events.encode({"schema": events.SCHEMA, "node": node, "status": "error", "error": why})


def _time(text: object) -> datetime:
    try:
        moment = datetime.fromisoformat(text if isinstance(text, str) else "")
        if moment.tzinfo is None:
            raise ValueError
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise RequestError(
            "since: expected a time with its zone, such as 2026-11-21T08:00:00Z"
        ) from None


def _id(text: object) -> str:
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise RequestError("since_id: expected the id of a transcript, 26 letters and digits")
    return text
