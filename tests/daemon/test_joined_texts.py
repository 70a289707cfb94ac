"""The texts of windows are joined on their way into the store, and those of a sentence's parts."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from rigs.core import make_core, make_works
from rigs.transcriber import HEARD, FakeTranscriber
from rigs.windows import NO_FOLDER

from appliance.config import Settings, SpoolSettings, StoreSettings
from appliance.daemon.backlog import Lease, Work
from appliance.records import SAMPLE_RATE, Samples, Window, new_id, why_not_act
from appliance.store.store import Store

SPEECH = np.resize(np.array([300, -300], np.int16), 2 * SAMPLE_RATE)


class Rig:
    """A transcriber with a real store; `restart` makes a new one, as a new process does."""

    def __init__(self, store: Store) -> None:
        self.store, self.transcriber = store, FakeTranscriber()
        self.began_s, self.continues = time.monotonic() - 10.0, ""
        self.restart()

    def restart(self) -> None:
        folder = StoreSettings(path=str(self.store.path.parent))
        settings = Settings(spool=SpoolSettings(path=NO_FOLDER), store=folder)
        core = make_core(settings, self.transcriber, self.store, joins=True)
        self.health, self.backlog, self.works = core.health, core.backlog, make_works(core)

    def say(self, text: str, index: int, overlap_s: float = 0.8, *, last: bool = False) -> None:
        self.transcriber.answer = replace(HEARD, text=text)
        now_s = time.monotonic()
        samples = np.zeros(32_000, np.int16)
        window = Window("u", index, last, samples, now_s - 2.0, now_s, 1.5, overlap_s=overlap_s)
        self.backlog.push(window)
        self.work_on(self.works.leased(cast("Lease", self.backlog.take_window(0))))

    def say_apart(
        self,
        text: str,
        begin_s: float,
        sure: float = 0.2,
        samples: Samples = SPEECH,
        flags: tuple[str, ...] = (),
    ) -> Window:
        """An utterance of its own, so many seconds after the rig began."""
        self.transcriber.answer = replace(HEARD, text=text, confidence=sure, flags=flags)
        start_s = self.began_s + begin_s
        end_s = start_s + len(samples) / SAMPLE_RATE
        window = Window(
            new_id(), 1, True, samples, start_s, end_s - 0.15, 1.5, continues=self.continues
        )
        self.backlog.push(window)
        self.work_on(self.works.leased(cast("Lease", self.backlog.take_window(0))))
        return window

    def join(self, text: str, sure: float = 0.9) -> Window | None:
        """Transcribe what waits for idle time to `text`; its window."""
        if not (work := self.backlog.take_request()):
            return None
        self.transcriber.answer = replace(HEARD, text=text, confidence=sure)
        self.work_on(work)
        return work.window

    def work_on(self, work: Work) -> None:
        self.works.encode(work)
        self.works.decode(work)

    def texts(self) -> list[str]:
        return [row.transcript.text for row in self.store.query()]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Store.open(StoreSettings(path=str(tmp_path))) as store:
        yield Rig(store)


def test_a_later_window_is_stored_without_what_the_one_before_says(rig: Rig) -> None:
    rig.say("turn on the light", 1, 0.0)
    rig.say("the light in the kitchen and", 2)
    rig.say("close the door", 3, 0.0, last=True)
    assert rig.texts() == ["turn on the light", "in the kitchen and", "close the door"]


def test_so_it_is_after_a_crash_between_the_two(rig: Rig) -> None:
    rig.say("turn on the light", 1, 0.0)
    rig.restart()
    rig.say("the light in the kitchen", 2)
    assert rig.texts() == ["turn on the light", "in the kitchen"]


def test_another_utterance_is_never_taken_for_the_window_before(rig: Rig) -> None:
    rig.say("turn on the light", 1, 0.0)
    rig.restart()
    rig.say("the light in the kitchen", 3)
    assert rig.texts()[1] == "the light in the kitchen"


def test_a_window_that_adds_nothing_is_counted_and_not_stored(rig: Rig) -> None:
    rig.say("turn on the light", 1, 0.0)
    rig.say("the light", 2, last=True)
    assert rig.texts() == ["turn on the light"]
    assert rig.health.counters()["discarded_repetition"] == 1


def test_start_and_duration_are_those_of_what_is_new(rig: Rig) -> None:
    rig.say("turn on the light", 1, 0.0)
    rig.say("the light in the kitchen", 2)
    first, second = (row.transcript for row in rig.store.query())
    assert first.duration_s == pytest.approx(2.0)
    assert second.duration_s == pytest.approx(1.2)
    assert (second.end - second.start).total_seconds() == pytest.approx(1.2, abs=0.01)


def test_a_sentence_that_a_pause_cut_is_decoded_as_one_in_idle_time(rig: Rig) -> None:
    after_click = np.concatenate((30 * SPEECH[: SAMPLE_RATE // 2], SPEECH[SAMPLE_RATE // 2 :]))
    first = rig.say_apart("set bed light brightness.", 0.0, samples=after_click)
    second = rig.say_apart("50%.", 3.0)
    parts = [row.transcript for row in rig.store.query()]
    assert [one.continues for one in parts] == ["", first.utterance_id]
    window = rig.join("set bed light brightness to 50%.")
    assert window and (window.start_s, window.speech_end_s) == (first.start_s, second.speech_end_s)
    assert np.array_equal(window.samples[len(after_click) :], np.resize(SPEECH, 3 * SAMPLE_RATE))
    *_, whole = (row.transcript for row in rig.store.query())
    assert whole.text == "set bed light brightness to 50%."
    assert whole.utterance_id == second.utterance_id
    assert "joined" in whole.flags and whole.id not in {one.id for one in parts}
    assert [why_not_act(one) is None for one in (*parts, whole)] == [False, False, True]


def test_the_next_part_is_joined_to_what_was_joined(rig: Rig) -> None:
    first = rig.say_apart("set", 0.0)
    rig.say_apart("bed light", 2.5)
    rig.join("set the bed light", sure=0.2)
    rig.say_apart("to fifty", 5.0)
    window = rig.join("set the bed light to 50%.")
    assert window and window.start_s == first.start_s
    assert rig.texts()[-1] == "set the bed light to 50%."


@pytest.mark.parametrize(
    ("sure", "begin_s", "length_s"),
    [((0.9, 0.2), 2.5, 2), ((0.2, 0.9), 2.5, 2), ((0.2, 0.2), 4.0, 2), ((0.2, 0.2), 2.5, 8)],
)
def test_what_may_have_acted_comes_later_or_is_too_long_is_not_joined(
    rig: Rig, sure: tuple[float, float], begin_s: float, length_s: int
) -> None:
    first = rig.say_apart("turn on the light", 0.0, sure[0])
    rig.continues = first.utterance_id if begin_s < 4 else ""
    rig.say_apart("turn off the fan", begin_s, sure[1], np.zeros(length_s * SAMPLE_RATE, np.int16))
    assert rig.join("turn on the light, turn off the fan") is None


@pytest.mark.parametrize(
    ("first", "flags", "second", "acts"),
    [
        ("Turn on the lip.", ("part",), "Bedroom lamp.", [False, False, True]),
        ("Set the seller.", (), "to 17 degrees.", [False, False, True]),
        ("Hm.", (), "Bedroom lamp.", [False, True]),
    ],
)
def test_the_rest_of_a_sentence_does_not_act_but_the_whole_may(
    rig: Rig, first: str, flags: tuple[str, ...], second: str, acts: list[bool]
) -> None:
    rig.say_apart(first, 0.0, flags=flags)
    rig.say_apart(second, 2.5, 0.9)
    rig.join("Turn on the bedroom lamp.")
    assert [why_not_act(row.transcript) is None for row in rig.store.query()] == acts


@pytest.mark.parametrize("answer", ["Set bed light, brightness.", ""])
def test_a_joined_text_that_says_nothing_new_is_not_stored(rig: Rig, answer: str) -> None:
    rig.say_apart("set bed light", 0.0)
    rig.say_apart("brightness", 2.5)
    assert rig.join(answer, sure=0.2)
    assert rig.texts() == ["set bed light", "brightness"]
