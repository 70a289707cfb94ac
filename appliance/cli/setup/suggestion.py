"""Which Whisper fits this machine: the built-in one is timed on it, the others follow from that.

Of the models that answer in time, the one with the fewest wrong words is proposed.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from appliance.config import ModelSettings, Settings
from appliance.system import Child, ChildDiedError, ChildFailedError, free_memory

MEASURE_S = 60.0
"""Longest time that the measurement may take."""
RUNS = 3
TIMES = {"tiny": 1.0, "base": 2.2, "small": 8.5}
"""A short sentence's time, by that of tiny. base: measured with INT8, windows of 10 s and 20 tokens
on one core of an x86 server; small: by what its encoder multiplies and its decoder reads."""
ON_CHIP = "tiny"
"""Proposed with a Hailo where nothing else is quick enough: Hailo publishes it for each chip."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a model is expected to need on this machine."""

    seconds: float
    """For a short sentence."""
    memory_gb: float
    """To build it, which takes more than to run it."""
    fits: bool
    """True if that much memory is free."""

    def __str__(self) -> str:
        lacks = "" if self.fits else " (more than is free)"
        return f"memory {self.memory_gb:.2f} GB{lacks}, about {self.seconds:.1f} s per sentence"


def suggest(
    present: str,
    installed: Container[str],
    estimates: Mapping[str, Estimate],
    *,
    reachable: bool,
    chip: str | None = None,
    within_s: float,
) -> str:
    """Return the model to propose: `present`, unless that is the built-in one and another fits.

    That is the measured model with the fewest wrong words, of those that need at most `within_s` on
    the CPU or run on the `chip`; the chip goes first where both do as well. One that is not
    installed is proposed only if the hub is `reachable`.
    """
    from appliance.convert import CHANCE, WRONG_WORDS, words_on_chip
    from appliance.model import BUILT_IN

    if present != BUILT_IN:
        return present
    to_be_had = {
        name for name, estimate in estimates.items()
        if name in installed or (reachable and estimate.fits)
    }  # fmt: skip
    on_cpu = {
        name: wrong for name, wrong in WRONG_WORDS.items()
        if name in to_be_had and estimates[name].seconds <= within_s
    }  # fmt: skip
    on_chip = {
        name: wrong for name, wrong in words_on_chip(chip or "").items()
        if name in to_be_had - {BUILT_IN}
    }  # fmt: skip
    best = min(on_cpu, key=WRONG_WORDS.__getitem__, default="")
    best_on_chip = min(on_chip, key=on_chip.__getitem__, default="")
    if best_on_chip and (not best or on_chip[best_on_chip] <= on_cpu[best] + CHANCE):
        return best_on_chip
    if not best and chip and (reachable or ON_CHIP in installed):
        return ON_CHIP
    return best or present


def estimate_models(tiny_s: float | None) -> dict[str, Estimate]:
    """Return an estimate for each published model, from the seconds that tiny.en needs for a short
    sentence; none if these are unknown."""
    from appliance.model import library

    if tiny_s is None:
        return {}
    free_gb = free_memory() / 1e9
    return {
        name: Estimate(
            tiny_s * TIMES[name.removesuffix(".en")],
            model.memory_gb,
            model.memory_gb < free_gb,
        )
        for name, model in library.PUBLISHED.items()
    }


def time_built_in(settings: Settings) -> float | None:
    """Return the seconds that the built-in model needs for a short sentence on this machine's CPU,
    measured in a process of its own; None if it is not there or fails."""
    try:
        with Child(_time, settings) as child:
            return float(child.receive(MEASURE_S))
    except (OSError, TimeoutError, ChildDiedError, ChildFailedError):
        return None


def _time(_connection: Connection, settings: Settings) -> float:
    """Transcribe the doctor's sentence RUNS times; the fastest time counts."""
    from appliance.cli.doctor.model import spoken_window
    from appliance.infer import open_transcriber
    from appliance.model import BUILT_IN

    encoder = replace(settings.encoder, backend="cpu")
    built_in = replace(Settings(), model=ModelSettings(bundle=BUILT_IN), encoder=encoder)
    with open_transcriber(built_in) as transcriber:
        window = spoken_window(transcriber.bundle.window_s)
        results = [transcriber.transcribe(window) for _ in range(RUNS)]
    return min(one.encode_ms + one.decode_ms for one in results) / 1000
