"""The cached CPU decoder as it was: Hugging Face's exported graphs in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.benchmark import clock
from appliance.benchmark.facts import Decoded, Facts
from appliance.benchmark.sessions import PlainSession
from appliance.infer.mel import log_mel
from appliance.records import Mel, States

ENCODER, DECODER, WITH_PAST = (
    "encoder_model.onnx",
    "decoder_model.onnx",
    "decoder_with_past_model.onnx",
)


class ExportedRunner:
    """Encoder, decoder_model for the prompt, decoder_with_past_model for each later token."""

    def __init__(
        self, encoder: Path | None, decoder: Path, facts: Facts, frames: int, threads: int
    ) -> None:
        """Loads the graphs; without `encoder` only the decoder is there. `decoder` is the folder of
        both decoder graphs."""
        self._facts, self._frames = facts, frames
        self._encoder = PlainSession(encoder, threads) if encoder else None
        self._first = PlainSession(decoder / DECODER, threads)
        self._later = PlainSession(decoder / WITH_PAST, threads)

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
        """`count` tokens; the states really zero-padded to all positions."""
        begun = clock.now()
        tokens, first = self._write(states, count, (self._facts.end_of_text,))
        return Decoded(tokens, (first - begun) * 1000, (clock.now() - begun) * 1000)

    def transcribe(self, states: States, limit: int) -> tuple[int, ...]:
        """Tokens until end-of-text, at most `limit`."""
        return self._write(states, limit, ())[0]

    def _write(
        self, states: States, count: int, banned: Sequence[int]
    ) -> tuple[tuple[int, ...], float]:
        """Tokens, and the moment at which the first one was known."""
        facts = self._facts
        padded = np.pad(states, ((0, facts.longest_positions - len(states)), (0, 0)))
        given = self._first.run(
            {
                "input_ids": np.array([facts.prompt], np.int64),
                "encoder_hidden_states": padded[None],
            }
        )
        later = np.array([*facts.suppressed, *banned], np.intp)
        at_first = np.array([*later, *facts.suppressed_first], np.intp)
        known: dict[str, Any] = {}
        tokens: list[int] = []
        first = 0.0
        while len(tokens) < count:
            logits = given.pop("logits")[0, -1]
            known |= {
                name.replace("present", "past_key_values"): kept for name, kept in given.items()
            }
            logits[later if tokens else at_first] = -np.inf
            token = int(np.argmax(logits))
            if not tokens:
                first = clock.now()
            if token == facts.end_of_text:
                break
            tokens.append(token)
            if len(tokens) < count:
                given = self._later.run({"input_ids": np.array([[token]], np.int64), **known})
        return tuple(tokens), first
