"""Messages to other rooms come out as they went in, and nothing else is one."""

import json
from dataclasses import replace

import pytest

from appliance.house.claims import Act, Claim, Hearing, Message, Saying, Withdrawal
from appliance.house.messages import decode, encode, shift
from appliance.house.sketch import LONGEST_STEPS

SKETCH = bytes(at % 16 for at in range(LONGEST_STEPS))
CLAIM = Claim("kitchen", "0123456789", "ABCDEFGHJK", 97.5, 99.25, 2, -1.234, SKETCH)
PLAIN = Claim("kitchen", "0123456789", "ABCDEFGHJK", 97.5, 99.25, 1, 2.0, b"", False)


@pytest.mark.parametrize(
    "message",
    [
        Hearing("kitchen", "ABCDEFGHJK", 99.9),
        Saying("kitchen", "Die Tür ist zu.", 101.5),
        Withdrawal("kitchen", "ABCDEFGHJK"),
        CLAIM,
        PLAIN,
        Act(CLAIM, ("ZZZZZZZZZZ",)),
        Act(replace(PLAIN, last=True)),
    ],
    ids=[
        "hearing",
        "saying",
        "withdrawal",
        "claim",
        "claim of a part",
        "act without a claim",
        "act",
    ],
)
def test_a_message_is_read_as_it_was_written(message: Message | Saying) -> None:
    assert decode(encode(message, 100.0)) == (message, 100.0)


def test_the_messages_of_a_sentence_have_at_most_650_bytes_with_their_topics() -> None:
    """Of a node with a name of 12 letters, in a house of three rooms; MQTT adds 5 bytes to each."""
    node = "living_rooms"
    claim = Claim(node, CLAIM.id, CLAIM.utterance, 80.0, 99.25, 2, -12.345, SKETCH)
    sent_s = 10_000_000.123
    messages = [
        Hearing(node, CLAIM.utterance, 9_999_999.9),
        shift(claim, sent_s - 100),
        shift(Act(replace(claim, sketch=b""), ("A" * 10, "B" * 10)), sent_s - 100),
    ]
    sizes = [len(encode(one, sent_s)) + len(f"roomscribe/{node}/claim") + 5 for one in messages]
    assert sum(sizes) <= 650, sizes


FIELDS = json.loads(encode(CLAIM, 100.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"kind": "other"},
        {"node": "Kitchen!"},
        {"node": None},
        {"sent": "1"},
        {"sent": float("nan")},
        {"sent": True},
        {"start_ms": -1},
        {"end_ms": 1e9},
        {"score": float("inf")},
        {"grade": 3},
        {"id": "short"},
        {"sketch": "***"},
        {"sketch": "A" * 60},
        {"kind": "act", "over": "x"},
        {"kind": "act", "over": [1]},
        {"kind": "act", "over": ["A" * 10] * 17},
    ],
    ids=str,
)
def test_what_is_not_as_expected_is_no_message(changes: dict[str, object]) -> None:
    assert decode(json.dumps(FIELDS).encode()) is not None
    assert decode(json.dumps(FIELDS | changes).encode()) is None


@pytest.mark.parametrize("payload", [b"", b"[]", b"{", b"\xff", b"[" * 900, b" " * 2000, b"{}"])
def test_what_is_no_json_object_is_no_message(payload: bytes) -> None:
    assert decode(payload) is None
