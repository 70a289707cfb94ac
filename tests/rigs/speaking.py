"""A room in which made-up words are said: a sound whose words a detector and a transcriber can tell
without a model, and what a pipeline tells of them, in order.

A word is a run of frames of one level; `w7` is the word of the seventh level.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rigs.transcriber import HEARD, FakeTranscriber

from appliance.capture.frames import FRAME_SAMPLES
from appliance.capture.voice import Judgement, VoiceDetector
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
)

FRAME_S = 0.03
LOUD = 2000
STEP = 16
"""From one word's level to the next one's."""
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
    """Writes down the words of a window; some texts are surely whole sentences, by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.bundle.window_s = 4.0

    def begin(
        self, request: Request, should_continue: Callable[[], bool] = lambda: True
    ) -> Encoded:
        heard = words_of(request.window.samples)
        words = [int(word.removeprefix("w").replace("uh", "0")) for word in heard]
        return replace(super().begin(request), states=np.array([words], np.float32))

    def decode(self, encoded: Encoded, pending: Pending | None = None) -> Transcription:
        words = [f"w{int(word)}" if word else "uh" for word in encoded.states[0]]
        result = replace(HEARD, text=" ".join(words), tokens=tuple(range(len(words))))
        if len(words) % 3 == 1:
            result = whole_sentence(result)
        if encoded.request.completeness and pending:
            pending.on_text(result)
        return result


@dataclass
class Account(Listener):
    """What a pipeline tells, in the order in which it is told."""

    told: list[Partial | Transcript | Discarded] = field(default_factory=list)
    wants_partials: bool = True

    def on_transcript(self, transcript: Transcript) -> None:
        self.told.append(transcript)

    def on_discarded(self, discarded: Discarded) -> None:
        self.told.append(discarded)

    def on_partial(self, partial: Partial) -> None:
        self.told.append(partial)

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
