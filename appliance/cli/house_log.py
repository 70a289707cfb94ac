"""`roomscribe log --house`: the transcripts of all rooms on one broker, in order."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from appliance.config import Settings, node_name
from appliance.errors import BrokerError

if TYPE_CHECKING:
    from appliance.mqtt import BrokerProbe
    from appliance.store import Wanted

SETTLE_S = 0.5
"""Wait for the retained messages that say which rooms are online."""
ANSWER_S = 3.0
"""Longest wait for the next answer of a room."""
DEFAULT_AGE = timedelta(days=1)
"""Without --since, the other rooms are asked for this much."""


@dataclass
class Room:
    """What another room has answered."""

    events: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False
    refusal: str = ""


def read_house(settings: Settings, wanted: Wanted) -> list[dict[str, Any]]:
    """Return the transcripts of the other rooms that are online, as their `transcript` events.

    Rooms that do not answer are reported on standard error. Raises BrokerError.
    """
    from appliance.mqtt import BrokerProbe

    own = node_name(settings)
    with BrokerProbe(settings.mqtt, own) as probe:
        if denied := probe.subscribe(["roomscribe/+/availability", "roomscribe/+/response/#"]):
            raise BrokerError(
                f"the broker does not allow reading {', '.join(denied)}; allow it in its access "
                "list"
            )
        online = {
            message.topic.split("/")[1]
            for message in probe.receive(SETTLE_S)
            if message.topic.endswith("/availability") and message.payload == b"online"
        }
        rooms = {node: Room() for node in sorted(online - {own})}
        if not rooms:
            print("roomscribe: No other room is online at the broker.", file=sys.stderr)
        _ask(probe, rooms, wanted.since or datetime.now(UTC) - DEFAULT_AGE)
    for node, room in rooms.items():
        if not room.complete:
            why = room.refusal or "no answer. Set history.enabled = true there"
            print(f"roomscribe: {node}: {why}.", file=sys.stderr)
    return [event for room in rooms.values() for event in room.events if _matches(event, wanted)]


def _ask(probe: BrokerProbe, rooms: dict[str, Room], since: datetime) -> None:
    """Request the transcripts of each room, page after page. Raises BrokerError."""
    for node in rooms:
        _request(probe, node, {"since": since.isoformat()})
    deadline_s = time.monotonic() + ANSWER_S
    while (left_s := deadline_s - time.monotonic()) > 0 and not probe.ended:
        if all(room.complete or room.refusal for room in rooms.values()):
            return
        for message in probe.receive(left_s, count=1):
            node = message.topic.split("/")[1]
            room, answer = rooms.get(node), _parse(message.payload)
            if room is None or "/response" not in message.topic or not answer:
                continue
            if answer.get("status") != "ok":
                room.refusal = str(answer.get("error", "refused"))[:200]
                continue
            found = [one for one in answer.get("transcripts", ()) if isinstance(one, dict)]
            room.events += found
            room.complete = not (answer.get("more") and found)
            if not room.complete:
                _request(probe, node, {"since_id": found[-1].get("id")})
            deadline_s = time.monotonic() + ANSWER_S


def _request(probe: BrokerProbe, node: str, request: dict[str, Any]) -> None:
    if probe.publish(f"roomscribe/{node}/command/history", json.dumps(request).encode()):
        raise BrokerError(
            f"the broker does not allow writing to roomscribe/{node}/command/history; allow it in "
            "its access list"
        )


def _parse(payload: bytes) -> dict[str, Any]:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _matches(event: dict[str, Any], wanted: Wanted) -> bool:
    """Return True for a readable event that is wanted."""
    try:
        end = datetime.fromisoformat(event["end"])
        text = str(event["text"]).casefold()
        str(event["node"]), datetime.fromisoformat(event["start"])
    except (KeyError, TypeError, ValueError):
        return False
    is_early = wanted.until is None or end < wanted.until
    return is_early and all(one.casefold() in text for one in wanted.grep)


def merge(
    own: list[dict[str, Any]], others: list[dict[str, Any]], limit: int
) -> Iterator[dict[str, Any]]:
    """Yield the newest `limit` (0: all) of all rooms' events, the oldest first."""
    events = sorted([*own, *others], key=lambda event: str(event["end"]))
    yield from events[-limit:] if limit else events
