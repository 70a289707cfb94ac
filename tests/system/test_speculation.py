"""Windows and transcripts are the same with and without transcribing ahead, on every recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from rigs.recordings import SHARED_AUDIO, manifest, sentences
from rigs.sounds import quiet, read, to_int16

from appliance.capture.frames import Framer
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import Judgement, VoiceDetector
from appliance.config import Settings, SpoolSettings, StoreSettings
from appliance.daemon.backlog import Backlog
from appliance.daemon.health import Health
from appliance.daemon.transcription import TaskTranscriber
from appliance.infer import phrases
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Transcriber
from appliance.model.bundle import Bundle
from appliance.records import Frame, Transcript, Window
from appliance.store.store import Store

LONGEST_S, EVERY = 12.0, 6
"""A recording of people, noise or music that is longer is left out; of the others every sixth one
is heard, and every second sentence: what differs between both ways would differ in most."""
TIMES = ("start", "end", "encode_ms", "decode_ms", "queue_ms", "latency_ms")


@pytest.fixture(scope="module")
def transcriber(built_in: Bundle) -> Iterator[Transcriber]:
    with open_transcriber(Settings(), bundle=built_in) as opened:
        yield opened


def recordings() -> list[Path]:
    """tests/speech, and people, noise and music where there are any."""
    found = [one.file for one in sentences()[::2]]
    if (SHARED_AUDIO / "MANIFEST.tsv").exists():
        shared = manifest(SHARED_AUDIO)
        found += [file for file, row in shared if float(row["duration_s"]) <= LONGEST_S][::EVERY]
    return found


class Judged:
    """Judgements of a voice detector, made once for both ways to transcribe."""

    def __init__(self, judgements: list[Judgement]) -> None:
        self._judgements = iter(judgements)

    def push(self, frame: Frame) -> Judgement:
        return next(self._judgements)

    def reset(self) -> None:
        raise AssertionError("no frame is missing")


def judged(frames: list[Frame]) -> list[Judgement]:
    detector = VoiceDetector(Settings().voice)
    return [detector.push(frame) for frame in frames]


def transcribed(
    transcriber: Transcriber,
    sounds: list[tuple[list[Frame], list[Judgement]]],
    folder: Path,
    *,
    speculate: bool,
) -> tuple[list[bytes], list[dict[str, object]], dict[str, int]]:
    """What the stages make of the sounds, taking turns after each frame: each window's samples,
    each transcript but for its times and ids, and the counters."""
    settings = replace(
        Settings(),
        spool=SpoolSettings(enabled=False, path=str(folder / "none")),
        store=StoreSettings(path=str(folder)),
    )
    health, windows = Health(), []
    with Store.open(settings.store) as store:
        tasks = TaskTranscriber(settings, transcriber, store, health)
        backlog = Backlog(settings, health, tasks.discard)
        for frames, judgements in sounds:
            window_s = transcriber.bundle.window_s
            segmenter = Segmenter(Judged(judgements), settings.segmenter, window_s)
            for frame in frames:
                for found in segmenter.push(frame):
                    if isinstance(found, Window):
                        windows.append(found.samples.tobytes())
                        backlog.push(found)
                    else:
                        tasks.discard(found)
                if speculate:
                    backlog.speculate(segmenter.speculative_window, tasks.speculation)
                lease = backlog.take_window(0)
                task = tasks.leased_task(lease) if lease else backlog.take_speculation()
                if task:
                    tasks.encode(task)
                    tasks.decode(task)
        texts = [vars_of(row.transcript) for row in store.read_after(0, 10_000)]
    return windows, texts, health.counters()


def vars_of(transcript: Transcript) -> dict[str, object]:
    """The fields that do not depend on when and how fast it was made."""
    left_out = {*TIMES, "id", "utterance_id"}
    return {name: value for name, value in asdict(transcript).items() if name not in left_out}


@pytest.mark.timeout(400)
def test_nothing_changes_but_the_time_it_takes(
    transcriber: Transcriber, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so that a busy processor does not cut a search of expected sentences short
    monkeypatch.setattr(phrases, "WITHIN_S", 60.0)
    rng = np.random.default_rng(1)
    sounds = []
    for file in recordings():
        parts = (quiet(rng, 1), read(file), quiet(rng, 2))
        frames = list(Framer().push(to_int16(np.concatenate(parts)), 0.0))
        sounds.append((frames, judged(frames)))
    plain = transcribed(transcriber, sounds, tmp_path / "plain", speculate=False)
    ahead = transcribed(transcriber, sounds, tmp_path / "ahead", speculate=True)
    assert len(plain[0]) >= 20
    assert ahead[0] == plain[0]
    assert ahead[1] == plain[1]
    guesses, used = ahead[2].pop("guesses"), ahead[2].pop("guesses_used")
    assert ahead[2] == plain[2]
    assert used > 0.5 * len(plain[0])
    assert used <= guesses
