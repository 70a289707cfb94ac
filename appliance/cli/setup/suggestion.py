"""Which Whisper fits this machine: the built-in one is timed on it, the others follow from that.

The times of the others are scaled by what an encoder multiplies and by the weights that a decoder
reads for each token. Of the models that answer in time, the one with the fewest wrong words is
proposed.
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
MELS = 80
ON_CHIP = "tiny"
"""Proposed with a Hailo. Hailo publishes two encoders for all chips, of tiny and base, and that of
base (5 s) was measured to lose more words."""
WRONG_WORDS = {"tiny.en": 13.4, "base": 13.5}
"""Percent of 1,091 words in 98 recordings, most of them of people; INT8, windows of 10 s. Others
were not measured and are not proposed."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of one of OpenAI's models (Radford and others 2022, table 1)."""

    d_model: int
    layers: int
    """Of the encoder, and as many of the decoder."""
    vocabulary: int = 51_865

    @property
    def encoder(self) -> float:
        """Multiplications of the encoder in a window: projections, attention, convolutions."""
        from appliance.model import POSITIONS_PER_SECOND, WINDOW_S  # imports numpy

        positions = round(WINDOW_S * POSITIONS_PER_SECOND)
        layer = positions * self.d_model * (12 * self.d_model + 2 * positions)
        convolutions = 3 * positions * self.d_model * (2 * MELS + self.d_model)
        return self.layers * layer + convolutions

    @property
    def decoder(self) -> float:
        """Weights that the decoder reads for a token."""
        return self.d_model * (14 * self.layers * self.d_model + self.vocabulary)


SHAPES = {"tiny": Shape(384, 4), "base": Shape(512, 6), "small": Shape(768, 12)}


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds that tiny.en needs for a short sentence on this machine's CPU."""

    encoder_s: float
    decoder_s: float

    def scaled(self, shape: Shape) -> float:
        """Return the seconds that a model of that shape needs for the sentence."""
        tiny = SHAPES["tiny"]
        encoder_s = self.encoder_s * shape.encoder / tiny.encoder
        return encoder_s + self.decoder_s * shape.decoder / tiny.decoder


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
    chip: bool = False,
    within_s: float,
) -> str:
    """Return the model to propose: `present`, unless that is the built-in one and another fits.

    With a `chip`, that is ON_CHIP. Without one, it is the measured model with the fewest wrong
    words that needs at most `within_s`. One that is not installed is proposed only if the hub is
    `reachable`.
    """
    from appliance.model import BUILT_IN

    if present != BUILT_IN:
        return present
    if chip and (reachable or ON_CHIP in installed):
        return ON_CHIP
    fitting = [
        name
        for name, estimate in estimates.items()
        if name in WRONG_WORDS
        and (name in installed or (reachable and estimate.fits))
        and estimate.seconds <= within_s
    ]
    return min(fitting, key=WRONG_WORDS.__getitem__, default=present)


def estimate_models(timing: Timing | None) -> dict[str, Estimate]:
    """Return an estimate for each published model; none without a timing."""
    from appliance.model import library

    if timing is None:
        return {}
    free_gb = free_memory() / 1e9
    return {
        name: Estimate(
            timing.scaled(SHAPES[name.removesuffix(".en")]),
            model.memory_gb,
            model.memory_gb < free_gb,
        )
        for name, model in library.PUBLISHED.items()
    }


def time_built_in(settings: Settings) -> Timing | None:
    """Return the built-in model's times on this machine, from a process of its own; None if it is
    not there or fails."""
    try:
        with Child(_time, settings) as child:
            timing: Timing = child.receive(MEASURE_S)
            return timing
    except (OSError, TimeoutError, ChildDiedError, ChildFailedError):
        return None


def _time(_connection: Connection, settings: Settings) -> Timing:
    """Transcribe the doctor's sentence RUNS times; the fastest time counts."""
    from appliance.cli.doctor.model import spoken_window
    from appliance.infer import open_transcriber
    from appliance.model import BUILT_IN

    encoder = replace(settings.encoder, backend="cpu")
    built_in = replace(Settings(), model=ModelSettings(bundle=BUILT_IN), encoder=encoder)
    with open_transcriber(built_in) as transcriber:
        window = spoken_window(transcriber.bundle.window_s)
        results = [transcriber.transcribe(window) for _ in range(RUNS)]
    times_s = [Timing(one.encode_ms / 1000, one.decode_ms / 1000) for one in results]
    return min(times_s, key=lambda one: one.encoder_s + one.decoder_s)
