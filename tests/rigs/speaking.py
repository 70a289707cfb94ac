"""A room in which made-up words are said: a sound whose words a detector and a transcriber can tell
without a model, and what a pipeline tells of them, in order.

A word is a run of frames of one level; `w7` is the word of the seventh level.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rigs.sources import FakeSource
from rigs.transcriber import HEARD, FakeTranscriber
from rigs.waiting import PATIENCE_S
from rigs.windows import NO_FOLDER

from appliance.capture.frames import FRAME_SAMPLES
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import Judgement, VoiceDetector
from appliance.config import (
    ApplianceSettings,
    SegmenterSettings,
    Settings,
    SpoolSettings,
    StoreSettings,
)
from appliance.daemon.assembly import Factories, build
from appliance.daemon.pipeline import Pipeline
from appliance.infer.request import Pending, Request
from appliance.infer.transcriber import Encoded
from appliance.records import (
    Discarded,
    Frame,
    Listener,
    Partial,
    Phrase,
    Samples,
    Transcript,
    Transcription,
    Window,
)
from appliance.store.store import Store

FRAME_S = 0.03
LOUD = 2000
STEP = 16
"""From one word's level to the next one's."""
FRAMES_AHEAD, WINDOWS_AHEAD = 100, 20
"""Frames that may wait for the segmenter, and windows for the transcriber."""
WHOLE = 10
"""A word is known when it has so many frames."""
Part = tuple[int, int]
"""The number of a word, and its frames; word 0 is silence."""


def sound_of(said: Iterable[Part]) -> Iterator[Samples]:
    """The frames of words and silences."""
    signs = np.where(np.arange(FRAME_SAMPLES) % 2, -1, 1)
    for word, frames in said:
        level = LOUD + STEP * word if word else 0
        yield from [(signs * level).astype(np.int16)] * frames


def words_of(samples: Samples) -> list[str]:
    """The words in a sound; what is too short yet to be known is `uh`."""
    levels = np.abs(samples.astype(np.int32)).reshape(-1, FRAME_SAMPLES).max(axis=1)
    edges = np.flatnonzero(np.diff(levels)) + 1
    runs = [run for run in np.split(levels, edges) if len(run) and run[0]]
    return [f"w{(run[0] - LOUD) // STEP}" if len(run) >= WHOLE else "uh" for run in runs]


def talk(rng: random.Random, words: int, silences: tuple[int, int]) -> list[Part]:
    """Words 1 to `words`, each with a silence of so many frames (least, most) after it."""
    said = [(0, 30)]
    for word in range(1, words + 1):
        said += [(word, rng.randint(WHOLE + 2, 40)), (0, rng.randint(*silences))]
    return [*said, (0, 40)]


class LevelVoice(VoiceDetector):
    """Takes a loud frame for speech; opens at the third in a row."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def push(self, frame: Frame) -> Judgement:
        speech = abs(int(frame.samples[0])) >= LOUD
        self._in_a_row = self._in_a_row + 1 if speech else 0
        return Judgement(self._in_a_row >= 3, speech, FRAME_S if speech else 0.0)

    def reset(self) -> None:
        self._in_a_row = 0


def whole_sentence(result: Transcription) -> Transcription:
    """The same, surely a sentence that was expected and that no longer one begins with."""
    return replace(result, phrase=Phrase(result.text, "all", {}, 1.0), phrase_continues=False)


class WordTranscriber(FakeTranscriber):
    """Writes down the words of a window."""

    def __init__(
        self,
        window_s: float = 4.0,
        *,
        before_encode: Callable[[Window], object] = lambda _: None,
        before_write: Callable[[], object] = lambda: None,
        sure: bool = True,
    ) -> None:
        """`sure`: some texts are surely whole sentences, by the number of their words; else nothing
        is known of any."""
        super().__init__()
        self._sure = sure
        self.bundle.window_s = window_s
        self._before_encode, self._before_write = before_encode, before_write

    def begin(
        self, request: Request, should_continue: Callable[[], bool] = lambda: True
    ) -> Encoded:
        window = request.window
        self._before_encode(window)
        words = [
            int(word.removeprefix("w").replace("uh", "0")) for word in words_of(window.samples)
        ]
        return replace(super().begin(request), states=np.array([words], np.float32))

    def decode(self, encoded: Encoded, pending: Pending | None = None) -> Transcription:
        self._before_write()
        words = [f"w{int(word)}" if word else "uh" for word in encoded.states[0]]
        result = replace(HEARD, text=" ".join(words), tokens=tuple(range(len(words))))
        if self._sure and len(words) % 3 == 1:
            result = whole_sentence(result)
        if encoded.request.completeness and pending:
            pending.decide(result)
        return result


