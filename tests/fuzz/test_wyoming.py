"""Whatever bytes come over the network: their own connection ends in order, the next is served."""

import logging
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from rigs.fuzzing import damaged, examples, is_one_line
from rigs.waiting import until
from rigs.wyoming import AUDIO_16K, Running, Talk, running

from appliance.wyoming.protocol import Event, pack

NOISE = np.random.default_rng(0).integers(-9000, 9000, 4000, np.int16).tobytes()
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    0.5,
    1e308,
    "",
    "x",
    "\ud800",
    [],
    [[]],
    {},
    {"a": [1]},
)
EVENTS = (
    Event("describe"),
    Event("ping", {"text": "a"}),
    Event("transcribe", {"language": "en", "transcript_names": ["A", "B"]}),
    Event("audio-start", AUDIO_16K),
    Event("audio-start", {"rate": 44_100, "width": 3, "channels": 2}),
    Event("audio-chunk", AUDIO_16K, NOISE),
    Event("audio-chunk", {"rate": 44_100, "width": 3, "channels": 2}, NOISE[:999]),
    Event("audio-stop"),
    Event("select-program", {"name": "x"}),
    Event("run-satellite"),
    Event("error", {"text": "x"}),
)
WHOLE = tuple(pack(one) for one in EVENTS)


def odd_events() -> st.SearchStrategy[bytes]:
    """Right events with a field that is something else."""
    fields = st.sampled_from(["rate", "width", "channels", "text", "timestamp", "language"])
    odd = st.dictionaries(fields, st.sampled_from(ODD), max_size=3)
    return st.tuples(st.sampled_from(EVENTS), odd).map(
        lambda both: pack(Event(both[0].type, {**both[0].data, **both[1]}, both[0].payload))
    )


def talks() -> st.SearchStrategy[bytes]:
    """Events in any order, some of them damaged or odd, or nothing of the kind."""
    one = st.one_of(st.sampled_from(WHOLE), odd_events(), st.sampled_from(WHOLE).flatmap(damaged))
    return st.one_of(st.lists(one, max_size=8).map(b"".join), st.binary(max_size=300))


@pytest.fixture(scope="module")
def house() -> Iterator[Running]:
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with running(idle_s=2.0) as one:
        yield one
    logging.getLogger("asyncio").setLevel(logging.NOTSET)


@given(talks(), st.sampled_from(["end", "cut", "reset"]))
@examples(60)
def test_a_client_may_say_anything(house: Running, said: bytes, end: str) -> None:
    with Talk(house.port) as talk:
        talk.socket.sendall(said)
        if end == "end":
            talk.socket.shutdown(1)
            for event in talk.events():
                if event.type == "error":
                    assert event.data["code"] in ("bad_event", "bad_sound", "busy")
                    assert is_one_line(event.data["text"])
        elif end == "reset":
            talk.socket.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: RST
    with Talk(house.port) as talk:
        talk.send("ping", text="well")
        assert talk.event() == Event("pong", {"text": "well"})


def test_nothing_is_left_of_all_these_connections(
    house: Running, caplog: pytest.LogCaptureFixture
) -> None:
    until(lambda: house.server.requests == 0)
    with Talk(house.port) as talk:
        talk.send("audio-start", **AUDIO_16K)
        talk.send("audio-stop")
        assert talk.text() == ""
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
