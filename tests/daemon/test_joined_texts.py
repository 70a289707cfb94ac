"""The texts of one utterance's windows are joined on their way into the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rigs.core import make_core, make_works
from rigs.transcriber import HEARD, FakeTranscriber
from rigs.windows import NO_FOLDER

from appliance.config import Settings, SpoolSettings, StoreSettings
from appliance.records import Window
from appliance.store.store import Store


class Rig:
    """A transcriber with a real store; `restart` makes a new one, as a new process does."""

    def __init__(self, store: Store) -> None:
        self.store, self.transcriber = store, FakeTranscriber()
        self.restart()

    def restart(self) -> None:
        folder = StoreSettings(path=str(self.store.path.parent))
        settings = Settings(spool=SpoolSettings(path=NO_FOLDER), store=folder)
        core = make_core(settings, self.transcriber, self.store)
        self.health, self.backlog, self.works = core.health, core.backlog, make_works(core)

    def say(self, text: str, index: int, overlap_s: float = 0.8, *, last: bool = False) -> None:
        self.transcriber.answer = replace(HEARD, text=text)
        now_s = time.monotonic()
        samples = np.zeros(32_000, np.int16)
        window = Window("u", index, last, samples, now_s - 2.0, now_s, 1.5, overlap_s=overlap_s)
        self.backlog.push(window)
        lease = self.backlog.take_window(0)
        assert lease
        work = self.works.leased(lease)
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