@dataclass
class Account(Listener):
    """What a pipeline tells, in the order in which it is told: stands in for the publisher."""

    told: list[Partial | Transcript | Discarded] = field(default_factory=list)
    wants_partials: bool = True

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._seq = 0
        self.store: Store | None = None

    def __call__(self, _settings: object, _node: str, store: Store, *_: Any, **__: Any) -> Account:
        """What `build` makes the publisher with."""
        self.store = store
        return self

    def run(self, moved: Callable[[], None]) -> None:
        while not self._stopped.wait(0.05):
            moved()

    def stop(self, _flush_s: float) -> None:
        self._stopped.set()

    def on_transcript(self, transcript: Transcript) -> None:
        assert self.store
        with self._lock:
            for row in self.store.read_after(self._seq, 1000):
                self._seq = row.seq
                self.told.append(row.transcript)

    def on_discarded(self, discarded: Discarded) -> None:
        with self._lock:
            self.told.append(discarded)

    def on_partial(self, partial: Partial) -> None:
        with self._lock:
            self.told.append(partial)

    def reasons(self, **_: object) -> tuple[str, ...]:
        return ()

    @property
    def transcripts(self) -> list[Transcript]:
        return [one for one in self.told if isinstance(one, Transcript)]

    @property
    def partials(self) -> list[Partial]:
        return [one for one in self.told if isinstance(one, Partial)]

    @property
    def words(self) -> list[str]:
        """All that was transcribed, in order."""
        return [word for one in self.transcripts for word in one.text.replace("...", "").split()]


def broken_rules(told: Sequence[Partial | Transcript | Discarded]) -> list[str]:
    """What readers of partial texts rely on, and was not so."""
    broken: list[str] = []
    last: dict[tuple[str, int], Partial] = {}
    revisions: dict[str, int] = {}
    over: set[tuple[str, int]] = set()
    gone: set[str] = set()
    for one in told:
        if isinstance(one, Discarded):
            gone.add(one.utterance_id)
            continue
        key = one.utterance_id, one.window
        before = last.get(key)
        if isinstance(one, Transcript):
            over.add(key)
            if before and before.eager and before.text != one.text:
                broken.append(f"eager {before.text!r}, then {one.text!r}")
            continue
        if key in over or one.utterance_id in gone:
            broken.append(f"a partial after the end: {one}")
        if one.rev != revisions.get(one.utterance_id, 0) + 1:
            broken.append(f"revision {one.rev} after {revisions.get(one.utterance_id)}")
        if before and before.eager and not one.resumed:
            broken.append(f"after an eager text, and not resumed: {one}")
        if one.resumed and not (before and before.eager and before.text == one.text):
            broken.append(f"resumed what was not eager: {one}")
        if not 0 <= one.stable_chars <= len(one.text):
            broken.append(f"stable beyond the text: {one}")
        revisions[one.utterance_id] = one.rev
        last[key] = one
    return broken


def hear(
    folder: Path,
    sound: Iterable[Samples],
    account: Account,
    transcriber: Any,
    *,
    voice: Any = LevelVoice,
    cutter: type[Segmenter] = Segmenter,
    segmenter: SegmenterSettings | None = None,
    before_each: Callable[[], object] = lambda: time.sleep(0.0005),
    more: Callable[[Pipeline], object] = lambda _: None,
) -> dict[str, int]:
    """Runs a pipeline over a sound, far faster than it was spoken, until all is transcribed; its
    counters. `before_each` is called before each frame; `more`, when the pipeline has begun."""
    settings = Settings(
        appliance=ApplianceSettings(node=f"speaking_{os.getpid()}"),
        store=StoreSettings(path=str(folder)),
        spool=SpoolSettings(path=NO_FOLDER),
        segmenter=segmenter or SegmenterSettings(),
    )
    settings = replace(settings, capture=replace(settings.capture, recording="made up"))
    begun_s = time.monotonic()
    script = (Frame(samples, begun_s + FRAME_S * number) for number, samples in enumerate(sound))

    def before_frame() -> None:
        before_each()
        # however busy the machine is, nothing is dropped because a stage is behind
        core = pipeline.core
        while core.frames.qsize() > FRAMES_AHEAD or len(core.backlog) > WINDOWS_AHEAD:
            time.sleep(0.0005)

    fakes: dict[str, Any] = {
        "source": lambda *_: FakeSource(script, before_frame),
        "segmenter": lambda _, *given: cutter(voice(), *given),
        "transcriber": lambda *_: transcriber,
        "publisher": account,
    }
    pipeline = Pipeline(build(settings, Factories(**fakes, idle_s=0.05)))
    pipeline.start()
    try:
        more(pipeline)
        assert pipeline.ended.wait(PATIENCE_S), "the sound does not come to its end"
    finally:
        pipeline.stop()
    pipeline.check()
    return pipeline.health.counters()
