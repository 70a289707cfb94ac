"""Rooms on a real Mosquitto: who acts, what is published, and what the log knows afterwards."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from rigs.broker import Broker
from rigs.checkout import ROOT
from rigs.mqtt_client import Subscriber
from rigs.needs import module, needs_broker
from rigs.rooms import RealRoom
from rigs.waiting import holds, until

from appliance.house import arbiter
from appliance.house.arbiter import Decision
from appliance.house.claims import Claim, Saying
from appliance.house.house import MOST_MESSAGES, House
from appliance.house.messages import encode

jsonschema = module("jsonschema")

SENTENCE = "computer turn on the light"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def claims(heard: Subscriber) -> list[dict[str, object]]:
    return [
        json.loads(message.payload)
        for message in list(heard.messages)
        if message.topic.endswith("/claim")
    ]


def acts(heard: Subscriber, *nodes: str) -> list[dict[str, object]]:
    return [json.loads(payload) for node in nodes for payload in heard.payloads("act", node)]


@needs_broker
def test_alone_a_room_acts_at_once_and_publishes_what_it_always_did(
    tmp_path: Path, broker: Broker
) -> None:
    with Subscriber(broker.port) as heard, RealRoom("kitchen", tmp_path, broker.port) as kitchen:
        until(lambda: heard.payloads("state"))
        kitchen.end(kitchen.begin(), SENTENCE)
        assert len(kitchen.assist.actions) == 1
        until(heard.events)
        assert "arbitrated" not in heard.events()[0]
        assert not holds(lambda: claims(heard) or acts(heard, "kitchen"), 0.3)


@needs_broker
def test_of_two_rooms_the_one_that_heard_better_acts_and_both_logs_know(
    tmp_path: Path,
    broker: Broker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arbiter, "DECIDE_S", 3.0)  # a busy machine delays one of the two claims
    monkeypatch.setattr(arbiter, "TAKE_OVER_S", 3.0)
    caplog.set_level(logging.INFO, "roomscribe.house")
    with (
        Subscriber(broker.port) as heard,
        RealRoom("kitchen", tmp_path / "kitchen", broker.port) as kitchen,
        RealRoom("hall", tmp_path / "hall", broker.port) as hall,
    ):
        until(lambda: kitchen.house.rooms == ("hall",) and hall.house.rooms == ("kitchen",))
        begun = [(room, room.begin()) for room in (kitchen, hall)]
        until(lambda: len(claims(heard)) == 2)
        end_s = time.monotonic()
        ends = [
            room.end(
                utterance, SENTENCE, ago_s=time.monotonic() - end_s, report=False,
                level_dbfs=-30.0 if room is hall else -45.0,
            )
            for room, utterance in begun
        ]  # fmt: skip
        for (room, _), spoken in zip(begun, ends, strict=True):
            room.report(spoken)
        until(lambda: hall.assist.actions and acts(heard, "hall"))
        until(lambda: kitchen.heard_in and hall.heard_in)
        assert not holds(lambda: kitchen.assist.actions or acts(heard, "kitchen"), 0.3)
        (act,) = acts(heard, "hall")
        published = {
            node: json.loads(heard.payloads("transcript", node)[0]) for node in ("hall", "kitchen")
        }
        assert act["id"] == published["hall"]["id"]
        assert act["heard_also"] == ["kitchen"]
        assert [one["arbitrated"] for one in published.values()] == [True, True]
        (better,) = hall.store.query()
        (worse,) = kitchen.store.query()
        assert better.transcript.heard_also == ("kitchen",)
        assert worse.transcript.heard_better_by == "hall"
        kinds = [(one["node"], one["kind"]) for one in claims(heard)]
        assert next(kind for kind in kinds if kind[1] == "act") == ("hall", "act")
        assert len(kinds) == len({*kinds}), "each room publishes each kind once"
        sizes = [len(json.dumps(claim, separators=(",", ":"))) for claim in claims(heard)]
        assert max(sizes) < 250
        check(claims(heard), acts(heard, "hall"))
    found = [one.getMessage() for one in caplog.records]
    assert sum("other rooms are online" in one for one in found) == 2


def check(claimed: list[dict[str, object]], acted: list[dict[str, object]]) -> None:
    """Every message is as its schema says."""
    folder = ROOT / "config" / "schemas"
    for name, messages in (("house-claim", claimed), ("act", acted)):
        schema = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for one in messages:
            jsonschema.Draft202012Validator(schema).validate(one)
            assert set(one) <= set(schema["properties"])


@needs_broker
def test_a_muted_room_neither_claims_nor_acts(tmp_path: Path, broker: Broker) -> None:
    with (
        Subscriber(broker.port) as heard,
        RealRoom("kitchen", tmp_path / "kitchen", broker.port) as kitchen,
        RealRoom("hall", tmp_path / "hall", broker.port) as hall,
    ):
        until(lambda: kitchen.house.rooms and hall.house.rooms)
        begun = [(room, room.begin()) for room in (kitchen, hall)]
        kitchen.muted = True
        for room, utterance in begun:
            room.end(utterance, SENTENCE, level_dbfs=-20.0 if room is kitchen else -50.0)
        until(lambda: hall.assist.actions)
        assert not holds(lambda: kitchen.assist.actions, 0.3)
        assert {one["node"] for one in claims(heard) if one["kind"] != "hearing"} >= {"hall"}
        assert not [one for one in claims(heard) if one["node"] == "kitchen" and "id" in one]


def test_a_room_whose_sentences_another_takes_for_an_hour_says_so() -> None:
    complaints = list[str | None]()
    house = House("kitchen", complain=complaints.append)

    def decide(node: str, now_s: float) -> str | None:
        here = node == "kitchen"
        house._watch(Decision("x", here, node, (), arbiter.Separation.NONE, 0.1), now_s)
        return complaints[-1]

    assert [decide("bath", minute * 60.0) for minute in (0, 10, 20, 59)] == [None] * 4
    assert "bath has acted on all 5 sentences of this room for 1 h" in str(decide("bath", 3600.0))
    assert decide("kitchen", 3660.0) is None
    assert decide("bath", 9000.0) is None
    assert decide("hall", 9001.0) is None
    assert [decide("hall", 20_000.0 + count) is None for count in range(4)] == [True] * 3 + [False]


@needs_broker
def test_without_the_broker_each_room_acts_and_says_so(
    tmp_path: Path, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        RealRoom("kitchen", tmp_path / "kitchen", broker.port) as kitchen,
        RealRoom("hall", tmp_path / "hall", broker.port) as hall,
    ):
        until(lambda: kitchen.house.rooms and hall.house.rooms)
        broker.signal(
            signal.SIGKILL
        )  # one that ends in order may say first that the hall is offline
        until(lambda: "kitchen" if not kitchen.publisher.status().connected else "")
        kitchen.end(kitchen.begin(), SENTENCE)
        until(lambda: kitchen.assist.actions)
    assert "acts without asking hall: no connection to the broker" in caplog.text


def test_who_is_not_online_speaks_for_another_or_sends_too_much_is_not_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sayings, counted = list[tuple[str, float]](), list[object]()
    house = House("kitchen", note=lambda *saying: sayings.append(saying))
    monkeypatch.setattr(house._arbiter, "receive", lambda message, _: counted.append(message))

    def claim(node: str, topic: str = "") -> None:
        found = Claim(node, "WXJ7R2Q900", "1QK3T8N2E6", 0.0, 1.0, 1, 0.0)
        topic = topic or f"roomscribe/{node}/claim"
        assert house.take(topic, encode(found, 1.0), retained=False, now_s=2.0)

    claim("ghost")
    for node in ("hall", "bath"):
        topic = f"roomscribe/{node}/availability"
        house.take(topic, b"online", retained=True, now_s=1.0)
    claim("hall", "roomscribe/bath/claim")
    claim("kitchen", "roomscribe/bath/claim")
    assert counted == []
    saying = encode(Saying("hall", "Turned on the fan.", 3.0), 1.0)
    assert house.take("roomscribe/hall/claim", saying, retained=False, now_s=2.0)
    assert counted == []
    ((text, until_s),) = sayings
    assert text == "Turned on the fan."
    assert until_s == pytest.approx(4.0)
    for _ in range(2 * MOST_MESSAGES):
        claim("hall")
    assert len(counted) == MOST_MESSAGES - 1


@needs_broker
def test_rooms_with_another_prefix_are_another_home_and_take_its_commands(
    tmp_path: Path, broker: Broker
) -> None:
    home = partial(RealRoom, prefix="homes/2")
    with (
        Subscriber(broker.port, topics=("homes/#",)) as heard,
        home("kitchen", tmp_path / "kitchen", broker.port) as kitchen,
        home("hall", tmp_path / "hall", broker.port) as hall,
        RealRoom("bath", tmp_path / "bath", broker.port) as stranger,
    ):
        until(lambda: kitchen.house.rooms == ("hall",) and hall.house.rooms == ("kitchen",))
        assert stranger.house.rooms == ()
        kitchen.end(kitchen.begin(), SENTENCE)
        until(lambda: "homes/2/kitchen/act" in {one.topic for one in list(heard.messages)})
        heard.publish("homes/2/kitchen/command/expect", b"[]")
        until(lambda: any(one.topic == "homes/2/kitchen/response" for one in list(heard.messages)))
        heard.publish("homes/2/kitchen/mute/set", b"ON")
        until(lambda: kitchen.muted)
