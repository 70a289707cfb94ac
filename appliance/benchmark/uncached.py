"""The algorithm of Hailo's decoder on the CPU: one fixed sequence, computed anew for each token.

What a KV cache saves. The graph is the one that appliance.model.hailo.decoder writes for the
compiler, in float32; ONNX Runtime runs it in place of the NPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from appliance.benchmark import clock
from appliance.benchmark.facts import Facts
from appliance.benchmark.plain import PlainRunner
from appliance.benchmark.sessions import PlainSession
from appliance.records import States

GRAPH, EMBEDDING, PLACES = "decoder.onnx", "token_embedding.npy", "positions.npy"
LENGTH = 32
"""Tokens of the fixed sequence; Hailo's decoder for whisper-tiny has as many."""


class UncachedRunner(PlainRunner):
    """Encoder, then one run of the whole sequence for each token."""

    def __init__(self, encoder: Path | None, decoder: Path, facts: Facts, threads: int) -> None:
        """Loads the graphs; without `encoder` only the decoder is there. `decoder` is the folder of
        its graph and tables."""
        super().__init__(encoder, facts, facts.frames, threads)
        self._decoder = PlainSession(decoder / GRAPH, threads)
        self._embedding = np.load(decoder / EMBEDDING, mmap_mode="r")
        self._places = np.load(decoder / PLACES)

    def transcribe(self, states: States, limit: int) -> tuple[int, ...]:
        """Tokens until end-of-text, at most `limit` and what the fixed sequence holds."""
        room = len(self._places) - len(self._facts.prompt) + 1
        return super().transcribe(states, min(limit, room))

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
