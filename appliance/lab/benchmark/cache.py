"""The decoder with its KV cache beside the same weights without one.

Without a cache it is the export for Hailo's compiler: a sequence of fixed length, all of it
computed again for each token. ONNX Runtime runs both, on one thread, in one decode loop.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.convert import Recipe, build_bundle, load_checkpoint
from appliance.errors import ConfigError
from appliance.infer import Decoded, Decoder, Network, Session, StepNetwork
from appliance.lab.benchmark.steps import TimedNetwork, encode_all
from appliance.lab.hailo.decoder import FixedNetwork
from appliance.lab.hailo.graphs import host_tables, write_hailo_decoder
from appliance.lab.words import Recorded
from appliance.model import WINDOW_S, Bundle, load_bundle
from appliance.records import States

LENGTHS = (32, 24)
"""Positions of Hailo's own decoders, of whisper-tiny and of whisper-base."""
COLUMNS = (
    "the decoder, 500 positions of sound",
    *("tokens a text", "ms a token", "ms a text", "positions", "attention products", "same texts"),
)


class ExportedNetwork(FixedNetwork):
    """The export for Hailo's compiler, in ONNX Runtime."""

    def __init__(self, checkpoint: Path, bundle: Bundle, length: int, file: Path) -> None:
        """Write the graph to `file` and load it. Raises ModelError."""
        weights = load_checkpoint(checkpoint)
        write_hailo_decoder(weights, bundle.positions, length, file)
        super().__init__(bundle, host_tables(weights, length))
        self._session, self.capacity = Session(file, 1), length

    def _set_states(self, states: States) -> None:
        self._states = states

    def _compute(self, embedded: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        feeds = {"encoder_hidden_states": self._states[None], "token_embeddings": embedded[None]}
        return [part[0] for part in self._session.run(feeds)]


def cache_table(
    checkpoint: Path, recordings: Sequence[Recorded], scratch: Path
) -> Iterator[list[str]]:
    """Yield the rows of the table, of texts that fit into the shortest sequence. Raises
    ModelError."""
    bundles = {}
    for quantize, name in (("none", "FP32"), ("int8", "INT8")):
        folder = scratch / f"cache-{quantize}"
        build_bundle(checkpoint, folder, Recipe("cache", WINDOW_S, quantize=quantize))
        bundles[name] = load_bundle(folder)
    decoder = Decoder(bundles["FP32"], 1)
    decoder.positions = bundles["FP32"].positions  # a fixed sequence has nothing behind them
    sounds = list(encode_all(bundles["FP32"], recordings))
    texts = [decoder.decode(*sound) for sound in sounds]
    room = min(LENGTHS) - len(decoder.prompt)
    fitting = [at for at, text in enumerate(texts) if text.ended and len(text.tokens) < room]
    if not fitting:
        raise ConfigError("benchmark --cache: no recording's text is short enough to compare")
    sounds, texts = [sounds[at] for at in fitting], [texts[at] for at in fitting]
    for length in LENGTHS:
        file = scratch / f"fixed-{length}.onnx"
        fixed = ExportedNetwork(checkpoint, bundles["FP32"], length, file)
        yield _row(f"without a cache, {length} positions, FP32", decoder, fixed, sounds, texts)
    for name, bundle in bundles.items():
        cached = Decoder(bundle, 1)
        cached.positions = bundle.positions
        yield _row(f"with a cache, {name}", cached, Network(bundle, 1), sounds, texts)


def _row(
    name: str,
    decoder: Decoder,
    network: StepNetwork,
    sounds: Sequence[tuple[States, float]],
    expected: Sequence[Decoded],
) -> list[str]:
    decoder.decode(*sounds[0], network)
    timed = TimedNetwork(network)
    texts = [decoder.decode(*sound, timed) for sound in sounds]
    length = network.capacity if isinstance(network, FixedNetwork) else 0
    counts = [count_work(len(decoder.prompt), len(text.logprobs), length) for text in texts]
    same = sum(text.tokens == other.tokens for text, other in zip(texts, expected, strict=True))
    written, spent_ms = (
        sum(len(text.logprobs) for text in texts),
        sum(timed.first_ms + timed.next_ms),
    )
    return [
        name,
        f"{written / len(texts):.1f}",
        f"{spent_ms / written:.1f}",
        f"{spent_ms / len(texts):.0f}",
        *(f"{sum(each) / len(texts):.0f}" for each in zip(*counts, strict=True)),
        f"{same} of {len(texts)}",
    ]


def count_work(prompt: int, written: int, length: int = 0) -> tuple[int, int]:
    """Return the positions that a layer computes for a text of `written` tokens, its end included,
    and the products of a query with a key in one head. `length`: of a sequence without a cache."""
    if length:
        return written * length, written * length**2
    positions = prompt + written - 1
    return positions, positions * (positions + 1) // 2
