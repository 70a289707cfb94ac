"""Whisper's decoder in the form that Hailo's Dataflow Compiler takes: one fixed sequence, no cache.

The whole sequence is computed at each step, so a sequence of L tokens takes L runs. What the NPU
cannot do, looking up embeddings, is done on the host from two tables beside the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.model.checkpoint import Checkpoint
from appliance.model.hailo.graph import HailoGraph

STEM = "model.decoder"
PARTS = 4
"""Of the logits: the whole vocabulary in one product does not fit a Hailo-8."""
START_NODES = ("encoder_hidden_states", "/Reshape")
"""Where the compiler is told to begin; the second takes (1, d_model, L, 1), on the host as NHWC
(L, 1, d_model)."""
END_NODES = ("/MatMul", "/MatMul_1", "/MatMul_2", "/MatMul_3")
CLOSED = -100.0
"""Added to the scores of tokens still to come. Far enough for a softmax (e^-100 = 4e-44), near
enough for a compiler that quantises the sum."""
PAD = 0
"""Fills the sequence behind its last token, as in Hailo's own calibration sets."""

Tables = tuple[NDArray[np.float32], NDArray[np.float32]]
"""The token embedding (vocabulary, d_model) and the positions added to it (L, d_model)."""


def write_hailo_decoder(
    checkpoint: Checkpoint, positions: int, length: int, file: Path, *, opset: int = 13
) -> None:
    """Writes the decoder: encoder_hidden_states (1, P, d_model) and token_embeddings
    (1, L, d_model), both float32 -> logits_0 .. logits_3 (1, L, vocabulary / 4) float32.

    P is `positions`, L `length`. Row i of the logits, the four parts put side by side, is about
    the token behind the i-th; tokens behind it do not matter. Raises ModelError.
    """
    config = checkpoint.config
    if not 2 <= length <= config.max_target_positions:
        raise ModelError(
            f"length: expected 2 to {config.max_target_positions} tokens, found {length}"
        )
    graph = HailoGraph(checkpoint.weights, opset)
    states = graph.input("encoder_hidden_states", (1, positions, config.d_model))
    embeddings = graph.input("token_embeddings", (1, length, config.d_model))
    x = _as_image_and_back(graph, embeddings, config.d_model)
    mask = graph.constant("mask", np.triu(np.full((1, 1, length, length), CLOSED, np.float32), 1))
    heads = (config.decoder_attention_heads, config.head_size)
    for layer in range(config.decoder_layers):
        name = f"{STEM}.layers.{layer}"
        x = graph.attend_to_itself(x, name, heads, mask)
        x = graph.attend_to(states, x, name, heads)
        x = graph.feed_forward(x, name)
    x = graph.layer_norm(x, f"{STEM}.layer_norm")
    _write_logits(graph, x, length, checkpoint.weights[f"{STEM}.embed_tokens.weight"])
    graph.save(file, "whisper_decoder")


def _as_image_and_back(graph: HailoGraph, x: str, width: int) -> str:
    """x (1, L, d) by way of (1, d, L, 1), the layout in which the compiler takes an input."""
    axis = graph.constant("axis_1", np.array([1], np.int64))
    image = graph.transpose(graph.node("Unsqueeze", x, axis), 0, 3, 2, 1)
    flat = graph.reshape(image, 1, width, -1)
    graph.call(START_NODES[1])
    return graph.transpose(flat, 0, 2, 1)


def _write_logits(graph: HailoGraph, x: str, length: int, table: NDArray[np.float32]) -> None:
    """Declares the four parts of the logits of x (1, L, d) as outputs."""
    for part, (begin, end) in enumerate(vocabulary_parts(len(table))):
        columns = graph.constant(f"vocabulary_{part}", np.ascontiguousarray(table[begin:end].T))
        product = graph.node("MatMul", x, columns)
        graph.call(END_NODES[part])
        graph.output(product, f"logits_{part}", (1, length, end - begin))


def vocabulary_parts(count: int) -> list[tuple[int, int]]:
    """Four ranges of `count` rows, as even as can be."""
    edges = [count * part // PARTS for part in range(PARTS + 1)]
    return list(pairwise(edges))


def host_tables(checkpoint: Checkpoint, length: int) -> Tables:
    """What the host makes the graph's second input from."""
    return (
        checkpoint.weights[f"{STEM}.embed_tokens.weight"],
        checkpoint.weights[f"{STEM}.embed_positions.weight"][:length],
    )


def embed(tables: Tables, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Placed embeddings (L, d_model) of up to L tokens, the rest of the sequence padded."""
    embedding, places = tables
    sequence = np.full(len(places), PAD)
    kept = list(tokens)[: len(places)]
    sequence[: len(kept)] = kept
    placed: NDArray[np.float32] = embedding[sequence] + places
    return placed
