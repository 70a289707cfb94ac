"""Partial texts of a running appliance: the rule that readers rely on, and that nothing else
changes for them."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rigs.recordings import SHARED_AUDIO, heard_right, manifest
from rigs.sounds import quiet, read, to_int16
from rigs.speaking import Account, WordTranscriber, broken_rules, hear, sound_of, talk
from rigs.waiting import holds

from appliance.capture.frames import FRAME_SAMPLES
from appliance.capture.voice import VoiceDetector
from appliance.config import PhrasesSettings, Settings
from appliance.daemon.pipeline import Pipeline
from appliance.infer.opening import open_transcriber
from appliance.model.bundle import Bundle
from appliance.records import Samples


def said(words: int) -> list[str]:
    return [f"w{word}" for word in range(1, words + 1)]


class Pace:
    """Far faster than it was spoken, but for the time that a guess takes: it is there when the
    next frame comes, as on a fast machine."""

    _pipeline: Pipeline | None = None

    def watch(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def __call__(self) -> None:
        time.sleep(0.0005)
        task = self._pipeline.core.backlog._speculation if self._pipeline else None
        if task:
            holds(lambda: task.transcription or not task.wanted, within_s=0.5, every_s=0.002)


def recorded() -> Iterator[Samples]:
    """The frames of tests/speech, and of some people, noise and music where there are any."""
    files = [one.file for one in heard_right()][::3]
    if (SHARED_AUDIO / "MANIFEST.tsv").exists():
        shared = [file for file, row in manifest(SHARED_AUDIO) if float(row["duration_s"]) <= 20]
        files += shared[::72]
    rng = np.random.default_rng(1)
    for file in files:
        sound = to_int16(np.concatenate((quiet(rng, 0.5), read(file), quiet(rng, 1.5))))
        whole = len(sound) // FRAME_SAMPLES * FRAME_SAMPLES
        yield from sound[:whole].reshape(-1, FRAME_SAMPLES)


def test_where_nobody_wants_them_nothing_is_done(tmp_path: Path) -> None:
    account = Account(wants_partials=False)
    sound = sound_of(talk(random.Random(1), 10, (4, 30)))
    counters = hear(tmp_path, sound, account, WordTranscriber())
    assert account.words == said(10)
    assert account.partials == []
    assert "partials" not in counters


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
