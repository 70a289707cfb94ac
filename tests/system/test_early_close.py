"""Utterances that end early, or late, in a running appliance: nothing is lost, nothing is told
twice, the order stays, and what goes on says what it continues."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rigs.speaking import (
    Account,
    WordTranscriber,
    broken_rules,
    hear,
    sound_of,
    talk,
    whole_sentence,
)

from appliance.capture.segmenter import Segmenter
from appliance.config import SegmenterSettings
from appliance.daemon.pipeline import Pipeline
from appliance.infer.request import Pending
from appliance.infer.transcriber import Encoded
from appliance.records import Discarded, Frame, Transcript, Transcription, Window


class SureTranscriber(WordTranscriber):
    """Takes texts for whole sentences or for unfinished ones, by their last word; by default for
    whole."""

    def __init__(
        self,
        window_s: float = 4.0,
        *,
        opinion: Callable[[int], bool | None] = lambda _: True,
        before_encode: Callable[[Window], object] = lambda _: None,
        before_write: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(
            window_s, before_encode=before_encode, before_write=before_write, sure=False
        )
        self._opinion = opinion

    def decode(self, encoded: Encoded, pending: Pending | None = None) -> Transcription:
        result = super().decode(encoded)
        if encoded.request.completeness and pending:
            match self._opinion(int(encoded.states[0][-1])):
                case True:
                    result = whole_sentence(result)
                case False:
                    result = replace(result, text=f"{result.text}...")
            pending.decide(result)
        return result


class ClosedFrames(Segmenter):
    """Notes the silence, ms, after which each utterance was closed."""

    silences_ms: list[float]

    def push(self, frame: Frame) -> list[Window | Discarded]:
        found = super().push(frame)
        self.silences_ms += [
            1000 * (frame.end_s - one.speech_end_s)
            for one in found
            if isinstance(one, Window) and one.last
        ]
        return found


def said(words: int) -> list[str]:
    return [f"w{word}" for word in range(1, words + 1)]


class Pace:
    """Lets the sound go on when all before it was taken in and the guess, if any, is judged: a
    model that takes no time, however busy the machine is."""

    def __init__(self, patience_s: float = 10.0) -> None:
        """A frame waits for `patience_s` at most."""
        self._pipeline: Pipeline | None = None
        self._patience_s = patience_s

    def begin(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def __call__(self) -> None:
        until_s = time.monotonic() + self._patience_s
        while self._behind() and time.monotonic() < until_s:
            time.sleep(0.0002)

    def _behind(self) -> bool:
        if self._pipeline is None:
            return True
        backlog = self._pipeline.core.backlog
        undecided = backlog._speculation is not None and backlog.end_silence() is None
        return undecided or self._pipeline.core.frames.qsize() > 0


def chains_of(transcripts: list[Transcript]) -> int:
    """How many utterances go on with another; each with the one just before it."""
    utterances = {one.utterance_id: one.continues for one in transcripts}
    before = ["", *utterances]
    for number, (utterance_id, continues) in enumerate(utterances.items()):
        assert continues in ("", before[number]), f"{utterance_id} continues {continues}"
    return sum(map(bool, utterances.values()))


def check(account: Account, counters: dict[str, int], words: int) -> None:
    assert broken_rules(account.told) == []
    assert account.words == said(words)
    assert chains_of(account.transcripts) == counters.get("resumed", 0)
    assert counters.get("resumed", 0) <= counters.get("closed_early", 0)


def test_sentences_that_are_whole_end_early_and_those_that_are_not_late(tmp_path: Path) -> None:
    """Every third word ends a sentence, every third is in the middle of one, of the others nobody
    knows."""
    opinions: dict[int, bool | None] = {0: True, 1: False, 2: None}
    silences_ms: list[float] = []
    cutter = type("Cutter", (ClosedFrames,), {"silences_ms": silences_ms})
    account = Account(wants_partials=False)
    transcriber = SureTranscriber(opinion=lambda word: opinions[word % 3])
    counters = hear(
        tmp_path,
        sound_of(talk(random.Random(1), 18, (60, 60))),
        account,
        transcriber,
        cutter=cutter,
        before_each=(pace := Pace()),
        more=pace.begin,
    )
    check(account, counters, 18)
    assert counters["closed_early"] >= 5
    assert chains_of(account.transcripts) == 0, "1.8 s are no pause"
    by_kind = [silences_ms[kind::3] for kind in range(3)]  # words 1, 4, .. are of opinion False
    assert min(by_kind[0]) > 990
    assert sorted(by_kind[1])[3] == pytest.approx(450, abs=31)
    assert sorted(by_kind[2])[3] < 550


def test_whatever_is_thought_of_the_sentences_no_word_is_lost(tmp_path: Path) -> None:
    for seed in range(3):
        rng = random.Random(seed)
        account = Account()

        def slow(*_: object, rng: random.Random = rng) -> None:
            time.sleep(rng.uniform(0, 0.006))

        opinions = {word: rng.choice([True, True, False, None]) for word in range(-1, 61)}
        transcriber = SureTranscriber(
            opinion=opinions.__getitem__, before_encode=slow, before_write=slow
        )
        sound = sound_of(talk(rng, 60, (4, 40)))
        check(account, hear(tmp_path / str(seed), sound, account, transcriber), 60)


def test_turned_off_every_utterance_waits_for_the_hang_over(tmp_path: Path) -> None:
    asked: list[bool] = []

    class Watched(SureTranscriber):
        def decode(self, encoded: Encoded, pending: Pending | None = None) -> Transcription:
            asked.append(encoded.request.completeness)
            return super().decode(encoded, pending)

    account, silences_ms = Account(wants_partials=False), list[float]()
    cutter = type("Cutter", (ClosedFrames,), {"silences_ms": silences_ms})
    counters = hear(
        tmp_path,
        sound_of(talk(random.Random(5), 8, (30, 40))),
        account,
        Watched(),
        cutter=cutter,
        segmenter=SegmenterSettings(early_ms=0),
    )
    assert account.words == said(8)
    assert asked and not any(asked)
    assert silences_ms == pytest.approx([600] * 8)
    assert "closed_early" not in counters
