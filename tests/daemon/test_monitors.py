"""What is wrong with speech over many sentences, and when that is over."""

import time
from dataclasses import replace

import numpy as np
import pytest
from rigs.publishing import transcript
from rigs.transcriber import HEARD
from rigs.windows import a_window

from appliance.config import Settings
from appliance.daemon.health import Health
from appliance.daemon.monitors import (
    QUIET_SENTENCES,
    UNSURE_S,
    UNSURE_SENTENCES,
    ActingMonitor,
    LevelMonitor,
)


def test_that_nothing_acts_is_a_problem_until_something_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    health = Health()
    monitor = ActingMonitor(Settings(), health)
    unsure = replace(transcript("turn on"), confidence=0.1, flags=("low_confidence",))
    for _ in range(UNSURE_SENTENCES - 1):
        monitor.on_transcript(unsure)
    monitor.on_transcript(replace(unsure, source="wyoming"))
    assert not health.snapshot().troubles
    monitor.on_transcript(unsure)
    (why,) = health.snapshot().troubles.values()
    assert why.startswith("nothing acts on what you say: none of 20 sentences and more was sure")
    assert "set assist.phrase and say it first, list what you say in [phrases] file" in why
    monitor.on_transcript(replace(transcript("turn on"), confidence=1.0))
    for _ in range(UNSURE_SENTENCES):
        monitor.on_transcript(unsure)
    assert not health.snapshot().troubles, "something acted today"
    tomorrow_s = time.monotonic() + UNSURE_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: tomorrow_s)
    monitor.on_transcript(unsure)
    assert health.snapshot().troubles


def test_speech_that_stays_too_quiet_is_a_problem_until_it_is_louder() -> None:
    health = Health()
    monitor = LevelMonitor(health)
    samples = np.resize(np.array([10, -10], np.int16), 32_000)  # -70 dBFS
    quiet = replace(a_window(), samples=samples)
    for _ in range(QUIET_SENTENCES - 1):
        monitor.on_transcription(quiet, HEARD)
    monitor.on_transcription(quiet, replace(HEARD, text=""))
    assert not health.snapshot().troubles, "that was no speech"
    monitor.on_transcription(quiet, HEARD)
    (why,) = health.snapshot().troubles.values()
    assert why.startswith("speech is too quiet, -70 dBFS in the last 5 sentences; below -65 dBFS")
    monitor.on_transcription(replace(quiet, samples=samples * 10), HEARD)
    assert not health.snapshot().troubles
