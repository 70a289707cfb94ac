"""Whisper's decoder as two ONNX graphs: once a window, and once a step.

L layers, H heads of size h; a key lies transposed, (H, h, m), as the product wants it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto

from appliance.model.checkpoint import Checkpoint, WhisperConfig
from appliance.model.graph import Graph

STEM = "model.decoder"
OUTSIDE = -1e9
"""Added to the scores of tokens still to come."""


def write_cross(checkpoint: Checkpoint, file: Path, *, half: bool) -> None:
    """Writes cross.onnx: states (1, N, d_model) -> cross_keys_l (H, h, N) and cross_values_l
    (H, N, h) of every layer l. N is free: whoever runs it may zero-pad the states.
    """
    config, graph = checkpoint.config, Graph(checkpoint.weights, half=half)
    heads, size = config.decoder_attention_heads, config.head_size
    states = graph.input("states", (1, "positions", config.d_model))
    flat = graph.reshape(states, -1, config.d_model)
    for layer in range(config.decoder_layers):
        block = f"{STEM}.layers.{layer}.encoder_attn"
        keys, values = _keys_and_values(graph, flat, block, heads, size)
        graph.output(keys, f"cross_keys_{layer}", (heads, size, "positions"))
        graph.output(values, f"cross_values_{layer}", (heads, "positions", size))
    graph.save(file, "whisper_cross")


def write_step(checkpoint: Checkpoint, file: Path, *, half: bool) -> None:
    """Writes step.onnx: n new tokens behind m known ones -> logits (n, vocabulary).

    Inputs: tokens (n,) int64, places (n,) int64 = m .. m+n-1, the cross keys and values, and
    self_keys_l (H, h, m), self_values_l (H, m, h), which come back as grown_self_keys_l and
    grown_self_values_l with m + n in place of m.
    """
    config, graph = checkpoint.config, Graph(checkpoint.weights, half=half)
    tokens = graph.input("tokens", ("new",), TensorProto.INT64)
    places = graph.input("places", ("new",), TensorProto.INT64)
    mask = _causal_mask(graph, places)
    embedding = graph.weight(f"{STEM}.embed_tokens.weight")
    table = graph.weight(f"{STEM}.embed_positions.weight")
    placed = graph.node("Gather", table, places)
    x = graph.node("Add", graph.node("Gather", embedding, tokens), placed)
    for layer in range(config.decoder_layers):
        name = f"{STEM}.layers.{layer}"
        x = _attend_to_text(graph, x, layer, mask, config)
        x = _attend_to_sound(graph, x, layer, config)
        x = graph.feed_forward(x, name)
    x = graph.layer_norm(x, f"{STEM}.layer_norm")
    graph.output(graph.node("Gemm", x, embedding, transB=1), "logits", ("new", config.vocab_size))
    graph.save(file, "whisper_step")


def _causal_mask(graph: Graph, places: str) -> str:
    """(n, m + n) float32: 0 where a token may look, OUTSIDE at those after it."""
    zero, one = graph.constant("zero", np.array(0)), graph.constant("int_one", np.array(1))
    count = graph.node("Add", graph.node("ReduceMax", places, keepdims=0), one)
    every = graph.node("Range", zero, count, one)
    later = graph.node("Greater", every, graph.reshape(places, -1, 1))
    closed = graph.constant("closed", np.array(OUTSIDE, np.float32))
    return graph.node("Where", later, closed, graph.constant("open", np.array(0.0, np.float32)))


def _attend_to_text(graph: Graph, x: str, layer: int, mask: str, config: WhisperConfig) -> str:
    """x + out(attention over the tokens so far); declares the layer's cache."""
    heads, size = config.decoder_attention_heads, config.head_size
    block = f"{STEM}.layers.{layer}.self_attn"
    known_keys = graph.input(f"self_keys_{layer}", (heads, size, "known"))
    known_values = graph.input(f"self_values_{layer}", (heads, "known", size))
    normed = graph.layer_norm(x, f"{block}_layer_norm")
    new_keys, new_values = _keys_and_values(graph, normed, block, heads, size)
    keys = graph.node("Concat", known_keys, new_keys, axis=2)
    values = graph.node("Concat", known_values, new_values, axis=1)
    graph.output(keys, f"grown_self_keys_{layer}", (heads, size, "known_and_new"))
    graph.output(values, f"grown_self_values_{layer}", (heads, "known_and_new", size))
    seen = graph.attend(_queries(graph, normed, block, heads, size), keys, values, mask)
    return _merge(graph, x, seen, block, heads * size)


def _attend_to_sound(graph: Graph, x: str, layer: int, config: WhisperConfig) -> str:
    """x + out(attention over the encoder's positions)."""
    heads, size = config.decoder_attention_heads, config.head_size
    block = f"{STEM}.layers.{layer}.encoder_attn"
    keys = graph.input(f"cross_keys_{layer}", (heads, size, "positions"))
    values = graph.input(f"cross_values_{layer}", (heads, "positions", size))
    normed = graph.layer_norm(x, f"{block}_layer_norm")
    seen = graph.attend(_queries(graph, normed, block, heads, size), keys, values)
    return _merge(graph, x, seen, block, heads * size)


def _queries(graph: Graph, x: str, block: str, heads: int, size: int) -> str:
    """(H, n, h), the scale 1 / sqrt h in it."""
    queries = graph.linear(x, f"{block}.q_proj", scale=size**-0.5)
    return graph.transpose(graph.reshape(queries, -1, heads, size), 1, 0, 2)


def _keys_and_values(graph: Graph, x: str, block: str, heads: int, size: int) -> tuple[str, str]:
    """Keys (H, h, n) and values (H, n, h) of x (n, d)."""
    keys = graph.reshape(graph.linear(x, f"{block}.k_proj", bias=False), -1, heads, size)
    values = graph.reshape(graph.linear(x, f"{block}.v_proj"), -1, heads, size)
    return graph.transpose(keys, 1, 2, 0), graph.transpose(values, 1, 0, 2)


def _merge(graph: Graph, x: str, seen: str, block: str, width: int) -> str:
    """x + out(seen), seen (H, n, h)."""
    merged = graph.reshape(graph.transpose(seen, 1, 0, 2), -1, width)
    return graph.node("Add", x, graph.linear(merged, f"{block}.out_proj"))
