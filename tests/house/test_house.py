"""Rooms that exchange messages: who acts, what is published, and what the log is told."""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rigs.checkout import ROOT
from rigs.needs import module
from rigs.publishing import transcript

from appliance.house import arbiter
from appliance.house.arbiter import Decision
from appliance.house.claims import Claim, Saying
from appliance.house.house import MOST_MESSAGES, House
from appliance.house.messages import encode
from appliance.mqtt import events
from appliance.records import HeardIn, OutgoingMessage, Transcript, new_id
from appliance.store.tables import StoredTranscript

jsonschema = module("jsonschema")

SENTENCE = "computer turn on the light"


class Room:
    """A room that counts what it does; its own Assist takes what begins with "computer"."""

    def __init__(self, node: str, prefix: str = "roomscribe") -> None:
        self.node, self.muted = node, False
        self.heard_in: list[HeardIn] = []
        self.actions: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.house = House(
            node, prefix=prefix, report=self.heard_in.append, muted=lambda: self.muted,
            assistant=self,
        )  # fmt: skip

    def find_command(self, transcript: Transcript) -> str:
        return transcript.text.removeprefix("computer ")

    def hand_over(self, _transcript: Transcript, text: str) -> None:
        self.actions.append(text)

    def reports(self, utterance: str, level_dbfs: float) -> None:
        """The text of an utterance is in the log, and is published."""
        end = datetime.now(UTC)
        spoken = transcript(
            SENTENCE, id=new_id(), utterance_id=utterance, start=end - timedelta(seconds=1.5),
            end=end, level_dbfs=level_dbfs, confidence=0.9,
        )  # fmt: skip
        self.house.on_transcript(spoken)
        stored = StoredTranscript(len(self.events) + 1, spoken, end, "boot", 0.0)
        self.events.append(events.transcript(stored, self.node, end, False))
        self.house.on_publish(spoken, self.events[-1])


class Air:
    """Takes the rooms' messages to all of them, as a broker does, and lets time pass."""

    def __init__(self, *rooms: Room) -> None:
        self.rooms, self.now_s = rooms, 1000.0
        self.messages: list[OutgoingMessage] = []
        for room in rooms:
            room.house.connected(self.now_s)
        for room in rooms:
            self._pass_on(f"{room.house._prefix}/{room.node}/availability", b"online")
        self.run(60.0)

    def say(self, *heard: tuple[Room, float]) -> None:
        """A sentence is said, which these rooms hear at such levels."""
        begun = [(room, new_id(), level_dbfs) for room, level_dbfs in heard]
        for room, utterance, _ in begun:
            room.house.on_begin(utterance)
        self.run(1.5)
        for room, utterance, level_dbfs in begun:
            room.reports(utterance, level_dbfs)

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            for room in self.rooms:
                for message in room.house.poll(self.now_s):
                    self.messages.append(message)
                    self._pass_on(message.topic, message.payload)
            self.now_s += 0.02

    def _pass_on(self, topic: str, payload: bytes) -> None:
        for room in self.rooms:
            if topic.startswith(f"{room.house._prefix}/"):
                room.house.take(topic, payload, retained=False, now_s=self.now_s)

    def published(self, name: str) -> Iterator[dict[str, Any]]:
        """What came on topics of this name, each as its schema says."""
        file = {"claim": "house-claim.json", "act": "act.json"}[name]
        schema = json.loads((ROOT / "config" / "schemas" / file).read_bytes())
        for message in self.messages:
            if message.topic.endswith(f"/{name}"):
                fields = json.loads(message.payload)
                jsonschema.Draft202012Validator(schema).validate(fields)
                yield fields


def test_alone_a_room_acts_at_once_and_publishes_nothing_more() -> None:
    air = Air(kitchen := Room("kitchen"))
    air.say((kitchen, -30.0))
    assert kitchen.actions == ["turn on the light"]
    air.run(5.0)
    assert "arbitrated" not in kitchen.events[0] and not air.messages


def test_of_two_rooms_the_one_that_heard_better_acts_and_both_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "roomscribe.house")
    air = Air(kitchen := Room("kitchen"), hall := Room("hall"))
    assert (kitchen.house.rooms, hall.house.rooms) == (("hall",), ("kitchen",))
    air.say((kitchen, -45.0), (hall, -30.0))
    air.run(5.0)
    assert (hall.actions, kitchen.actions) == (["turn on the light"], [])
    (act,) = air.published("act")
    assert (act["id"], act["heard_also"]) == (hall.events[0]["id"], ["kitchen"])
    assert hall.events[0]["arbitrated"] and kitchen.events[0]["arbitrated"]
    assert [one.heard_better_by for one in kitchen.heard_in] == ["hall"]
    assert [one.heard_also for one in hall.heard_in] == [("kitchen",)]
    kinds = [(one["node"], one["kind"]) for one in air.published("claim")]
    assert len(kinds) == len({*kinds}), "each room publishes each kind once"
    assert sum("other rooms are online" in one.getMessage() for one in caplog.records) == 2


def test_a_muted_room_neither_claims_nor_acts() -> None:
    air = Air(kitchen := Room("kitchen"), hall := Room("hall"))
    kitchen.muted = True
    air.say((kitchen, -20.0), (hall, -50.0))
    air.run(5.0)
    assert (hall.actions, kitchen.actions) == (["turn on the light"], [])
    assert not [one for one in air.published("claim") if one["node"] == "kitchen" and "id" in one]


def test_without_the_broker_each_room_acts_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    air = Air(kitchen := Room("kitchen"), Room("hall"))
    kitchen.house.lost(air.now_s)
    air.say((kitchen, -30.0))
    air.run(1.0)
    assert kitchen.actions == ["turn on the light"]
    assert "acts without asking hall: no connection to the broker" in caplog.text


def test_rooms_with_another_prefix_are_another_home() -> None:
    rooms = [Room("kitchen", "homes/2"), Room("hall", "homes/2"), Room("bath")]
    air = Air(*rooms)
    assert [room.house.rooms for room in rooms] == [("hall",), ("kitchen",), ()]
    air.say((rooms[0], -30.0))
    air.run(5.0)
    assert "homes/2/kitchen/act" in [message.topic for message in air.messages]


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
