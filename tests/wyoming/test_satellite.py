"""The satellite as Home Assistant meets it, with a loudspeaker whose device is a file."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rigs.loudspeaker import Player, playing
from rigs.recordings import sentences
from rigs.transcriber import HEARD
from rigs.waiting import until
from rigs.wyoming import Talk, running, sound_of

from appliance.records import AssistReply
from appliance.speaker.loudspeaker import MOST_BYTES
from appliance.wyoming.protocol import LARGEST
from appliance.wyoming.request import KnownTexts
from appliance.wyoming.satellite import Question, VoiceSatellite

TONE = (np.sin(np.arange(8000) * 0.3) * 9000).astype("<i2").tobytes()
FORM: dict[str, Any] = {"rate": 22_050, "width": 2, "channels": 1}
SOUND = sound_of(sentences()[0].file)


class Room:
    """A satellite, on a free port once it runs."""

    def __init__(self, player: Player | None) -> None:
        self.player, self.port = player, 0
        self.answers, self.sounded, self.pauses = list[AssistReply](), list[str](), list[bool]()
        self.satellite = VoiceSatellite(
            "Roomscribe kitchen", "Kitchen", loudspeaker=player.speaker if player else None,
            pause=self.pauses.append, on_reply=self.answers.append, on_sounded=self.sounded.append,
            on_announcement=lambda *found: self.announced.append(found),
        )  # fmt: skip
        self.announced = list[tuple[bytes, int, int]]()

    def ask(self, name: str = "1", phrase: str = "computer") -> bool:
        return self.satellite.ask(Question(name, "what time is it", SOUND.tobytes(), phrase))

    def home(self) -> Talk:
        """Home Assistant, connected."""
        talk = Talk(self.port)
        talk.send("run-satellite")
        talk.send("ping")
        assert talk.events("pong")
        return talk


def answer(talk: Talk, text: str, sound: bytes = TONE) -> None:
    talk.send("synthesize", text=text, voice={"name": None, "language": "en"})
    announce(talk, sound)


def announce(talk: Talk, sound: bytes = TONE) -> None:
    talk.send("audio-start", **FORM)
    for at in range(0, len(sound), 2048):
        talk.send("audio-chunk", sound[at : at + 2048], **FORM)
    talk.send("audio-stop")


@contextmanager
def room(folder: Path | None = None) -> Iterator[Room]:
    """With `folder`, it has a loudspeaker."""
    with ExitStack() as stack:
        one = Room(stack.enter_context(playing(folder / "sound")) if folder else None)
        one.port = stack.enter_context(running(satellite=one.satellite)).satellite_port
        yield one


def test_home_assistant_learns_of_a_satellite_with_a_room_and_no_wake_word() -> None:
    with room() as one, Talk(one.port) as talk:
        talk.send("describe")
        [event] = talk.events("info")
    satellite = event.data["satellite"]
    assert (satellite["name"], satellite["area"]) == ("Roomscribe kitchen", "Kitchen")
    assert satellite["installed"]
    assert event.data.keys() == {"satellite"}


def test_a_sentence_is_asked_at_once_and_its_answer_sounds(tmp_path: Path) -> None:
    with room(tmp_path) as one, one.home() as talk:
        assert one.ask()
        events = talk.events("audio-stop")
        answer(talk, "Ten past nine.")
        assert talk.events("played")
        until(lambda: one.sounded)
        assert one.player
        assert len(one.player.sound) >= len(TONE)
    assert [event.type for event in events[:3]] == ["detection", "run-pipeline", "audio-start"]
    assert events[0].data["name"] == "computer"
    assert events[1].data["start_stage"] == "asr"
    assert events[1].data["end_stage"] == "tts"
    assert b"".join(event.payload for event in events) == SOUND.tobytes()
    [found] = one.answers
    assert (found.id, found.text, found.status) == ("1", "what time is it", "answered")
    assert (found.speech, found.language, found.error) == ("Ten past nine.", "en", "")
    assert (one.sounded, one.announced) == (["Ten past nine."], [])


def test_two_sentences_take_turns() -> None:
    with room() as one, one.home() as talk:
        assert one.ask("1")
        assert one.ask("2", phrase="")
        talk.events("audio-stop")
        answer(talk, "One.")
        # without a loudspeaker a sound is over when it has come
        assert [event.type for event in talk.events("audio-stop")][:2] == ["played", "run-pipeline"]
        answer(talk, "Two.")
        talk.events("played")
    assert [found.speech for found in one.answers] == ["One.", "Two."]


def test_a_pipeline_that_fails_and_a_home_that_leaves_are_reported() -> None:
    with room() as one:
        assert not one.ask()
        with one.home() as talk:
            for name in "123":
                assert one.ask(name)
            talk.events("audio-stop")
            talk.send("error", text="no text", code="stt-no-text-recognized")
            talk.events("audio-stop")
        until(lambda: len(one.answers) == 3)
        assert not one.ask()
    left = "Home Assistant has left"
    assert [found.error for found in one.answers] == ["stt-no-text-recognized", left, left]


def test_what_came_of_an_answer_sounds_if_home_assistant_is_killed(tmp_path: Path) -> None:
    with room(tmp_path) as one:
        with one.home() as talk:
            talk.send("audio-start", **FORM)
            talk.send("audio-chunk", TONE, **FORM)
            until(lambda: one.satellite.is_loud)
        until(lambda: one.sounded)
        assert one.player
        assert len(one.player.sound) == len(TONE)


def test_announcements_are_confirmed_in_order_and_can_be_stopped(tmp_path: Path) -> None:
    with room(tmp_path) as one, one.home() as talk:
        announce(talk)
        announce(talk, TONE * 100)
        assert talk.events("played")
        until(lambda: one.player and len(one.player.sound) > len(TONE))
        one.satellite.hush()
        assert talk.events("played")
        until(lambda: not one.satellite.is_loud)
    assert one.announced == [(TONE * times, 22_050, 1) for times in (1, 100)]


def test_a_flood_of_sounds_is_bounded_and_what_never_ends_ends(tmp_path: Path) -> None:
    with room(tmp_path) as one, one.home() as talk:
        bad: tuple[tuple[str, Any], ...] = (
            ("rate", "x"),
            ("rate", 1),
            ("width", []),
            ("channels", 3),
        )
        for key, value in bad:
            talk.send("audio-start", **FORM | {key: value})
        talk.send("audio-stop")
        assert talk.events("played"), "nothing can play it, so it is over"
        for _ in range(2):
            announce(talk, TONE)
            talk.send("audio-start", **FORM)
            talk.send("audio-chunk", TONE, **FORM)  # and no end
        talk.send("audio-start", rate=192_000, width=2, channels=2)
        assert all(talk.events("played") for _ in range(4))
        for _ in range(MOST_BYTES // LARGEST + 100):
            talk.send("audio-chunk", bytes(LARGEST))
        talk.send("ping")
        assert talk.events("pong")
        (sound,) = one.satellite._sounds
        assert len(sound.sound) <= MOST_BYTES + LARGEST


def test_a_timer_rings_until_it_is_stopped(tmp_path: Path) -> None:
    with room(tmp_path) as one, one.home() as talk:
        talk.send("timer-started", id="a", total_seconds=1)
        talk.send("timer-finished", id="a")
        until(lambda: one.player and one.player.sound)
        assert one.satellite.is_loud
        one.satellite.hush()
        until(lambda: not one.satellite.is_loud)
        announce(talk)
        assert talk.events("played")


def test_a_second_home_assistant_is_refused_until_the_first_has_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with room() as one:
        with one.home(), Talk(one.port) as second:
            second.send("describe")
            assert second.events("info")
            second.send("run-satellite")
            assert second.events()[-1].data["code"] == "busy"
        until(lambda: not one.satellite.home)
        with one.home():
            assert one.satellite.home == "127.0.0.1"
    assert sum("already uses this satellite" in line for line in caplog.messages) == 1


def test_a_pause_mutes_but_a_home_assistant_that_stops_does_not() -> None:
    with room() as one:
        with one.home() as talk:
            talk.send("describe")
            talk.events("info")
            time.sleep(0.2)  # what we sent last would count as what has woken it
            talk.send("pause-satellite")
        until(lambda: not one.satellite.home)
        with one.home() as talk:
            assert one.pauses == [False, False]
            talk.send("pause-satellite")
            until(lambda: one.pauses[-1])
            with one.home():
                assert one.pauses == [False, False, True, False]


def test_our_own_speech_to_text_answers_the_same_sound_with_the_known_text() -> None:
    known = KnownTexts()
    known.add(SOUND.tobytes(), "what time is it")
    with running(known=known) as house, Talk(house.port) as talk:
        for sound in (SOUND, SOUND[: len(SOUND) * 3 // 4]):
            talk.speak(sound)
            assert talk.text() == "what time is it"
        assert not house.worker.asked
        other = SOUND.copy()
        other[-1] += 1
        for sound in (other, SOUND[: len(SOUND) // 3]):
            talk.speak(sound)
            assert talk.text() in {HEARD.text, ""}
        assert house.worker.asked
