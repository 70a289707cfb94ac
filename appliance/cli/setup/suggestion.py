"""Which Whisper fits this machine: its expected time and memory from a short measurement.

Two matrix products are timed (lab/speed). Their speeds are carried over to OpenAI's models by the
products that the encoders compute and by the weights that the decoders read for each token. It is
an estimate, and is called so.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from appliance.system import Child, ChildDiedError, ChildFailedError, free_memory

if TYPE_CHECKING:
    from appliance.lab import Speed

LONGEST_S = 1.0
"""A model that is expected to take longer for a sentence is not proposed."""
TOKENS = 12
"""Of a short command, with the prompt's."""
MEASURE_S = 60.0
"""Longest time that the measurement may take."""
ENCODER_FACTOR, DECODER_FACTOR = 1.5, 2.5
"""How much longer than its products alone an encoder and a decoder take. Measured with random
weights of whisper-tiny's shape, by processor time: 123 ms for products of 80 ms, and 5.8 ms a token
for products of 1.3 to 2.8 ms, on a busy AMD EPYC."""
VOCABULARY = 51_865
POSITIONS_PER_S = 50


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of one of OpenAI's models (Radford and others 2022, table 1)."""

    d_model: int
    layers: int
    """Of the encoder, and as many of the decoder."""
    window_s: float
    """Of the window that `model add` gives it."""


SHAPES = {"tiny": Shape(384, 4, 10.0), "base": Shape(512, 6, 5.0), "small": Shape(768, 12, 10.0)}


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
    present: str, installed: Container[str], estimates: Mapping[str, Estimate], *, reachable: bool
) -> str:
    """Return the model to propose: `present`, unless it is the demonstration and a real one fits.

    The largest English model that is quick enough is proposed; one that is not installed only if
    the hub is `reachable`.
    """
    from appliance.model import BUILT_IN

    if present != BUILT_IN:
        return present
    fitting = [
        name
        for name, estimate in estimates.items()
        if estimate.fits and estimate.seconds <= LONGEST_S and (reachable or name in installed)
    ]
    english = [name for name in fitting if name.endswith(".en")]
    return max(english or fitting, key=lambda name: estimates[name].seconds, default=present)


def estimate_models() -> dict[str, Estimate]:
    """Return an estimate for each published model; none if this machine could not be measured."""
    from appliance.model import library

    speed = measured_speed()
    if speed is None:
        return {}
    free_gb = free_memory() / 1e9
    return {
        name: Estimate(
            sentence_s(SHAPES[name.removesuffix(".en")], speed),
            model.memory_gb,
            model.memory_gb < free_gb,
        )
        for name, model in library.PUBLISHED.items()
    }


def sentence_s(shape: Shape, speed: Speed) -> float:
    """Return the seconds that a model of that shape needs for a short sentence."""
    positions = round(shape.window_s * POSITIONS_PER_S)
    encoder_s = encoder_operations(shape.d_model, shape.layers, positions) / speed.operations_per_s
    token_s = decoder_weights(shape) / speed.weights_per_s
    return ENCODER_FACTOR * encoder_s + DECODER_FACTOR * TOKENS * token_s


def encoder_operations(d_model: int, layers: int, positions: int) -> float:
    """Return the operations of a Whisper's encoder: convolutions, projections, attention."""
    layer = 24.0 * d_model**2 * positions + 4.0 * positions**2 * d_model
    convolutions = 2.0 * 3 * positions * (2 * 80 * d_model + d_model**2)
    return layers * layer + convolutions


def decoder_weights(shape: Shape) -> float:
    """Return the weights that a Whisper's decoder reads for one token."""
    return 14.0 * shape.layers * shape.d_model**2 + VOCABULARY * shape.d_model


def measured_speed() -> Speed | None:
    """Return this machine's speed, measured in a process of its own; None if that fails."""
    try:
        with Child(_measure) as child:
            speed: Speed = child.receive(MEASURE_S)
            return speed
    except (OSError, TimeoutError, ChildDiedError, ChildFailedError):
        return None


def _measure(_connection: Connection) -> Speed:
    from appliance.lab import measure_speed

    return measure_speed()
