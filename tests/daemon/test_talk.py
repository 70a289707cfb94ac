"""Which way a sentence goes to Home Assistant, what is refused, stopped, muted and asked back."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rigs.core import make_core
from rigs.publishing import transcript
from rigs.transcriber import HEARD, FakeTranscriber
from rigs.waiting import until
from rigs.windows import a_window
from rigs.wyoming import Talk as Client, running

from appliance.config import (
    AssistSettings,
    HomeAssistantSettings,
    MqttSettings,
    Settings,
    StoreSettings,
    VocabularySettings,
)
from appliance.daemon.core import Core
from appliance.daemon.talk import REFUSAL, Talk, is_stop
from appliance.infer.request import Request
from appliance.records import AssistReply, Listener, Phrase
from appliance.store.store import Store
from appliance.wyoming.protocol import Event


class Room(Listener):
    def __init__(self, core: Core, home: Any) -> None:
        self.core, self.expected, self.replies = core, list[Any](), list[AssistReply]()
        expect = cast("Any", lambda _, answer: self.expected.append(answer))
        self.talk = Talk(core, home, None, expect)
        core.bus.add(self.talk, self)

    def on_reply(self, reply: AssistReply) -> None:
        self.replies.append(reply)

    def say(self, command: str, **slots: str) -> bytes:
        """An expected sentence with the phrase; returns its sound."""
        window = a_window(seconds=0.5)
        self.talk.on_window(window)
        said = f"computer {command}"
        now, phrase = datetime.now(UTC), Phrase(said, "x", slots, 0.9)
        one = transcript(said, id=window.id, start=now, end=now, flags=("addressed",))
        self.talk.on_transcript(replace(one, phrase=phrase if slots or "time" in said else None))
        return window.samples.tobytes()


@contextmanager
def room(folder: Path, home: Any = None) -> Iterator[tuple[Room, Client]]:
    """A room without a broker, and Home Assistant connected to its satellite."""
    settings = replace(
        Settings(),
        assist=AssistSettings(phrase="computer"),
        store=StoreSettings(path=str(folder)),
        homeassistant=HomeAssistantSettings(area="Kitchen"),
        vocabulary=VocabularySettings(words=("Attic",)),
        mqtt=MqttSettings(enabled=False),
    )
    with Store.open(settings.store) as store:
        one = Room(make_core(settings, FakeTranscriber(), store), home)
        with (
            running(satellite=one.talk.satellite, known=one.talk.satellite.known) as house,
            Client(house.satellite_port) as client,
        ):
            client.send("run-satellite")
            until(lambda: one.talk.satellite.home)
            yield one, client


def sound(events: list[Event]) -> bytes:
    return b"".join(event.payload for event in events)


@pytest.mark.parametrize(
    "slots", [{}, {"area": "kitchen"}, {"area": "attic", "light": "lamp"}], ids=str
)
def test_a_listed_sentence_goes_as_sound_with_its_text(
    tmp_path: Path, slots: dict[str, str]
) -> None:
    with room(tmp_path) as (one, client):
        said = one.say("what time is it", **slots)
        assert sound(client.events("audio-stop")) == said
        assert one.talk.satellite.known.find(said) == "what time is it"
        client.send("synthesize", text="Ten past nine.", voice={"language": "en"})
        until(lambda: one.replies)
    [reply] = one.replies
    assert (reply.status, reply.text) == ("answered", "what time is it")
    assert (reply.speech, reply.goes_on) == ("Ten past nine.", False)


@pytest.mark.parametrize(
    ("command", "slots", "spoken"),
    [
        ("turn off the light", {"area": "bathroom"}, "Sorry, I know no bathroom."),
        ("turn on the floor lamp", {"light": "floor lamp"}, "Sorry, I know no floor lamp."),
        ("turn into a pumpkin", {}, "Sorry, I did not understand that."),
    ],
    ids=["place", "thing", "unknown"],
)
def test_a_refusal_is_spoken_and_nothing_of_the_sentence_leaves(
    tmp_path: Path, command: str, slots: dict[str, str], spoken: str
) -> None:
    with room(tmp_path) as (one, client):
        one.say(command, **slots)
        assert sound(client.events("audio-stop")) == REFUSAL
        assert one.talk.satellite.known.find(REFUSAL) == "?"
    [reply] = one.replies
    assert (reply.status, reply.speech) == ("failed", spoken)


def test_with_a_token_the_text_goes_and_no_sound(tmp_path: Path) -> None:
    taken = list[str]()
    home = SimpleNamespace(hand_over=lambda _, text: taken.append(text))
    with room(tmp_path, home) as (one, client):
        one.say("turn off the light", area="bathroom")
        client.send("ping")
        assert [event.type for event in client.events("pong")] == ["pong"]
        assert one.talk.state == {"way": "text", "home": "127.0.0.1", "listening": False}
    assert taken == ["turn off the light"]


def test_a_ring_ends_when_somebody_says_stop(tmp_path: Path) -> None:
    with room(tmp_path) as (one, client):
        client.send("timer-started", id="a", total_seconds=0)
        client.send("timer-finished", id="a")
        until(lambda: one.talk.satellite.is_loud)
        one.say("stop the timer", area="x")
        until(lambda: not one.talk.satellite.is_loud)
        client.send("timer-started", id="b", total_seconds=0)
        client.send("timer-finished", id="b")
        until(lambda: one.talk.satellite.timers.rings)
        one.talk.on_idle()
        for confidence in (0.2, 0.4):
            assert one.talk.satellite.timers.rings
            one.expected[-1]({"answers": [{"phrase_confidence": confidence}]})
        assert not one.talk.satellite.timers.rings
    assert not one.replies
    assert is_stop("Stop!")
    assert not is_stop("Stop the music in the kitchen.")


def test_after_an_answer_that_asks_back_the_next_needs_no_phrase(tmp_path: Path) -> None:
    with room(tmp_path) as (one, client):
        one.say("what time is it")
        client.events("audio-stop")
        client.send("synthesize", text="For how long?", voice={})
        client.send("audio-start", rate=22050, width=2, channels=1)
        client.send("audio-stop")
        client.events("played")
        until(lambda: one.talk.state["listening"])


def test_an_answer_is_our_own_voice_until_it_has_sounded(tmp_path: Path) -> None:
    with room(tmp_path) as (one, _):
        one.core.bus.on_reply(AssistReply("1", "ask", "answered", "Red or blue?"))
        one.talk._on_sounded("")  # an announcement that began before it
        assert one.core.spoken.is_own("blue", time.monotonic() + 8)
        one.talk._on_sounded("Red or blue?")
        assert one.core.spoken.is_own("blue", time.monotonic())
        assert not one.core.spoken.is_own("blue", time.monotonic() + 1)


def test_an_announcement_is_written_down_and_is_our_own_voice_but_no_answer_is(
    tmp_path: Path,
) -> None:
    lengths = list[float]()

    def submit(request: Request, deliver: Any) -> None:
        lengths.append(request.window.duration_s)
        deliver(request, replace(HEARD, text="Dinner is ready."))

    with room(tmp_path) as (one, _):
        one.core.transcripts.submit = submit
        one.talk.satellite.on_announcement(bytes(2 * 22_050 * 2 + 1), 22_050, 1)
        assert one.core.spoken.is_own("dinner is ready", time.monotonic())
        one.core.bus.on_reply(AssistReply("1", "ask", "answered", "Blue."))
        one.talk.satellite.on_announcement(bytes(9), 22_050, 1)
    assert lengths == pytest.approx([2.0], abs=0.01)


def test_home_assistant_unmutes_only_what_it_has_muted_also_after_a_restart(tmp_path: Path) -> None:
    with room(tmp_path) as (one, client):
        client.send("pause-satellite")
        until(lambda: one.core.mute.on)
    with room(tmp_path) as (one, _):
        until(lambda: not one.core.mute.on)
        one.core.mute.set(True, "the page")
        for on in (True, False):
            one.talk.satellite.pause(on)
        assert one.core.mute.on
