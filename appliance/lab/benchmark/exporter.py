"""Whisper as Hugging Face's exporter writes it: the graphs that a cached CPU decoder had so far.

What is imitated (optimum.exporters.onnx for automatic-speech-recognition-with-past, eager
attention, opset 17): three files, encoder_model, decoder_model and decoder_with_past_model; their
tensor names and layouts; linear layers as MatMul with the transposed weight, then Add; queries
scaled after their projection; keys kept as (batch, heads, length, size) and transposed at each use;
keys and values grown by Concat; the cross-attention's going out of decoder_model once and into
decoder_with_past_model at every step (since optimum 1.8 they do not come out of it again); GELU
through Erf; the vocabulary's matrix beside the token embedding. decoder_with_past_model reads no
encoder states, so it has no input for them. Of appliance.model only the writer of ONNX's own
operators is used: the reference stays what it is when the product's graphs change.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto

from appliance.convert import DECODER, EMBEDDING, ENCODER, SOUND_POSITIONS, Checkpoint, Graph

OUTSIDE = -3.4028234663852886e38
"""The mask's value: the least float32, as transformers has it."""
BATCH = 1


class Exported(Graph):
    """A growing graph in the exporter's manner."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.weights)
        self.checkpoint, self.config = checkpoint, checkpoint.config

    def number(self, value: float | int) -> str:
        """A scalar, int64 for a whole number, else float32."""
        kind = np.int64 if isinstance(value, int) else np.float32
        return self.constant(f"number_{value!r}", np.array(value, kind))

    def linear(self, x: str, name: str, *, bias: bool = True, scale: float = 1.0) -> str:
        """x W^T + b, times `scale`, which is a node of its own."""
        product = super().linear(x, name, bias=bias)
        return product if scale == 1.0 else self.node("Mul", product, self.number(scale))

    def split(self, x: str) -> str:
        """(batch, n, d_model) -> (batch, heads, n, size)."""
        heads = self.config.decoder_attention_heads
        return self.transpose(self.reshape(x, 0, -1, heads, self.config.head_size), 0, 2, 1, 3)

    def attend_from(self, x: str, block: str, keys: str, values: str, mask: str = "") -> str:
        """Residual x + out(softmax(q K^T + mask) V), the queries made of norm x."""
        normed = self.layer_norm(x, f"{block}_layer_norm")
        queries = self.linear(normed, f"{block}.q_proj", scale=self.config.head_size**-0.5)
        seen = self.attend(self.split(queries), self.transpose(keys, 0, 1, 3, 2), values, mask)
        merged = self.reshape(self.transpose(seen, 0, 2, 1, 3), 0, -1, self.config.d_model)
        return self.node("Add", x, self.linear(merged, f"{block}.out_proj"))


def write_encoder_model(checkpoint: Checkpoint, positions: int, file: Path) -> None:
    """encoder_model.onnx: input_features (1, n_mels, 2 P) -> last_hidden_state (1, P, d_model).

    P is `positions`: 1500 as exported; less, with the position table cut, for shorter windows.
    """
    graph, config, stem = Exported(checkpoint), checkpoint.config, ENCODER
    x = graph.input("input_features", (BATCH, config.num_mel_bins, 2 * positions))
    for name, stride in (("conv1", 1), ("conv2", 2)):
        weight, bias = (graph.weight(f"{stem}.{name}.{part}") for part in ("weight", "bias"))
        convolved = graph.node(
            "Conv", x, weight, bias, kernel_shape=[3], pads=[1, 1], strides=[stride]
        )
        x = graph.gelu(convolved)
    table = checkpoint.weights[SOUND_POSITIONS][:positions]
    x = graph.transpose(x, 0, 2, 1)
    x = graph.node("Add", x, graph.constant("embed_positions", table))
    for layer in range(config.encoder_layers):
        block = f"{stem}.layers.{layer}.self_attn"
        normed = graph.layer_norm(x, f"{block}_layer_norm")
        keys = graph.split(graph.linear(normed, f"{block}.k_proj", bias=False))
        values = graph.split(graph.linear(normed, f"{block}.v_proj"))
        x = graph.attend_from(x, block, keys, values)
        x = graph.feed_forward(x, f"{stem}.layers.{layer}")
    x = graph.layer_norm(x, f"{stem}.layer_norm")
    graph.output(x, "last_hidden_state", (BATCH, positions, config.d_model))
    graph.save(file, "main_graph")


def write_decoder_model(checkpoint: Checkpoint, file: Path) -> None:
    """decoder_model.onnx: input_ids (1, n), encoder_hidden_states (1, P, d_model) -> logits
    (1, n, vocabulary) and every layer's present keys and values."""
    graph, config = Exported(checkpoint), checkpoint.config
    ids = graph.input("input_ids", (BATCH, "new"), TensorProto.INT64)
    states = graph.input("encoder_hidden_states", (BATCH, "positions", config.d_model))
    count = graph.node("Gather", graph.node("Shape", ids), graph.number(1))
    places = graph.node("Range", graph.number(0), count, graph.number(1))
    later = graph.node("Greater", places, graph.reshape(places, -1, 1))
    mask = graph.node("Where", later, graph.number(OUTSIDE), graph.number(0.0))
    x = _embed(graph, ids, places)
    for layer in range(config.decoder_layers):
        name = f"{DECODER}.layers.{layer}"
        own = _keys_and_values(
            graph, graph.layer_norm(x, f"{name}.self_attn_layer_norm"), f"{name}.self_attn"
        )
        of_sound = _keys_and_values(graph, states, f"{name}.encoder_attn")
        _give(graph, layer, "decoder", own, "new")
        _give(graph, layer, "encoder", of_sound, "positions")
        x = graph.attend_from(x, f"{name}.self_attn", *own, mask)
        x = graph.attend_from(x, f"{name}.encoder_attn", *of_sound)
        x = graph.feed_forward(x, name)
    _finish(graph, x, file)


