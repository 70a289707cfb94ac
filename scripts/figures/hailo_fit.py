"""Measure the second pass and `roomscribe model fit` with an NPU's encoder, on the simulator.

Part of `scripts/measure hailo` (`--only second`, `--only fit`). The texts are the built-in model's.
The chip is the tests' simulator, which computes the states on the CPU and takes at least the 31 ms
of a Hailo-8 for each window. Times are CPU time without that computation, plus 31 ms for each
window on the chip: what it takes on a machine with a chip that does nothing else. The limit after
which a chip counts as failed is longer than the appliance's, because on a busy machine the
simulator is slower than any chip.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from evening_run.results import processor
from rigs.hailo_simulator.control import Simulator, with_hef

from appliance.config import EncoderSettings, Settings
from appliance.infer.hailo import npu
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Transcriber
from appliance.lab.fit.main import FitRequest, fit_model
from appliance.lab.fit.speech import CONDITIONS, only_window, read_sound, shipped_clips
from appliance.model.bundle import enter_files, load_bundle
from appliance.records import Window

FITTED = ("calibration", "endings", "phrase_calibration", "vtln")
LATENCY_MS = 31.0
PATIENT = npu.NpuLimits(job_ms=20_000, first_job_ms=20_000)
DOUBTFUL = 20
"""Windows with a second pass that are measured."""
SETTINGS = replace(
    Settings(),
    encoder=EncoderSettings(backend="hailo", threads=1),
    decoder=replace(Settings().decoder, threads=1, drafts=False),
)
Row = tuple[str, str]


def measure_fit(simulator: Simulator, bundle: str, folder: Path, every: int) -> list[Row]:
    """Return the rows of a fit."""
    target = with_hef(load_bundle(bundle), folder / "fit").folder
    enter_files(target, (), **dict.fromkeys(FITTED), short_windows=False)
    with Chip(simulator) as chip:
        facts = fit_model(FitRequest(target, every=every), SETTINGS, follow)
        took_s = chip.spent_ms() / 1000
    fitted = facts["fitted"]
    return [
        (
            f"model fit with {fitted['clips']} sentences (of {len(shipped_clips())})",
            f"{took_s:.0f} s; encoded by {fitted['encoded']}; {processor()}",
        ),
        (
            "... calibration error and area in its cross-validation; second pass",
            f"{fitted['calibration_error']}, {fitted['area']}; {facts['vtln']}",
        ),
    ]


def measure_second_pass(simulator: Simulator, name: str, folder: Path) -> list[Row]:
    """Return the time of doubtful windows: without a second pass, with the appliance's, whose
    encoder is the CPU's, and with one whose encoder is the chip's."""
    bundle = with_hef(load_bundle(name), folder / "second")
    below = bundle.vtln.below if bundle.vtln else 0.0
    whole = replace(bundle, short_windows=False)
    found: dict[str, tuple[float, list[str]]] = {}
    with Chip(simulator) as chip:
        with open_transcriber(SETTINGS, bundle=replace(bundle, vtln=None)) as plain:
            windows = doubtful(plain, below)
            found["without a second pass"] = timed(chip, plain, windows)
        for way, kind in (("short windows on the CPU", bundle), ("whole windows on it", whole)):
            with open_transcriber(SETTINGS, bundle=kind) as transcriber:
                found[f"second pass: {way}"] = timed(chip, transcriber, windows)
        with open_transcriber(SETTINGS, bundle=bundle) as transcriber:
            if transcriber._vtln:
                transcriber._vtln._encoder = transcriber.encoder
            found["second pass: the chip"] = timed(chip, transcriber, windows)
    texts = [texts for _, texts in found.values()][1:]
    rows = [(f"doubtful window, {way}", f"p50 {ms:.0f} ms") for way, (ms, _) in found.items()]
    same = [sum(a == b for a, b in zip(texts[-1], each, strict=True)) for each in texts[:-1]]
    return [
        *rows,
        (f"the chip's text of {len(windows)}: short, whole windows on the CPU", str(same)),
    ]


def follow(step: str, done: int, total: int) -> None:
    """Print a line at each hundredth."""
    if done % 100 == 0:
        print(f"    {step}: {done} of {total}", flush=True)


class Chip:
    """The time that the simulator would take as a chip; use as `with Chip(simulator) as chip:`."""

    def __init__(self, simulator: Simulator) -> None:
        self._inner = simulator.inner
        self._computed_s, self._begun_s = 0.0, time.process_time()
        self._before = len(self._inner.history)

    def __enter__(self) -> Chip:
        patient = functools.partial(npu.open_npu, limits=PATIENT)
        compute = self._inner.Network.compute

        def timed(network: Any, job: Any) -> Any:
            begun_s = time.process_time()  # nothing else runs meanwhile
            found = compute(network, job)
            self._computed_s += time.process_time() - begun_s
            return found

        self._patches = (
            patch.object(npu, "open_npu", patient),
            patch.object(self._inner.Network, "compute", timed),
        )
        for each in self._patches:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._patches:
            each.stop()

    def spent_ms(self) -> float:
        """Milliseconds so far: this process's CPU time without the states' computation, and
        LATENCY_MS for each window on the chip."""
        waited_ms = LATENCY_MS * (len(self._inner.history) - self._before)
        return waited_ms + 1000 * (time.process_time() - self._begun_s - self._computed_s)


def doubtful(transcriber: Transcriber, below: float) -> list[Window]:
    """Return windows whose text has a lower mean log-probability."""
    found: list[Window] = []
    for clip in shipped_clips():
        sound = read_sound(clip.file)
        window = only_window(sound, CONDITIONS[2], clip.file.name, transcriber.bundle.window_s)
        if window and transcriber.transcribe(window).avg_logprob < below:
            found.append(window)
        if len(found) == DOUBTFUL:
            break
    return found


def timed(
    chip: Chip, transcriber: Transcriber, windows: Sequence[Window]
) -> tuple[float, list[str]]:
    """Return the median of the milliseconds of a window, and the texts."""
    texts, took_ms = [], []
    for window in windows:
        begun_ms = chip.spent_ms()
        texts.append(transcriber.transcribe(window).text)
        took_ms.append(chip.spent_ms() - begun_ms)
    return float(np.median(took_ms)), texts
