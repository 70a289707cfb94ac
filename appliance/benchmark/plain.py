"""What the rows share that run plain graphs: an exported encoder, and a decoder that tells when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.benchmark import clock
from appliance.benchmark.facts import Decoded, Facts
from appliance.benchmark.sessions import PlainSession
from appliance.infer.mel import log_mel
from appliance.records import Mel, States


class PlainRunner(ABC):
    """An encoder as Hugging Face exports it, and greedy decoding of a kind."""

    def __init__(self, encoder: Path | None, facts: Facts, frames: int, threads: int) -> None:
        """Loads the encoder for `frames`; without it only the decoder is there."""
        self._facts, self._frames = facts, frames
        self._encoder = PlainSession(encoder, threads) if encoder else None

    def mel(self, samples: NDArray[np.float32]) -> Mel:
        """Log-mel (frames, n_mels)."""
        return log_mel(samples, self._facts.n_mels, self._frames)

    def encode(self, mel: Mel) -> States:
        """States (P, d_model) of mel (2 P, n_mels)."""
        if self._encoder is None:
            raise RuntimeError("this process has the decoder alone")
        features = np.ascontiguousarray(mel.T[None])
        states: States = self._encoder.run({"input_features": features})["last_hidden_state"][0]
        return states

    def decode(self, states: States, count: int) -> Decoded:
        """`count` tokens."""
        begun = clock.now()
        tokens, first = self._write(states, count, (self._facts.end_of_text,))
        return Decoded(tokens, (first - begun) * 1000, (clock.now() - begun) * 1000)

    def transcribe(self, states: States, limit: int) -> tuple[int, ...]:
        """Tokens until end-of-text, at most `limit`."""
        return self._write(states, limit, ())[0]

    @abstractmethod
    def _write(
        self, states: States, count: int, banned: Sequence[int]
    ) -> tuple[tuple[int, ...], float]:
        """Tokens, and the moment at which the first one was known."""