def write_decoder_with_past_model(checkpoint: Checkpoint, file: Path) -> None:
    """decoder_with_past_model.onnx: input_ids (1, 1) and past_key_values.* -> logits
    (1, 1, vocabulary) and the self-attention's keys and values, grown by one."""
    graph, config = Exported(checkpoint), checkpoint.config
    ids = graph.input("input_ids", (BATCH, 1), TensorProto.INT64)
    known = [
        {
            kind: _take(graph, layer, kind, length)
            for kind, length in (("decoder", "known"), ("encoder", "positions"))
        }
        for layer in range(config.decoder_layers)
    ]
    length = graph.node("Gather", graph.node("Shape", known[0]["decoder"][0]), graph.number(2))
    x = _embed(graph, ids, graph.reshape(length, 1))
    for layer in range(config.decoder_layers):
        name = f"{DECODER}.layers.{layer}"
        normed = graph.layer_norm(x, f"{name}.self_attn_layer_norm")
        new = _keys_and_values(graph, normed, f"{name}.self_attn")
        keys, values = (
            graph.node("Concat", old, added, axis=2)
            for old, added in zip(known[layer]["decoder"], new, strict=True)
        )
        _give(graph, layer, "decoder", (keys, values), "known_and_new")
        x = graph.attend_from(x, f"{name}.self_attn", keys, values)
        x = graph.attend_from(x, f"{name}.encoder_attn", *known[layer]["encoder"])
        x = graph.feed_forward(x, name)
    _finish(graph, x, file)


def _embed(graph: Exported, ids: str, places: str) -> str:
    tokens = graph.node("Gather", graph.weight(EMBEDDING), ids)
    table = graph.weight(f"{DECODER}.embed_positions.weight")
    return graph.node("Add", tokens, graph.node("Gather", table, places))


def _keys_and_values(graph: Exported, x: str, block: str) -> tuple[str, str]:
    keys = graph.linear(x, f"{block}.k_proj", bias=False)
    return graph.split(keys), graph.split(graph.linear(x, f"{block}.v_proj"))


def _shape(graph: Exported, length: str) -> tuple[int | str, ...]:
    return (BATCH, graph.config.decoder_attention_heads, length, graph.config.head_size)


def _give(graph: Exported, layer: int, kind: str, pair: tuple[str, str], length: str) -> None:
    for part, tensor in zip(("key", "value"), pair, strict=True):
        graph.output(tensor, f"present.{layer}.{kind}.{part}", _shape(graph, length))


def _take(graph: Exported, layer: int, kind: str, length: str) -> tuple[str, str]:
    stem = f"past_key_values.{layer}.{kind}"
    shape = _shape(graph, length)
    return graph.input(f"{stem}.key", shape), graph.input(f"{stem}.value", shape)


def _finish(graph: Exported, x: str, file: Path) -> None:
    """The final layer norm, the vocabulary's matrix, and the file."""
    normed = graph.layer_norm(x, f"{DECODER}.layer_norm")
    embedding = graph.checkpoint.weights[EMBEDDING]
    matrix = graph.constant("onnx::MatMul_proj_out", embedding.T)
    shape = (BATCH, "new", graph.config.vocab_size)
    graph.output(graph.node("MatMul", normed, matrix), "logits", shape)
    graph.save(file, "main_graph")
