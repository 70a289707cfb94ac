"""Whatever is said, and whichever thread goes on when: the rule of partial texts holds, and no word
is lost, doubled or out of order.

The pipeline's three threads take turns as a seed wills, between any two of their calls.
"""

from __future__ import annotations

import random
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hypothesis import given, strategies as st
from rigs.fuzzing import examples
from rigs.speaking import (
    FRAME_S,
    WHOLE,
    Account,
    LevelVoice,
    Said,
    WordTranscriber,
    broken_rules,
    sound_of,
)

from appliance.capture.segmenter import Segmenter
from appliance.config import SegmenterSettings, Settings, SpoolSettings, StoreSettings
from appliance.daemon.backlog import Backlog, Guess, Request
from appliance.daemon.health import Health
from appliance.daemon.partials import Partials
from appliance.daemon.transcription import EncodedWindow, Scribe
from appliance.infer.transcriber import Transcriber
from appliance.records import Frame, Window
from appliance.store.store import Store

PLACE = "/dev/shm" if Path("/dev/shm").is_dir() else None
STEPS = 200_000
"""More than any sound of these takes."""


class House:
    """The stages of a pipeline whose threads stop after each call."""

    def __init__(self, settings: Settings, store: Store, said: list[Said]) -> None:
        self.account = Account()
        self.account("", "", store)
        transcriber = cast(Transcriber, WordTranscriber())
        health = Health()
        self.scribe = Scribe(settings, transcriber, store, health, (self.account,))
        self.backlog = Backlog(settings, health, self.scribe.discard)
        self.partials = Partials(self.backlog.ask, self.scribe.preview, (self.account,))
        self.segmenter = Segmenter(LevelVoice(), settings.segmenter, transcriber.bundle.window_s)
        self.states: deque[EncodedWindow | Guess | Request] = deque()
        self.threads = (self.segment(said), self.encode(), self.transcribe())
        self.busy = {"segmenter", "encoder", "transcriber"}

    def segment(self, said: list[Said]) -> Iterator[None]:
        for number, samples in enumerate(sound_of(said)):
            frame = Frame(samples, FRAME_S * number)
            if expected := self.backlog.expected():
                self.segmenter.expect(*expected)
            found = self.segmenter.push(frame)
            yield
            for result in found:
                self.backlog.settle(result.id if isinstance(result, Window) else "")
                yield
                self.partials.close()
                yield
                if isinstance(result, Window):
                    self.backlog.push(result)
                else:
                    self.scribe.discard(result)
                yield
            self.backlog.guess(self.segmenter.guess)
            yield
            self.partials.follow(self.segmenter, frame.end_s)
            yield
        self.busy.discard("segmenter")

    def encode(self) -> Iterator[None]:
        while True:
            self.busy.add("encoder")
            encoded: EncodedWindow | Guess | Request | None = None
            if lease := self.backlog.take(0):
                yield
                encoded = self.scribe.encode(lease)
            elif guess := self.backlog.take_guess():
                yield
                encoded = guess if self.scribe.encode_ahead(guess) else None
            elif request := self.backlog.take_request():
                yield
                if self.states:
                    request.wanted = False
                elif self.scribe.encode_asked(request):
                    encoded = request
            else:
                self.busy.discard("encoder")
            yield
            while encoded and self.states:
                yield
            if encoded:
                self.states.append(encoded)
            yield

    def transcribe(self) -> Iterator[None]:
        while True:
            while not self.states:
                self.busy.discard("transcriber")
                yield
            self.busy.add("transcriber")
            item = self.states.popleft()
            yield
            if isinstance(item, Guess):
                self.scribe.write_ahead(item)
                yield
                self.partials.guessed(item)
            elif isinstance(item, Request):
                self.scribe.answer(item)
            else:
                self.scribe.write(item)
            yield


@st.composite
def talks(draw: st.DrawFn) -> list[Said]:
    """Words, and silences about the guess, the early end and the hang-over."""
    silences = st.one_of(st.integers(4, 40), st.sampled_from((9, 10, 11, 12, 19, 20, 21, 33)))
    said: list[Said] = [(0, 20)]
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
    said: list[Said], early_ms: int, paces: list[int], seed: int
) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        settings: Any = replace(
            Settings(),
            store=StoreSettings(path=folder),
            spool=SpoolSettings(enabled=False, path=f"{folder}/none"),
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
