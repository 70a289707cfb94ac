"""The cached CPU decoder as it was: Hugging Face's exported graphs in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from appliance.benchmark import clock
from appliance.benchmark.facts import Facts
from appliance.benchmark.plain import PlainRunner
from appliance.benchmark.sessions import PlainSession
from appliance.records import States

ENCODER, DECODER, WITH_PAST = (
    "encoder_model.onnx",
    "decoder_model.onnx",
    "decoder_with_past_model.onnx",
)


class ExportedRunner(PlainRunner):
    """Encoder, decoder_model for the prompt, decoder_with_past_model for each later token; the
    states really zero-padded to all positions."""

    def __init__(
        self, encoder: Path | None, decoder: Path, facts: Facts, frames: int, threads: int
    ) -> None:
        """Loads the graphs; without `encoder` only the decoder is there. `decoder` is the folder of
        both decoder graphs."""
        super().__init__(encoder, facts, frames, threads)
        self._first = PlainSession(decoder / DECODER, threads)
        self._later = PlainSession(decoder / WITH_PAST, threads)

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
