"""Partial texts of a running appliance: the rule that readers rely on, and that nothing else
changes for them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rigs.recordings import SHARED_AUDIO, heard_right, manifest
from rigs.sounds import quiet, read, to_int16
from rigs.speaking import Account, WordTranscriber, broken_rules, hear, sound_of, talk
from rigs.waiting import holds, until

from appliance.capture.frames import FRAME_SAMPLES
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import VoiceDetector
from appliance.config import PhrasesSettings, SegmenterSettings, Settings
from appliance.daemon.pipeline import Pipeline
from appliance.infer.opening import open_transcriber
from appliance.model.bundle import Bundle
from appliance.records import Discarded, Frame, Samples, Window


def said(words: int) -> list[str]:
    return [f"w{word}" for word in range(1, words + 1)]


def ending(sound: Iterator[Samples], over: threading.Event) -> Iterator[Samples]:
    """The sound, word of its end, and a while for what comes of that."""
    yield from sound
    over.set()
    yield from sound_of([(0, 200)])


class SlowSegmenter(Segmenter):
    """Is busy for a while after it has given a window."""

    _given = False

    def push(self, frame: Frame) -> list[Window | Discarded]:
        found = super().push(frame)
        self._given = bool(found)
        return found

    @property
    def speculative_window(self) -> Window | None:
        if self._given:
            time.sleep(0.1)
        return super().speculative_window


class Pace:
    """Far faster than it was spoken, but for the time that a guess takes: it is there when the
    next frame comes, as on a fast machine."""

    _pipeline: Pipeline | None = None

    def watch(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def __call__(self) -> None:
        time.sleep(0.0005)
        task = self._pipeline.parts.backlog._speculation if self._pipeline else None
        if task:
            holds(lambda: task.transcription or not task.wanted, within_s=0.5, every_s=0.002)


def recorded() -> Iterator[Samples]:
    """The frames of tests/speech, and of some people, noise and music where there are any."""
    files = [one.file for one in heard_right()][::3]
    if (SHARED_AUDIO / "MANIFEST.tsv").exists():
        shared = [file for file, row in manifest(SHARED_AUDIO) if float(row["duration_s"]) <= 20]
        files += shared[::24]
    rng = np.random.default_rng(1)
    for file in files:
        sound = to_int16(np.concatenate((quiet(rng, 0.5), read(file), quiet(rng, 1.5))))
        whole = len(sound) // FRAME_SAMPLES * FRAME_SAMPLES
        yield from sound[:whole].reshape(-1, FRAME_SAMPLES)


def sleep_up_to(rng: random.Random, seconds: float) -> Callable[..., None]:
    return lambda *_: time.sleep(rng.uniform(0, seconds))


def test_the_rule_holds_and_no_word_is_lost_whatever_the_pauses(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(3):
        rng = random.Random(seed)
        account, slow = Account(), sleep_up_to(rng, 0.006)
        transcriber = WordTranscriber(before_encode=slow, before_write=slow, sure=seed % 2 == 0)
        sound, pace = sound_of(talk(rng, 40, (4, 30))), Pace()
        if seed:  # guesses are late, or come too late
            counters = hear(tmp_path / str(seed), sound, account, transcriber)
        else:
            counters = hear(
                tmp_path / "0", sound, account, transcriber, before_each=pace, more=pace.watch
            )
        seen.update(counters)
        assert broken_rules(account.told) == []
        assert account.words == said(40)
        for one in account.partials:
            kinds = {"eager": one.eager, "resumed": one.resumed, "goes_on": bool(one.continues)}
            seen.update(kinds | {"in_speech": not one.eager})
    happened = ("partials", "closed_early", "eager", "resumed", "goes_on", "in_speech")
    assert min(seen[name] for name in happened) > 0, seen


def test_where_nobody_wants_them_nothing_is_done(tmp_path: Path) -> None:
    account = Account(wants_partials=False)
    sound = sound_of(talk(random.Random(1), 10, (4, 30)))
    counters = hear(tmp_path, sound, account, WordTranscriber())
    assert account.words == said(10)
    assert account.partials == []
    assert "partials" not in counters


def test_a_server_on_the_network_is_asked_for_no_passes(tmp_path: Path) -> None:
    account = Account()
    sound = sound_of(talk(random.Random(1), 10, (4, 30)))
    counters = hear(tmp_path, sound, account, WordTranscriber(), backend="wyoming")
    assert account.words == said(10)
    assert "partials" not in counters
    assert any(one.eager for one in account.partials)


def test_ten_minutes_of_speech_and_silence_in_turn(tmp_path: Path) -> None:
    """Silences of 270 to 660 ms: a guess in most, and speech again just before, at and just after
    the end, be it early or not."""
    account = Account()
    sound = list(sound_of(talk(random.Random(2), 500, (9, 22))))
    assert len(sound) >= 20_000
    counters = hear(
        tmp_path, sound, account, WordTranscriber(), before_each=lambda: time.sleep(0.0002)
    )
    assert broken_rules(account.told) == []
    assert account.words == said(500)
    assert counters["guesses_used"] < counters["guesses"]


def test_a_decoder_slower_than_the_hang_over(tmp_path: Path) -> None:
    account = Account()
    transcriber = WordTranscriber(before_write=lambda: time.sleep(0.03))  # 60 frames
    hear(tmp_path, sound_of(talk(random.Random(3), 40, (9, 25))), account, transcriber)
    assert broken_rules(account.told) == []
    assert account.words == said(40)


@pytest.mark.parametrize("last", [False, True], ids=["of a partial text", "of a guess"])
def test_an_encoder_that_hangs_in_a_speculative_encode(tmp_path: Path, last: bool) -> None:
    hung = threading.Event()

    def hang_once(window: Window) -> None:
        if window.last is last and not hung.is_set():
            hung.set()
            time.sleep(0.5)

    account = Account()
    # a window as long as the sound: none is cut
    transcriber = WordTranscriber(60.0, before_encode=hang_once)
    sound = sound_of(talk(random.Random(4), 30, (9, 25)))
    hear(tmp_path, sound, account, transcriber)
    assert hung.is_set()
    assert broken_rules(account.told) == []
    assert account.words == said(30)


@pytest.mark.parametrize("speculate", [True, False])
def test_an_encoder_that_stands_still_while_everything_is_said(
    tmp_path: Path, speculate: bool
) -> None:
    """What was asked for meanwhile is of no use any more: the windows themselves go first."""
    over = threading.Event()
    account = Account()
    transcriber = WordTranscriber(60.0, before_encode=lambda _: over.wait())
    # the first word is too short for a pass of its own, the second long enough
    sound = ending(sound_of([(0, 20), (1, 20), (0, 30), (2, 80), (0, 30), (3, 20), (0, 40)]), over)
    settings = SegmenterSettings(speculate=speculate)
    hear(tmp_path, sound, account, transcriber, segmenter=settings)
    assert broken_rules(account.told) == []
    assert account.words == said(3)
    assert not any(one.resumed or (one.eager and not speculate) for one in account.partials)


def test_an_eager_text_is_withdrawn_before_the_transcript_comes(tmp_path: Path) -> None:
    """The window is full with the first frame that is said after the guess."""
    account = Account()
    sound = sound_of([(0, 20), (1, 45), (0, 12), (2, 30), (0, 40)])
    hear(tmp_path, sound, account, WordTranscriber(2.0, sure=False), cutter=SlowSegmenter)
    assert broken_rules(account.told) == []
    assert [one.resumed for one in account.partials if one.window == 1][-2:] == [False, True]
    assert account.words == said(2)


def test_the_encoder_works_for_no_partial_text_while_the_decoder_is_behind(tmp_path: Path) -> None:
    decoding, over = threading.Event(), threading.Event()
    running: list[Pipeline] = []

    def decode() -> None:
        decoding.set()
        over.wait()

    def given_up() -> bool:
        task = running[0].parts.partials._pass
        return task is not None and not task.wanted

    def sound() -> Iterator[Samples]:
        yield from sound_of([(0, 20), (1, 60)])
        assert decoding.wait(20), "the decoder has the first pass"
        yield from sound_of([(0, 12)])
        until(lambda: not running[0].parts.states.empty())  # and a guess waits for it
        yield from sound_of([(2, 60)])
        until(given_up)
        over.set()
        yield from sound_of([(0, 40)])

    account = Account()
    transcriber = WordTranscriber(60.0, before_write=decode)
    counters = hear(tmp_path, sound(), account, transcriber, more=running.append)
    assert counters["partials"] == 1
    assert account.words == said(2)


def test_a_partial_text_that_fails_is_none_and_harms_nothing(tmp_path: Path) -> None:
    def fail(window: Window) -> None:
        if not window.last:
            raise RuntimeError("no such luck")

    account = Account()
    transcriber = WordTranscriber(60.0, before_encode=fail)
    counters = hear(tmp_path, sound_of(talk(random.Random(5), 30, (9, 25))), account, transcriber)
    assert account.words == said(30)
    assert counters["partials"] > 1, "it is asked for again"
    assert all(one.eager or one.resumed for one in account.partials)


@pytest.mark.parametrize("early_ms", [0, 350])
def test_the_rule_holds_on_recordings(tmp_path: Path, built_in: Bundle, early_ms: int) -> None:
    settings = replace(Settings().segmenter, early_ms=early_ms)
    expected = tmp_path / "phrases.toml"
    texts = [one.text for one in heard_right()]
    expected.write_text(f"[phrases]\nall = {json.dumps(texts[::3])}\n")
    chosen = Settings(phrases=PhrasesSettings(file=str(expected) if early_ms else ""))
    account, pace = Account(), Pace()
    counters = hear(
        tmp_path,
        recorded(),
        account,
        open_transcriber(chosen, bundle=built_in),
        voice=lambda: VoiceDetector(Settings().voice),
        segmenter=settings,
        before_each=pace,
        more=pace.watch,
    )
    assert broken_rules(account.told) == []
    assert len(account.transcripts) >= 8
    eager = {(one.utterance_id, one.window) for one in account.partials if one.eager}
    assert len(eager) >= len(account.transcripts) / 2
    assert counters["partials"] >= len(account.transcripts) / 2
    assert bool(counters.get("closed_early")) is bool(early_ms)
