"""Commands over MQTT: `mute/set` and `command/expect`.

Nothing in a message is trusted: what is not as expected is refused. Everything runs in the
publisher's thread.
"""

import json
import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from appliance.mqtt import events
from appliance.mqtt.client import ReceivedMessage
from appliance.records import OutgoingMessage
from appliance.system import json_object

MUTE_SET, EXPECT, RESPONSE = "mute/set", "command/expect", "response"
"""RESPONSE is the topic of the answers; a request may name one below it."""
BURST, BURST_S = 20, 4.0
"""Most requests that are answered within this time; the others are dropped."""
EXPECT_BYTES = 16_384
"""Longest request."""
WORK_S, WORK_SHARE = 0.1, 0.1
"""Processor time for requests at once, and the share of the time that is added to it: while it is
used up, requests are dropped, too."""
MUTING = {"on", "1", "1.0", "true", "yes", "mute", "muted"}
OPENING = {"off", "0", "0.0", "false", "no", "unmute", "unmuted"}
STATE_KEYS = ("state", "mute", "muted", "value")
"""Keys of a JSON object that say whether to mute, the first one counts."""


class CommandRequestError(ValueError):
    """A malformed request; the message says what was expected, never what was found."""


Expect = Callable[[Mapping[str, Any], Callable[[Mapping[str, Any]], object]], object]
"""Takes a request to expect sentences for a while, and what is called once, by any thread, with the
result. Raises ValueError for a wrong request."""


SetMute = Callable[[bool, str, str], object]
"""Mutes or unmutes the microphone; gets who requests it, and when a mute ends by itself ("":
never). Raises ValueError for a wrong end."""
Subscription = Callable[[ReceivedMessage], OutgoingMessage | None]
"""Handles a message on a topic and returns the answer to publish."""


def subscriptions(
    node: str, set_mute: SetMute, expect: Expect, send: Callable[[OutgoingMessage], object]
) -> Mapping[str, Subscription]:
    """Return the topics of the node to subscribe to, with their handlers.

    `send` publishes a late answer; any thread may call it.
    """
    return {MUTE_SET: partial(_turn_mute, set_mute), EXPECT: ExpectRequests(node, expect, send)}


def _turn_mute(set_mute: SetMute, message: ReceivedMessage) -> None:
    """Mute, or open the microphone again. With a wrong end, mute without one: a command for silence
    is obeyed. Raises CommandRequestError."""
    text = _state(message.payload.decode("utf-8", "replace").casefold()).strip()
    word, _, end = text.partition(" ")
    on = word in MUTING
    expected = "expected ON, OFF, ON tomorrow, or ON and 1m to 168h such as ON 30m"
    if not on and (word not in OPENING or end):
        raise CommandRequestError(expected)
    try:
        set_mute(on, "MQTT", end.strip())
    except ValueError:
        set_mute(on, "MQTT", "")
        raise CommandRequestError(f"muted without an end: {expected}") from None


def _state(text: str) -> str:
    """Return what a text in small letters says: itself, or if it is JSON its value, of an object
    the value of the first of STATE_KEYS."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(found, dict):
        found = next((found[key] for key in STATE_KEYS if key in found), "")
    return str(found).casefold()


class ExpectRequests:
    """Handles `command/expect`. The answer has the request's correlation data (MQTT 5). It comes
    after the next sentence or when time is up; at once if the request is wrong."""

    def __init__(
        self, node: str, expect: Expect, send: Callable[[OutgoingMessage], object]
    ) -> None:
        self._node, self._expect, self._send = node, expect, send
        self._answered_s = deque[float](maxlen=BURST)
        self._worked_s, self._seen_s = 0.0, -math.inf
        """Processor time for requests that WORK_SHARE has not made up for, and when it was so."""

    def __call__(self, message: ReceivedMessage) -> OutgoingMessage | None:
        """Return the answer to a wrong request; None if it follows, and for too many requests."""
        now_s = time.monotonic()
        self._worked_s = max(0.0, self._worked_s - WORK_SHARE * (now_s - self._seen_s))
        self._seen_s = now_s
        crowded = len(self._answered_s) == BURST and now_s - self._answered_s[0] < BURST_S
        if crowded or self._worked_s > WORK_S:
            return None
        self._answered_s.append(now_s)
        begun_s = time.thread_time()
        try:
            return self._answer(message)
        finally:
            self._worked_s += time.thread_time() - begun_s

    def _answer(self, message: ReceivedMessage) -> OutgoingMessage | None:
        topic = default = f"{message.topic.removesuffix(EXPECT)}{RESPONSE}"

        def answer(result: Mapping[str, Any]) -> OutgoingMessage:
            payload = events.encode({"schema": events.SCHEMA, "node": self._node, **result})
            return OutgoingMessage(topic, payload, correlation=message.correlation)

        try:
            topic = _response_topic(message, default)
            self._expect(
                _parse_object(message.payload),
                lambda result: self._send(answer({"status": "ok", **result})),
            )
        except ValueError as error:
            return answer({"status": "error", "error": str(error)})
        return None


def _response_topic(message: ReceivedMessage, default: str) -> str:
    """Return the topic for the answer to a message. Raises CommandRequestError."""
    topic = message.response_topic or default
    if not re.fullmatch(rf"{re.escape(default)}(/[A-Za-z0-9_-]{{1,64}}){{0,3}}", topic):
        raise CommandRequestError(f"expected a response topic below {default}")
    return topic


def _parse_object(payload: bytes) -> dict[str, Any]:
    """Return the JSON object in `payload`. Raises CommandRequestError."""
    if len(payload) > EXPECT_BYTES:
        raise CommandRequestError(f"expected at most {EXPECT_BYTES} bytes, found {len(payload)}")
    request = json_object(payload)
    if request is None:
        raise CommandRequestError('expected a JSON object such as {"sentences": ["yes", "no"]}')
    return request
