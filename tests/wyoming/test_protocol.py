"""Events as bytes: what the library writes is read, and nothing else."""

import asyncio
import json

import pytest

from appliance.wyoming.protocol import LARGEST, Event, ProtocolError, pack, read_event


def read(packed: bytes) -> Event:
    async def read_all() -> Event:
        reader = asyncio.StreamReader(limit=LARGEST)
        reader.feed_data(packed)
        reader.feed_eof()
        event = await read_event(reader)
        assert not await reader.read()
        return event

    return asyncio.run(read_all())


@pytest.mark.parametrize(
    "event",
    [
        Event("describe"),
        Event("transcript", {"text": "Küche, 居間 \u2028 \n", "language": None}),
        Event("audio-chunk", {"rate": 16000, "width": 2, "channels": 1}, b"\x00\n\xff" * 100),
    ],
)
def test_an_event_is_read_as_it_was_written(event: Event) -> None:
    assert read(pack(event)) == event


def test_data_in_the_header_and_behind_it_are_one() -> None:
    data = b'{"b": 3, "c": 4}'
    header = {"type": "x", "data": {"a": 1, "b": 2}, "data_length": len(data)}
    assert read(json.dumps(header).encode() + b"\n" + data).data == {"a": 1, "b": 3, "c": 4}


def test_half_a_letter_is_replaced_rather_than_an_error() -> None:
    assert read(pack(Event("pong", {"text": "a\ud800b"}))).data == {"text": "a?b"}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"type": 3}',
        b'{"type": "x", "data": []}',
        b'{"type": "x", "data": "text"}',
        b'{"type": "x", "data_length": -1}',
        b'{"type": "x", "data_length": 1.0}',
        b'{"type": "x", "data_length": true}',
        b'{"type": "x", "data_length": "12"}',
        b'{"type": "x", "payload_length": 1000000000}',
        b'{"type": "x", "payload_length": %d}' % (LARGEST + 1),
        b'{"type": "x", "payload_length": %s}' % (b"9" * 5000),
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"\xff\xfe",
        b'{"type": "x"',
    ],
)
def test_what_is_no_header_or_announces_too_much_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^expected "):
        read(line + b"\n")


@pytest.mark.parametrize("data", [b"[]", b"3", b"{", b"[" * 60_000, b"\xff"])
def test_data_that_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^expected data "):
        read(b'{"type": "x", "data_length": %d}\n%b' % (len(data), data))
