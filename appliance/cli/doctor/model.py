"""Check the model: its bundle, and a known sentence on the CPU."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from appliance.cli.doctor.outcome import BUNDLE, Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import Settings
from appliance.records import SAMPLE_RATE, Transcription, Window

if TYPE_CHECKING:
    from appliance.model import Bundle

FILE = Path(__file__).resolve().parent / "sentence.flac"
TEXT = "what is the weather like in chicago"
"""The test sentence and its text: a synthetic voice that OpenAI's tiny.en and base hear right."""


def spoken_window(longest_s: float) -> Window:
    """Return the test sentence as one window of at most `longest_s`. Raises AudioError."""
    from appliance.capture import Recording

    with Recording(str(FILE), real_time=False) as recording:
        samples = np.concatenate([frame.samples for frame in recording.frames()])
    samples = samples[: int(longest_s * SAMPLE_RATE)]
    length_s = len(samples) / SAMPLE_RATE
    return Window("doctor", 1, True, samples, 0.0, length_s, length_s)


def without_model(around: Surroundings) -> str:
    """Return why this machine's model is not checked; empty if it is."""
    from appliance.infer import lacking_model, lacking_runtime, transcribed_elsewhere

    if lacking_runtime():
        return "this machine has no software to run a model"
    elsewhere = transcribed_elsewhere(around.settings) and lacking_model(around.settings)
    return "this machine has no model; another one transcribes" if elsewhere else ""


def words(text: str) -> list[str]:
    """Return the words in lower case, for comparing."""
    return re.findall(r"[\w']+", text.casefold())


def word_errors(right: list[str], written: list[str]) -> int:
    """Return how many words to change, remove or add (Levenshtein)."""
    row = list(range(len(written) + 1))
    for number, word in enumerate(right, 1):
        before, row[0] = row[0], number
        for i, other in enumerate(written, 1):
            before, row[i] = row[i], min(row[i] + 1, row[i - 1] + 1, before + (word != other))
    return row[-1]


def compare_text(text: str) -> str:
    """Return what was heard in place of the test sentence, and how many of its words are wrong."""
    right = words(TEXT)
    wrong = word_errors(right, words(text))
    if not wrong:
        return f"heard the test sentence word for word: {text.strip()!r}"
    return f"heard {text.strip()!r}, {wrong} of {len(right)} words wrong: it is {TEXT!r}"


def bundle(around: Surroundings) -> Outcome:
    """Check the configured bundle: every checksum, every size."""
    if why := without_model(around):
        return skipped(why)
    around.doing("reading the bundle and its checksums")
    from appliance.model import load_bundle

    found = load_bundle(around.settings.model.bundle)
    size_mb = sum((found.folder / name).stat().st_size for name in found.files) / 1e6
    line = (
        f"{found.title}, {', '.join(found.languages[:3])}{'...' if found.languages[3:] else ''}, "
        f"{found.window_s:g} s windows, {len(found.files)} files, {size_mb:.1f} MB, all intact"
    )
    return ok(line)


def self_test(around: Surroundings) -> Outcome:
    """Check that the model transcribes the test sentence with the CPU's encoder."""
    if why := without_model(around):
        return skipped(why)
    around.doing("loading the model")
    from appliance.infer import open_transcriber
    from appliance.model import ENCODER_FILE, load_bundle

    if ENCODER_FILE not in load_bundle(around.settings.model.bundle).files:
        return skipped("the model has no encoder for the CPU")
    transcriber = open_transcriber(on_cpu(around.settings))
    around.doing("transcribing the test sentence")
    begun_s = time.monotonic()
    result = transcriber.transcribe(spoken_window(transcriber.bundle.window_s))
    took_ms = 1000 * (time.monotonic() - begun_s)
    return judge_text(transcriber.bundle, result, took_ms)


def judge_text(model: Bundle, result: Transcription, took_ms: float) -> Outcome:
    """Return the outcome for the text of the test sentence.

    The built-in model must hear it word for word. A model for another language may write any words.
    """
    from appliance.model import BUILT_IN

    timing = f"encoder {result.encode_ms:.0f} ms, total {took_ms:.0f} ms"
    found = f"{model.title} {compare_text(result.text)}; {timing}"
    if model.name == BUILT_IN and words(result.text) != words(TEXT):
        return failed(found, "reinstall roomscribe; if that does not help, report a bug")
    fix = f"add the model {model.name} again, or choose another one"
    if not words(result.text):
        return failed(found, fix)
    if not result.ended:
        return failed(f"{found}; the decoder did not finish", fix)
    return ok(found)


def on_cpu(settings: Settings) -> Settings:
    """Return the settings with the CPU's encoder."""
    return replace(settings, encoder=replace(settings.encoder, backend="cpu"))


CHECKS = (
    Check(
        BUNDLE,
        bundle,
        "choose one that `roomscribe model list` shows, or add it again",
        within_s=120,
        needs=("[model]",),
    ),
    Check(
        "self-test on the CPU",
        self_test,
        "add the model again, or choose another one",
        within_s=180,
        needs=("[model]", "[encoder]", "[decoder]", "[gates]", BUNDLE),
    ),
)
