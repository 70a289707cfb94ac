"""Measure the second pass and `roomscribe model fit` with an NPU's encoder, on the simulator.

Part of `scripts/measure hailo` (`--only fit`). The texts are the built-in model's; the chip is the
tests' simulator, which computes the states on the CPU and takes at least the 31 ms of a Hailo-8 for
each window. Times are CPU time plus 31 ms for each window on the chip, so a busy machine makes no
difference to them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rigs.hailo_simulator.control import Simulator, with_hef

from appliance.config import EncoderSettings, Settings
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Transcriber
from appliance.lab.fit.main import FitRequest, fit_model
from appliance.lab.fit.speech import CONDITIONS, only_window, read_sound, shipped_clips
from appliance.model.bundle import enter_files, load_bundle
from appliance.records import Window

FITTED = ("calibration", "endings", "phrase_calibration", "vtln")
LATENCY_MS = 31.0
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
    source = load_bundle(bundle)
    rows = second_pass(simulator, with_hef(source, folder / "second").folder)
    for name, value in rows:
        print(f"{name:52} {value}", flush=True)
    target = with_hef(source, folder / "fit").folder
    enter_files(target, (), **dict.fromkeys(FITTED), short_windows=False)
    spent = Spent(simulator)
    facts = fit_model(FitRequest(target, every=every), SETTINGS, lambda *_: None)
    fitted = facts["fitted"]
    return [
        (
            f"model fit with {fitted['clips']} sentences (of {len(shipped_clips())})",
            f"{spent.ms() / 1000:.0f} s (the states' computation included); encoded by "
            f"{fitted['encoded']}",
        ),
        (
            "... calibration error and area in its cross-validation; second pass",
            f"{fitted['calibration_error']}, {fitted['area']}; {facts['vtln']}",
        ),
    ]


class Spent:
    """The CPU time of this process since the beginning, and LATENCY_MS for each window on the chip:
    what it would take on a machine that does nothing else."""

    def __init__(self, simulator: Simulator) -> None:
        self._jobs, self._begun_s = simulator.inner.history, time.process_time()
        self._before = len(self._jobs)

    def ms(self) -> float:
        """Milliseconds so far."""
        waited_ms = LATENCY_MS * (len(self._jobs) - self._before)
        return waited_ms + 1000 * (time.process_time() - self._begun_s)


def second_pass(simulator: Simulator, folder: Path) -> list[Row]:
    """Return the time of doubtful windows: without a second pass, with the appliance's, whose
    encoder is the CPU's, and with one whose encoder is the chip's."""
    bundle = load_bundle(folder)
    below = bundle.vtln.below if bundle.vtln else 0.0
    found: dict[str, tuple[float, list[str]]] = {}
    with open_transcriber(SETTINGS, bundle=replace(bundle, vtln=None)) as plain:
        windows = doubtful(plain, below)
        found["without a second pass"] = timed(simulator, plain, windows)
    for name, on_chip in (("on the CPU", False), ("on the chip", True)):
        with open_transcriber(SETTINGS, bundle=bundle) as transcriber:
            if on_chip and transcriber._vtln:
                transcriber._vtln._encoder = transcriber.encoder
            found[f"second pass encoded {name}"] = timed(simulator, transcriber, windows)
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
    simulator: Simulator, transcriber: Transcriber, windows: Sequence[Window]
) -> tuple[float, list[str]]:
    """Return the median of the milliseconds of a window, and the texts. Each is transcribed twice:
    the second time the simulator only waits."""
    texts, took_ms = [], []
    for window in windows:
        transcriber.transcribe(window)
        spent = Spent(simulator)
        texts.append(transcriber.transcribe(window).text)
        took_ms.append(spent.ms())
    return float(np.median(took_ms)), texts
