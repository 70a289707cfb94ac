"""The algorithm of Hailo's decoder on the CPU: one fixed sequence, computed anew for each token.

What a KV cache saves. The graph is the one that appliance.model.hailo.decoder writes for the
compiler, in float32; ONNX Runtime runs it in place of the NPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.benchmark import clock
from appliance.benchmark.facts import Decoded, Facts
from appliance.benchmark.sessions import PlainSession
from appliance.infer.mel import log_mel
from appliance.records import Mel, States

GRAPH, EMBEDDING, PLACES = "decoder.onnx", "token_embedding.npy", "positions.npy"
LENGTH = 32
"""Tokens of the fixed sequence; Hailo's decoder for whisper-tiny has as many."""


class UncachedRunner:
    """Encoder, then one run of the whole sequence for each token."""

    def __init__(self, encoder: Path | None, decoder: Path, facts: Facts, threads: int) -> None:
        """Loads the graphs; without `encoder` only the decoder is there. `decoder` is the folder of
        its graph and tables."""
        self._facts = facts
        self._encoder = PlainSession(encoder, threads) if encoder else None
        self._decoder = PlainSession(decoder / GRAPH, threads)
        self._embedding = np.load(decoder / EMBEDDING, mmap_mode="r")
        self._places = np.load(decoder / PLACES)

    def mel(self, samples: NDArray[np.float32]) -> Mel:
        """Log-mel (W, n_mels) of the window."""
        return log_mel(samples, self._facts.n_mels, self._facts.frames)

    def encode(self, mel: Mel) -> States:
        """States (P, d_model) of mel (2 P, n_mels)."""
        if self._encoder is None:
            raise RuntimeError("this process has the decoder alone")
        features = np.ascontiguousarray(mel.T[None])
        states: States = self._encoder.run({"input_features": features})["last_hidden_state"][0]
        return states

    def decode(self, states: States, count: int) -> Decoded:
        """`count` tokens, as many as the fixed sequence holds beside the prompt."""
        begun = clock.now()
        tokens, first = self._write(states, count, (self._facts.end_of_text,))
        return Decoded(tokens, (first - begun) * 1000, (clock.now() - begun) * 1000)

    def transcribe(self, states: States, limit: int) -> tuple[int, ...]:
        """Tokens until end-of-text, at most `limit` and what the fixed sequence holds."""
        room = len(self._places) - len(self._facts.prompt) + 1
        return self._write(states, min(limit, room), ())[0]

    def _write(
        self, states: States, count: int, banned: Sequence[int]
    ) -> tuple[tuple[int, ...], float]:
        """Tokens, and the moment at which the first one was known."""
        facts = self._facts
        later = np.array([*facts.suppressed, *banned], np.intp)
        at_first = np.array([*later, *facts.suppressed_first], np.intp)
        sequence = np.zeros(len(self._places), np.intp)
        sequence[: len(facts.prompt)] = facts.prompt
        tokens: list[int] = []
        first = 0.0
        for place in range(len(facts.prompt), len(facts.prompt) + count):
            parts = self._decoder.run(
                {
                    "encoder_hidden_states": states[None],
                    "token_embeddings": (self._embedding[sequence] + self._places)[None],
                }
            )
            row = np.concatenate([part[0, place - 1] for part in parts.values()])
            row[later if tokens else at_first] = -np.inf
            token = int(np.argmax(row))
            first = first or clock.now()
            if token == facts.end_of_text:
                break
            tokens.append(token)
            if place < len(sequence):
                sequence[place] = token
        return tuple(tokens), first
