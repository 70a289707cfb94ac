"""Commands over MQTT: `mute/set`, `command/expect` and, if enabled, `command/history`.

Nothing in a message is trusted: what is not as expected is refused. Everything runs in
the publisher's thread. A request for the history is JSON,

    {"since_id": "01J...", "limit": 50}   or   {"since": "2026-11-21T08:00:00Z"}

and its answer is {"schema": 1, "node": ..., "status": "ok", "transcripts": [...], "more": false},
the oldest first, with `late` true. If `more` is true, request the rest with the last id.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from appliance.config import HistorySettings
from appliance.errors import StoreError
from appliance.mqtt import events
from appliance.mqtt.client import OutgoingMessage, ReceivedMessage
from appliance.store import Store

log = logging.getLogger("roomscribe.mqtt")

MUTE_SET, COMMANDS = "mute/set", "command/+"
EXPECT, HISTORY = "command/expect", "command/history"
RESPONSE = "response"
"""Topic of the answers; a request may name one below it."""
WARN_EVERY_S = 60.0
"""Least time between two log lines about wrong messages."""
BURST, ANSWERS_PER_S = 20.0, 5.0
"""Requests that are answered at once, and then per second."""
REQUEST_BYTES, EXPECT_BYTES = 1024, 16_384
"""Longest requests."""
MUTING, OPENING = {"on", "1", "true", "mute"}, {"off", "0", "false", "unmute"}
_STATE = re.compile(r'\{\s*"state"\s*:\s*"?(\w+)"?\s*\}')
_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


class CommandRequestError(ValueError):
    """A malformed request; the message says what was expected, never what was found."""


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """A well-formed request for the history."""

    since: str | datetime
    """Id of a transcript (exclusive), or a time (inclusive)."""
    limit: int


def parse_request(payload: bytes, most: int) -> HistoryRequest:
    """Return the request in `payload`, for at most `most` transcripts.

    Raises CommandRequestError.
    """
    request = _parse_object(payload, REQUEST_BYTES, '{"since": "2026-11-21T08:00:00Z"}')
    if request.keys() - {"since", "since_id", "limit"}:
        raise CommandRequestError("expected no other keys than since, since_id and limit")
    if ("since" in request) == ("since_id" in request):
        raise CommandRequestError("expected one of since and since_id")
    limit = request.get("limit", most)
    if type(limit) is not int or limit < 1:
        raise CommandRequestError("limit: expected a whole number of 1 or more")
    since = _parse_time(request["since"]) if "since" in request else _parse_id(request["since_id"])
    return HistoryRequest(since, min(limit, most))


def answer_request(store: Store, node: str, request: HistoryRequest) -> bytes:
    """Return the requested transcripts, as many as fit. Raises StoreError."""
    found = store.read_since(request.since, request.limit + 1)
    preview, more = events.fit_transcripts(found, node, request.limit, datetime.now(UTC))
    head = {"schema": events.SCHEMA, "node": node, "status": "ok"}
    return events.encode(head | {"transcripts": preview, "more": more})


def encode_refusal(node: str, why: str) -> bytes:
    """Return the answer to a refused request."""
    return events.encode({"schema": events.SCHEMA, "node": node, "status": "error", "error": why})


def _parse_object(payload: bytes, most_bytes: int, example: str) -> dict[str, Any]:
    """Return the JSON object in `payload`. Raises CommandRequestError."""
    if len(payload) > most_bytes:
        raise CommandRequestError(f"expected at most {most_bytes} bytes, found {len(payload)}")
    try:
        request = json.loads(payload)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise CommandRequestError(f"expected a JSON object such as {example}")
    return request


def _parse_time(text: object) -> datetime:
    try:
        return events.parse_time(text)
    except ValueError as error:
        raise CommandRequestError(f"since: {error}") from None


def _parse_id(text: object) -> str:
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise CommandRequestError(
            "since_id: expected the id of a transcript, 26 letters and digits"
        )
    return text


class Expect(Protocol):
    """Expects sentences for a while."""

    def __call__(
        self, request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], object]
    ) -> None:
        """`answer` is called once, by any thread. Raises ValueError for a wrong request."""


class MuteSwitch(Protocol):
    """Mutes and unmutes the microphone."""

    def set(self, on: bool, who: str = "", end: str = "") -> None:
        """Switch it; `who` names the requester, `end` when a mute ends by itself.

        Raises ValueError for a wrong end.
        """


def subscriptions(
    settings: HistorySettings,
    node: str,
    store: Store,
    mute: MuteSwitch,
    *,
    expect: Expect | None = None,
    send: Callable[[OutgoingMessage], object] = lambda _: None,
    burst: float = BURST,
    answers_per_s: float = ANSWERS_PER_S,
) -> Mapping[str, Callable[[ReceivedMessage], OutgoingMessage | None]]:
    """Return the topics of the node to subscribe to, with their handlers.

    `send` publishes a late answer; any thread may call it.
    """
    warn = LimitedWarnings()
    requests = Requests(node, warn, burst, answers_per_s)
    if expect:
        requests.handlers[EXPECT] = partial(_begin_to_expect, node, expect, send)
    if settings.enabled:
        requests.handlers[HISTORY] = lambda message, _: answer_request(
            store, node, parse_request(message.payload, settings.limit)
        )
    # one subscription for both, because two would receive a message twice
    both = {COMMANDS if settings.enabled else EXPECT: requests} if requests.handlers else {}
    return {MUTE_SET: partial(_turn_mute, mute, warn), **both}


def _turn_mute(mute: MuteSwitch, warn: LimitedWarnings, message: ReceivedMessage) -> None:
    """Mute, or open the microphone again, unless the message is retained. With a wrong end, mute
    without one: a command for silence is obeyed. Raises CommandRequestError."""
    if warn.refuse_retained(message):
        return
    text = message.payload.decode("utf-8", "replace").strip().casefold()
    if found := _STATE.fullmatch(text):
        text = found[1]
    word, _, end = text.partition(" ")
    on = word in MUTING
    expected = "expected ON, OFF, ON tomorrow, or ON and 1m to 168h such as ON 30m"
    if not on and (word not in OPENING or end):
        raise CommandRequestError(expected)
    try:
        mute.set(on, "MQTT", end.strip())
    except ValueError:
        mute.set(on, "MQTT", "")
        raise CommandRequestError(f"muted without an end: {expected}") from None


def _begin_to_expect(
    node: str,
    expect: Expect,
    send: Callable[[OutgoingMessage], object],
    message: ReceivedMessage,
    topic: str,
) -> None:
    """Expect sentences; the answer follows when somebody has spoken, or when time is up. Raises
    ValueError."""

    def answer(result: Mapping[str, Any]) -> None:
        head = {"schema": events.SCHEMA, "node": node, "status": "ok"}
        payload = events.encode(head | dict(result))
        send(OutgoingMessage(topic, payload, correlation=message.correlation))

    expect(_parse_object(message.payload, EXPECT_BYTES, '{"sentences": ["yes", "no"]}'), answer)


class LimitedWarnings:
    """Logs wrong messages, at most one every WARN_EVERY_S, and how many were left out."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._left_out = 0

    def __call__(self, message: ReceivedMessage, text: str) -> None:
        """Log one line, or count it as left out."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            self._left_out += 1
            return
        more = f" (and {self._left_out} more like it)" if self._left_out else ""
        log.warning("%s: %s%s", message.topic, text, more)
        self._next_s, self._left_out = now_s + WARN_EVERY_S, 0

    def refuse_retained(self, message: ReceivedMessage) -> bool:
        """Return True, and warn, if a command was retained at the broker."""
        if message.retained:
            self(message, "ignored a retained command; send it without retain")
        return message.retained


def default_response_topic(message: ReceivedMessage) -> str:
    """Return the topic for the answer to a message that names none."""
    return f"{message.topic.rpartition('/command/')[0]}/{RESPONSE}"


def choose_response_topic(message: ReceivedMessage) -> str:
    """Return the topic for the answer to a message. Raises CommandRequestError."""
    default = default_response_topic(message)
    topic = message.response_topic or default
    if not re.fullmatch(rf"{re.escape(default)}(/[A-Za-z0-9_-]{{1,64}}){{0,3}}", topic):
        raise CommandRequestError(f"expected a response topic below {default}")
    return topic


class Requests:
    """Handles `command/...`: answers requests, with the correlation data of MQTT 5."""

    def __init__(
        self, node: str, warn: LimitedWarnings, burst: float, answers_per_s: float
    ) -> None:
        self._node, self._warn = node, warn
        self.handlers: dict[str, Callable[[ReceivedMessage, str], bytes | None]] = {}
        """By command. They get the message and the topic of the answer, and return the answer, or
        None if it follows. They raise ValueError for what they refuse, and StoreError."""
        self._burst, self._answers_per_s = burst, answers_per_s
        self._allowed, self._counted_s = burst, time.monotonic()

    def __call__(self, message: ReceivedMessage) -> OutgoingMessage | None:
        """Return the answer; None for a retained request, and for too many requests."""
        if self._warn.refuse_retained(message):
            return None
        if not self._may_answer(time.monotonic()):
            self._warn(message, f"more than {self._answers_per_s:g} requests in a second")
            return None
        topic = default_response_topic(message)
        try:
            topic = choose_response_topic(message)
            handle = self.handlers.get(f"command/{message.topic.rpartition('/command/')[2]}")
            if handle is None:
                raise CommandRequestError(f"unknown command; expected {' or '.join(self.handlers)}")
            payload = handle(message, topic)
        except ValueError as error:
            self._warn(message, str(error))
            payload = encode_refusal(self._node, str(error))
        except StoreError as error:
            self._warn(message, str(error))
            payload = encode_refusal(self._node, "the log cannot be read now")
        if payload is None:
            return None
        return OutgoingMessage(topic, payload, correlation=message.correlation)

    def _may_answer(self, now_s: float) -> bool:
        """Use up one of the answers that are allowed now; return False without one."""
        earned = (now_s - self._counted_s) * self._answers_per_s
        self._allowed, self._counted_s = min(self._burst, self._allowed + earned), now_s
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True
