"""The model: its bundle, the processor's integer arithmetic, a known sentence on the CPU."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from appliance.cli.doctor.outcome import BUNDLE, Check, Outcome, Surroundings, failed, ok, skipped
from appliance.config import Settings
from appliance.records import SAMPLE_RATE, Frame, Transcription, Window

if TYPE_CHECKING:
    from appliance.infer import Products
    from appliance.model import Bundle

FILE = Path(__file__).resolve().parent / "sentence.flac"
TEXT = "turn off the cellar fan"
"""A spoken sentence with its text, for the self-tests: synthesised, of no living voice."""


def spoken_frames(file: Path = FILE) -> Iterator[Frame]:
    """The sentence, or another recording, as frames of 30 ms; raises AudioError."""
    from appliance.capture import Recording

    with Recording(str(file), real_time=False) as recording:
        yield from recording.frames()


def spoken_window(longest_s: float, file: Path = FILE) -> Window:
    """The same as one window, cut off at `longest_s`; raises AudioError."""
    samples = np.concatenate([frame.samples for frame in spoken_frames(file)])
    samples = samples[: int(longest_s * SAMPLE_RATE)]
    length_s = len(samples) / SAMPLE_RATE
    return Window("doctor", 1, True, samples, 0.0, length_s, length_s)


def without_model(around: Surroundings) -> str:
    """Why no model is looked at: there is none, or nothing that runs one; empty where there is."""
    from appliance.infer import lacking_model, lacking_runtime, transcribed_elsewhere

    if lacking_runtime():
        return "nothing on this machine runs a model"
    elsewhere = transcribed_elsewhere(around.settings) and lacking_model(around.settings)
    return "this machine has no model; another one transcribes" if elsewhere else ""


def words(text: str) -> list[str]:
    """Words alone, in lower case, for comparing."""
    return re.findall(r"[\w']+", text.casefold())


def bundle(around: Surroundings) -> Outcome:
    """The configured bundle is whole: every checksum, every size."""
    if why := without_model(around):
        return skipped(why)
    around.doing("reading the bundle and its checksums")
    from appliance.model import load_bundle

    found = load_bundle(around.settings.model.bundle)
    size_mb = sum((found.folder / name).stat().st_size for name in found.files) / 1e6
    line = (
        f"{found.name}, {', '.join(found.languages[:3])}{'...' if found.languages[3:] else ''}, "
        f"{found.window_s:g} s windows, {len(found.files)} files of {size_mb:.1f} MB whole"
    )
    if found.demo_model:
        line += "; a demonstration model: `roomscribe model add tiny` brings a real one"
    return ok(line)


def arithmetic(around: Surroundings) -> Outcome:
    """ONNX Runtime's products of 8- and 4-bit numbers are right on this processor."""
    if why := without_model(around):
        return skipped(why)
    around.doing("loading the model's manifest")
    from appliance.model import load_bundle

    found = load_bundle(around.settings.model.bundle)
    around.doing("computing INT8 products with known results")
    return judge_arithmetic(found)


def judge_arithmetic(found: Bundle, products: Products | None = None) -> Outcome:
    """The outcome for a bundle, with `products` in place of ONNX Runtime's."""
    from appliance.infer import LARGEST_ERROR, find_trouble

    if found.quantize == "none":
        return skipped(f"{found.name} computes with 32 bits")
    if trouble := find_trouble(found, products):
        return failed(trouble.found, trouble.fix)
    return ok(f"products of 8 and 4 bits are right within {LARGEST_ERROR:.0%}")


def self_test(around: Surroundings) -> Outcome:
    """A known sentence in, known text out, with the CPU's encoder."""
    if why := without_model(around):
        return skipped(why)
    around.doing("loading the model")
    from appliance.infer import open_transcriber
    from appliance.model import ENCODER_FILE, load_bundle

    if ENCODER_FILE not in load_bundle(around.settings.model.bundle).files:
        return skipped("the model has no encoder for the CPU")
    transcriber = open_transcriber(on_cpu(around.settings))
    around.doing("transcribing the packaged sentence")
    begun_s = time.monotonic()
    result = transcriber.transcribe(spoken_window(transcriber.bundle.window_s))
    took_ms = 1000 * (time.monotonic() - begun_s)
    return judge_text(transcriber.bundle.name, result, took_ms)


def judge_text(model: str, result: Transcription, took_ms: float) -> Outcome:
    """The outcome for what `model` made of the sentence: the built-in one knows it word for word;
    others may spell it otherwise, and a model of another language makes anything of it."""
    from appliance.model import BUILT_IN

    timing = f"encoder {result.encode_ms:.0f} ms, all {took_ms:.0f} ms"
    found = f"{TEXT!r} is read as {result.text!r}; {timing}"
    if model == BUILT_IN and words(result.text) != words(TEXT):
        return failed(found, "reinstall roomscribe; if that does not help, report it as a fault")
    fix = f"install the model {model} again, or take another one"
    if not words(result.text):
        return failed(found, fix)
    if not result.ended:
        return failed(f"{found}; the decoder does not come to an end", fix)
    return ok(found)


def on_cpu(settings: Settings) -> Settings:
    """The same settings with the CPU's encoder."""
    return replace(settings, encoder=replace(settings.encoder, backend="cpu"))


CHECKS = (
    Check(
        BUNDLE,
        bundle,
        "roomscribe model list shows what is installed",
        within_s=120,
        needs=("[model]",),
    ),
    Check(
        "INT8 arithmetic",
        arithmetic,
        "install onnxruntime again",
        within_s=120,
        needs=("[model]", BUNDLE),
    ),
    Check(
        "self-test on the CPU",
        self_test,
        "install the model again, or take another one",
        within_s=180,
        needs=("[model]", "[encoder]", "[decoder]", "[gates]", BUNDLE),
    ),
)
