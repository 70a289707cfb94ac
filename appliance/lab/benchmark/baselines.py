"""The baselines that run in ONNX Runtime as it comes: plain numpy in and out, its own quantiser.

`ExportedRunner` is the cached decoder that there was before: Hugging Face's exported graphs.
`UncachedRunner` is the algorithm of Hailo's decoder on the CPU: one fixed sequence, computed anew
for each token. It shows what a KV cache saves. Its graph is the one that appliance.lab.hailo.graphs
writes for the compiler, in float32.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.infer import log_mel, onnxruntime
from appliance.lab.benchmark import clock
from appliance.lab.benchmark.clock import TimedDecode
from appliance.model import Bundle
from appliance.records import Logits, Mel, States

DECODER, WITH_PAST = "decoder_model.onnx", "decoder_with_past_model.onnx"
GRAPH, EMBEDDING, PLACES = "decoder.onnx", "token_embedding.npy", "positions.npy"
LENGTH = 32
"""Tokens of the fixed sequence; Hailo's decoder for whisper-tiny has as many."""
QUANTIZED = ("MatMul", "Attention", "Gather", "EmbedLayerNormalization", "Transpose")
"""Operators that optimum quantises by default (ORT_DEFAULT_OPS_DYNAMIC_QUANTIZATION, without LSTM):
no convolutions."""


class PlainSession:
    """A graph as Hugging Face's runtime runs it on the CPU: every optimisation, no IOBinding.

    Without x64quantprecision, too, as it comes; ours has it (infer/sessions.py).
    """

    def __init__(self, file: Path, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        self.outputs = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.float32]]:
        """Every output by its name."""
        return dict(zip(self.outputs, self._session.run(None, dict(feeds)), strict=True))


def quantize(file: Path, out: Path) -> None:
    """Write `file` with INT8 weights (one scale a matrix, symmetric) and activations quantised as
    they come: onnxruntime.quantization.quantize_dynamic as `optimum-cli onnxruntime quantize` calls
    it, without --per_channel, which is slower."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(
            file,
            out,
            op_types_to_quantize=[*QUANTIZED],
            per_channel=False,
            weight_type=QuantType.QInt8,
        )
    finally:
        logging.disable(logging.NOTSET)


class PlainRunner(ABC):
    """An encoder as Hugging Face exports it, and greedy decoding of a kind."""

    def __init__(self, encoder: Path | None, bundle: Bundle, frames: int, threads: int) -> None:
        """Load the encoder for `frames`; without it only the decoder is there."""
        self._bundle, self._frames = bundle, frames
        self._encoder = PlainSession(encoder, threads) if encoder else None

    def mel(self, samples: NDArray[np.float32]) -> Mel:
        """Log-mel (frames, n_mels)."""
        return log_mel(samples, self._bundle.n_mels, self._frames)

    def encode(self, mel: Mel) -> States:
        """States (P, d_model) of mel (2 P, n_mels)."""
        if self._encoder is None:
            raise RuntimeError("this process has the decoder alone")
        features = np.ascontiguousarray(mel.T[None])
        states: States = self._encoder.run({"input_features": features})["last_hidden_state"][0]
        return states

    def decode(self, states: States, count: int) -> TimedDecode:
        """`count` tokens."""
        begun = clock.now()
        tokens, first = self._write(states, count, (self._bundle.tokens.end_of_text,))
        return TimedDecode(tokens, (first - begun) * 1000, (clock.now() - begun) * 1000)

    def transcribe(self, states: States, limit: int) -> tuple[int, ...]:
        """Tokens until end-of-text, at most `limit`."""
        return self._write(states, limit, ())[0]

    def _write(
        self, states: States, count: int, banned: Sequence[int]
    ) -> tuple[tuple[int, ...], float]:
        """Tokens, and the moment at which the first one was known."""
        bundle = self._bundle
        later = np.array([*bundle.suppressed, *banned], np.intp)
        at_first = np.array([*later, *bundle.suppressed_first], np.intp)
        steps = self._steps(states)
        logits, first, tokens = next(steps), 0.0, list[int]()
        while True:
            logits[later if tokens else at_first] = -np.inf
            token = int(np.argmax(logits))
            first = first or clock.now()
            if token == bundle.tokens.end_of_text:
                break
            tokens.append(token)
            if len(tokens) >= count:
                break
            logits = steps.send(token)
        return tuple(tokens), first

    @abstractmethod
    def _steps(self, states: States) -> Generator[Logits, int, None]:
        """Yield logits (vocabulary,), first those after the prompt; receive the chosen token."""


class ExportedRunner(PlainRunner):
    """Encoder, decoder_model for the prompt, decoder_with_past_model for each later token; the
    states really zero-padded to all positions."""

    def __init__(
        self, encoder: Path | None, decoder: Path, bundle: Bundle, frames: int, threads: int
    ) -> None:
        """Load the graphs; without `encoder` only the decoder is there. `decoder` is the folder of
        both decoder graphs."""
        super().__init__(encoder, bundle, frames, threads)
        self._first = PlainSession(decoder / DECODER, threads)
        self._later = PlainSession(decoder / WITH_PAST, threads)

    def _steps(self, states: States) -> Generator[Logits, int, None]:
        padded = np.pad(states, ((0, self._bundle.trained_positions - len(states)), (0, 0)))
        prompt = np.array([self._bundle.prompt], np.int64)
        given = self._first.run({"input_ids": prompt, "encoder_hidden_states": padded[None]})
        known: dict[str, Any] = {}
        while True:
            token = yield given.pop("logits")[0, -1]
            known |= {
                name.replace("present", "past_key_values"): kept for name, kept in given.items()
            }
            given = self._later.run({"input_ids": np.array([[token]], np.int64), **known})


class UncachedRunner(PlainRunner):
    """Encoder, then one run of the whole sequence for each token."""

    def __init__(self, encoder: Path | None, decoder: Path, bundle: Bundle, threads: int) -> None:
        """Load the graphs; without `encoder` only the decoder is there. `decoder` is the folder of
        its graph and tables."""
        super().__init__(encoder, bundle, bundle.frames, threads)
        self._decoder = PlainSession(decoder / GRAPH, threads)
        self._embedding = np.load(decoder / EMBEDDING, mmap_mode="r")
        self._places = np.load(decoder / PLACES)

    def transcribe(self, states: States, limit: int) -> tuple[int, ...]:
        """Tokens until end-of-text, at most `limit` and what the fixed sequence holds."""
        room = len(self._places) - len(self._bundle.prompt) + 1
        return super().transcribe(states, min(limit, room))

    def _steps(self, states: States) -> Generator[Logits, int, None]:
        tokens = list(self._bundle.prompt)
        sequence = np.zeros(len(self._places), np.intp)
        while True:
            sequence[: len(tokens)] = tokens
            placed = self._embedding[sequence] + self._places
            feeds = {"encoder_hidden_states": states[None], "token_embeddings": placed[None]}
            parts = self._decoder.run(feeds).values()
            tokens.append((yield np.concatenate([part[0, len(tokens) - 1] for part in parts])))
