"""Shared by the synthesiser bindings: their result and their error."""

import ctypes
import random
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from train.phones import Segment

PACKAGES = {
    "espeak": "espeak-ng libespeak-ng1",
    "flite": "libflite1",
    "festival": "festival festvox-kallpc16k festvox-kdlpc16k festvox-us-slt-hts",
    "diphones": "festvox-rablpc16k festvox-czech-dita festvox-czech-krb festvox-czech-machac "
    "festvox-czech-ph festvox-italp16k festvox-itapc16k festvox-suopuhe-lj festvox-suopuhe-mv",
}
"""Debian packages of each engine."""


class EngineError(Exception):
    """A synthesiser is missing or failed; the message names the packages to install."""


class Take(NamedTuple):
    """What an engine gave: samples of shape (n,) int16, their rate in Hz, phones in order."""

    samples: npt.NDArray[np.int16]
    rate: float
    segments: list[Segment]


class Speaker(Protocol):
    """An engine: says a text at a relative duration in one of its voices."""

    def say(self, name: str, text: str, stretch: float, rng: random.Random) -> Take:
        """Give one take at the engine's own sample rate, its pitch drawn from `rng`."""


def load_library(engine: str, name: str) -> ctypes.CDLL:
    """Give a shared library; EngineError where its package is not installed."""
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise EngineError(f"{name} not found; install {PACKAGES[engine]}") from error
