"""Measure the second pass and `roomscribe model fit` with an NPU's encoder, on the simulator.

Part of `scripts/measure hailo` (`--only fit`). The texts are the built-in model's; the chip is the
tests' simulator, which computes the states on the CPU and takes at least the 31 ms of a Hailo-8 for
each window. Times are CPU time without that computation, plus 31 ms for each window on the chip:
what it takes on a machine with a chip that does nothing else. The limit after which a chip counts
as failed is longer than the appliance's, because on a busy machine the simulator is slower than any
chip.
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
    """Return the rows of both."""
    opened = functools.partial(npu.open_npu, limits=PATIENT)
    with patch.object(npu, "open_npu", opened), Chip(simulator) as chip:
        source = load_bundle(bundle)
        rows = second_pass(chip, with_hef(source, folder / "second").folder)
        for name, value in rows:
            print(f"{name:52} {value}", flush=True)
        target = with_hef(source, folder / "fit").folder
        enter_files(target, (), **dict.fromkeys(FITTED), short_windows=False)
        begun_ms = chip.spent_ms()
        facts = fit_model(FitRequest(target, every=every), SETTINGS, follow)
        took_s = (chip.spent_ms() - begun_ms) / 1000
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


def follow(step: str, done: int, total: int) -> None:
    """Print a line at each hundredth."""
    if done % 100 == 0:
        print(f"    {step}: {done} of {total}", flush=True)


class Chip:
    """The time that the simulator would take as a chip; use as `with Chip(simulator) as chip:`."""

    def __init__(self, simulator: Simulator) -> None:
        self._inner = simulator.inner
        self._computed_s = 0.0

    def __enter__(self) -> Chip:
        compute = self._inner.Network.compute

        def timed(network: Any, job: Any) -> Any:
            begun_s = time.process_time()  # nothing else runs meanwhile
            found = compute(network, job)
            self._computed_s += time.process_time() - begun_s
            return found

        self._patch = patch.object(self._inner.Network, "compute", timed)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def spent_ms(self) -> float:
        """Milliseconds of this process's CPU time without the states' computation, and LATENCY_MS
        for each window on the chip."""
        waited_ms = LATENCY_MS * len(self._inner.history)
        return waited_ms + 1000 * (time.process_time() - self._computed_s)


def second_pass(chip: Chip, folder: Path) -> list[Row]:
    """Return the time of doubtful windows: without a second pass, with the appliance's, whose
    encoder is the CPU's, and with one whose encoder is the chip's."""
    bundle = load_bundle(folder)
    below = bundle.vtln.below if bundle.vtln else 0.0
    found: dict[str, tuple[float, list[str]]] = {}
    with open_transcriber(SETTINGS, bundle=replace(bundle, vtln=None)) as plain:
        windows = doubtful(plain, below)
        found["without a second pass"] = timed(chip, plain, windows)
    for name, on_chip in (("on the CPU", False), ("on the chip", True)):
        with open_transcriber(SETTINGS, bundle=bundle) as transcriber:
            if on_chip and transcriber._vtln:
                transcriber._vtln._encoder = transcriber.encoder
            found[f"second pass encoded {name}"] = timed(chip, transcriber, windows)
    same = sum(
        one == other
        for one, other in zip(*(texts for _, texts in list(found.values())[1:]), strict=True)
    )
    rows = [(f"doubtful window, {name}", f"p50 {ms:.0f} ms") for name, (ms, _) in found.items()]
    return [*rows, ("... the same text on both", f"{same} of {len(windows)}")]


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
