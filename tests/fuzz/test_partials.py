"""Whatever is said, and whichever thread goes on when: the rule of partial texts holds, and no word
is lost, doubled or out of order.

The pipeline's three threads take turns as a seed wills, between any two of their calls.
"""

import random
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given, strategies as st
from rigs.core import make_core
from rigs.fuzzing import examples
from rigs.speaking import (
    FRAME_S,
    WHOLE,
    Account,
    LevelVoice,
    Part,
    WordTranscriber,
    broken_rules,
    sound_of,
)
from rigs.windows import NO_FOLDER

from appliance.capture.segmenter import Segmenter
from appliance.config import SegmenterSettings, Settings, SpoolSettings, StoreSettings
from appliance.daemon.backlog import Work
from appliance.daemon.partials import Partials
from appliance.daemon.phrase_commands import Expectations
from appliance.daemon.transcription import WorkTranscriber
from appliance.records import Frame, Window
from appliance.store.store import Store

PLACE = "/dev/shm" if Path("/dev/shm").is_dir() else None
STEPS = 200_000
"""More than any sound of these takes."""


class House:
    """The stages of a pipeline whose threads stop after each call."""

    def __init__(self, settings: Settings, store: Store, said: list[Part]) -> None:
        self.account = Account()
        transcriber = WordTranscriber()
        core = make_core(settings, transcriber, store, self.account)
        self.bus, self.backlog = core.bus, core.backlog
        self.partials = Partials(self.backlog.submit, core.transcripts.preview, core.bus)
        self.speculations: deque[Work] = deque()
        later: Any = SimpleNamespace(publish_eager=self.speculations.append)
        self.works = WorkTranscriber(core, later, Expectations())
        self.segmenter = Segmenter(LevelVoice(), settings.segmenter, transcriber.bundle.window_s)
        self.states: deque[Work] = deque()
        self.threads = (self.segment(said), self.encode(), self.transcribe())
        self.busy = {"segmenter", "encoder", "transcriber"}

    def segment(self, said: list[Part]) -> Iterator[None]:
        for number, samples in enumerate(sound_of(said)):
            frame = Frame(samples, FRAME_S * number)
            if expected := self.backlog.end_silence():
                self.segmenter.end_after(*expected)
            found = self.segmenter.push(frame)
            yield
            for result in found:
                self.backlog.withdraw_speculation(result.id if isinstance(result, Window) else "")
                yield
                self.partials.close()
                yield
                if isinstance(result, Window):
                    self.backlog.push(result)
                else:
                    self.bus.on_discarded(result)
                yield
            self.backlog.speculate(self.segmenter.speculative_window, self.works.speculation)
            yield
            self.partials.follow(self.segmenter, frame.end_s)
            yield
        self.busy.discard("segmenter")

    def encode(self) -> Iterator[None]:
        while True:
            self.busy.add("encoder")
            lease = self.backlog.take_window(0)
            work = self.works.leased(lease) if lease else self.backlog.take_speculation()
            work = work or self.backlog.take_request()
            if not work:
                self.busy.discard("encoder")
                yield
                continue
            yield
            if work.request.partial and self.states:
                work.cancel()
                continue
            self.works.encode(work)
            yield
            while self.states:
                yield
            self.states.append(work)
            yield

    def transcribe(self) -> Iterator[None]:
        while True:
            while not self.states:
                self.busy.discard("transcriber")
                yield
            self.busy.add("transcriber")
            work = self.states.popleft()
            yield
            self.works.decode(work)
            yield
            while self.speculations:
                self.partials.publish_eager(self.speculations.popleft())
                yield


@st.composite
def talks(draw: st.DrawFn) -> list[Part]:
    """Words, and silences about the guess, the early end and the hang-over."""
    silences = st.one_of(st.integers(4, 40), st.sampled_from((9, 10, 11, 12, 19, 20, 21, 33)))
    said: list[Part] = [(0, 20)]
    for word in range(1, draw(st.integers(1, 8)) + 1):
        said += [(word, draw(st.integers(WHOLE + 2, 60))), (0, draw(silences))]
    return [*said, (0, 40)]


@examples(40, 0.5, shrink=False)
@given(
    said=talks(),
    early_ms=st.sampled_from((0, 350)),
    paces=st.lists(st.sampled_from((1, 3, 30)), min_size=3, max_size=3),
    seed=st.integers(0, 1 << 32),
)
def test_the_rule_holds_whoever_goes_on_when(
    said: list[Part], early_ms: int, paces: list[int], seed: int
) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        settings: Any = replace(
            Settings(),
            store=StoreSettings(path=folder),
            spool=SpoolSettings(path=NO_FOLDER),
            segmenter=replace(SegmenterSettings(), early_ms=early_ms),
        )
        with Store.open(settings.store) as store:
            house = House(settings, store, said)
            for _ in range(STEPS):
                thread = rng.choices(house.threads, paces)[0]
                next(thread, None)
                if not house.busy and not len(house.backlog) and not house.states:
                    break
            told = house.account.told
            assert house.account.words == [f"w{word}" for word, _ in said if word]
            assert broken_rules(told) == []
            ids = ["", *(one.utterance_id for one in house.account.transcripts)]
            for number, one in enumerate(house.account.transcripts):
                before = [name for name in ids[: number + 1] if name != one.utterance_id]
                assert one.continues in ("", before[-1]), "only the utterance just before"
