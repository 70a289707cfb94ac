"""The messages of the topics `roomscribe/<node>/claim`, as JSON, and the clocks of their times.

Times are milliseconds before `sent`, which is on the sender's monotonic clock. Nothing in a message
is trusted: whatever is not exactly as expected is ignored.
"""

import base64
import json
import math
import re
from collections import deque
from dataclasses import replace
from typing import Any

from appliance.house.claims import Act, Claim, Hearing, Message, Saying, Withdrawal
from appliance.house.sketch import LONGEST_STEPS

SCHEMA = 1
LONGEST = 1024
"""Bytes of a message."""
LONGEST_MS = 120_000
"""Speech that began longer ago is no sentence."""
MOST_OVER = 16
MOST_LETTERS = 280
"""Of what a loudspeaker says; the rest is not sent."""
ID_LETTERS = 10
"""Letters at the end of a ULID that are sent: 50 random bits."""
KEPT_DIFFERENCES = 32
"""Messages of each room whose differences are kept."""
RESTARTED_S = 20.0
"""A message that seems to be delayed by more than this comes from a clock that began again."""
_NODE = re.compile(r"[a-z0-9_]{1,64}")
_SAYING = re.compile(r"[^\0]{1,280}")
_ID = re.compile(r"[0-9A-Z]{10}")


def short_id(ulid: str) -> str:
    """Return the part of an id that is sent."""
    return ulid[-ID_LETTERS:]


def encode(message: Message, now_s: float) -> bytes:
    """Return a message of this room, sent now."""
    fields: dict[str, Any] = {"schema": SCHEMA, "kind": type(message).__name__.lower()}
    fields |= {"node": message.node, "sent": round(now_s * 1000)}
    match message:
        case Hearing(_, utterance, start_s):
            fields |= {"utterance": utterance, "start_ms": _ago_ms(start_s, now_s)}
        case Withdrawal(_, utterance):
            fields["utterance"] = utterance
        case Saying(_, text, until_s):
            fields["text"] = text[:MOST_LETTERS]
            fields["for_ms"] = max(0, round((until_s - now_s) * 1000))
        case Claim():
            fields |= _claim_fields(message, now_s)
            if not message.last:
                fields["last"] = False
        case Act(claim, over):
            fields |= _claim_fields(claim, now_s) | {"over": list(over[:MOST_OVER])}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decode(payload: bytes) -> tuple[Message, float] | None:
    """Return a message and when it was sent, both on the sender's clock; None if it is not one."""
    if len(payload) > LONGEST:
        return None
    try:
        fields = json.loads(payload)
        if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
            return None
        sent_s = _number(fields, "sent", 0, 1e15) / 1000
        return _decode(fields, sent_s), sent_s
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _decode(fields: dict[str, Any], sent_s: float) -> Message:
    node = _text(fields, "node", _NODE)
    if fields["kind"] == "saying":
        until_s = sent_s + _number(fields, "for_ms", 0, LONGEST_MS) / 1000
        return Saying(node, _text(fields, "text", _SAYING), until_s)
    utterance = _text(fields, "utterance", _ID)
    match fields["kind"]:
        case "hearing":
            return Hearing(node, utterance, _moment_s(fields, "start_ms", sent_s))
        case "withdrawal":
            return Withdrawal(node, utterance)
        case "claim":
            return _decode_claim(fields, node, utterance, sent_s)
        case "act":
            over = fields["over"]
            if not isinstance(over, list) or len(over) > MOST_OVER:
                raise ValueError
            ids = tuple(_text({"id": one}, "id", _ID) for one in over)
            return Act(_decode_claim(fields, node, utterance, sent_s), ids)
    raise ValueError


def _decode_claim(fields: dict[str, Any], node: str, utterance: str, sent_s: float) -> Claim:
    sketch = fields.get("sketch", "")
    if not isinstance(sketch, str) or len(sketch) > LONGEST_STEPS:
        raise ValueError
    packed = base64.b64decode(sketch, validate=True)  # binascii.Error is a ValueError
    return Claim(
        node,
        _text(fields, "id", _ID),
        utterance,
        _moment_s(fields, "start_ms", sent_s),
        _moment_s(fields, "end_ms", sent_s),
        int(_number(fields, "grade", 0, 2)),
        _number(fields, "score", -1000, 1000),
        bytes(step for byte in packed for step in (byte >> 4, byte & 15)),
        fields.get("last") is not False,
    )


def _claim_fields(claim: Claim, now_s: float) -> dict[str, Any]:
    sketch = {"sketch": base64.b64encode(_pack(claim.sketch)).decode()} if claim.sketch else {}
    return sketch | {
        "id": claim.id,
        "utterance": claim.utterance,
        "start_ms": _ago_ms(claim.start_s, now_s),
        "end_ms": _ago_ms(claim.end_s, now_s),
        "grade": claim.grade,
        "score": claim.score,
    }


def _ago_ms(moment_s: float, now_s: float) -> int:
    return min(LONGEST_MS, max(0, round((now_s - moment_s) * 1000)))


def _moment_s(fields: dict[str, Any], name: str, sent_s: float) -> float:
    return sent_s - _number(fields, name, 0, LONGEST_MS) / 1000


def _number(fields: dict[str, Any], name: str, least: float, most: float) -> float:
    found = fields[name]
    if type(found) not in (int, float) or not math.isfinite(found) or not least <= found <= most:
        raise ValueError
    return float(found)


def _text(fields: dict[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    found = fields[name]
    if not isinstance(found, str) or not pattern.fullmatch(found):
        raise ValueError
    return found


def _pack(steps: bytes) -> bytes:
    """Return steps of 0 to 15, two in a byte; an odd first one gets a neighbour like itself."""
    even = steps if len(steps) % 2 == 0 else steps[:1] + steps
    return bytes(high << 4 | low for high, low in zip(even[::2], even[1::2], strict=True))


class ClockOffsets:
    """Offsets of the other rooms' monotonic clocks. One thread.

    Each message carries the time of its sending on its sender's monotonic clock, which no
    correction of the wall clock changes. The difference from its arrival is the clocks' offset plus
    the message's delay. The smallest difference of the last messages has the least delay, so times
    of a delayed message are right, too.
    """

    def __init__(self) -> None:
        self._differences_s: dict[str, deque[float]] = {}

    def observe(self, node: str, sent_s: float, now_s: float) -> float:
        """Note a message that was sent at `sent_s` by the clock of `node` and arrives `now_s`.

        Return how much to add to times on that clock.
        """
        kept = self._differences_s.setdefault(node, deque(maxlen=KEPT_DIFFERENCES))
        difference_s = now_s - sent_s
        if kept and difference_s - min(kept) > RESTARTED_S:
            kept.clear()
        kept.append(difference_s)
        return min(kept)


def shift(message: Message, offset_s: float) -> Message:
    """Return a message with `offset_s` added to its times."""
    if isinstance(message, Act):
        claim = shift(message.claim, offset_s)
        return replace(message, claim=claim) if isinstance(claim, Claim) else message
    times = {name: getattr(message, name, None) for name in ("start_s", "end_s", "until_s")}
    moved = {name: time_s + offset_s for name, time_s in times.items() if time_s is not None}
    return replace(message, **moved)
