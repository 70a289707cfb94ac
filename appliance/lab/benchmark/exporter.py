"""Whisper as Hugging Face's exporter writes it: the graphs that a cached CPU decoder had so far.

What is imitated (optimum.exporters.onnx for automatic-speech-recognition-with-past, eager
attention, opset 17): three files, encoder_model, decoder_model and decoder_with_past_model; their
tensor names and layouts; linear layers as MatMul with the transposed weight, then Add; queries
scaled after their projection; keys kept as (batch, heads, length, size) and transposed at each use;
keys and values grown by Concat; the cross-attention's going out of decoder_model once and into
decoder_with_past_model at every step (since optimum 1.8 they do not come out of it again); GELU
through Erf; the vocabulary's matrix beside the token embedding. decoder_with_past_model reads no
encoder states, so it has no input for them. Written here, not with appliance.model, so that
the reference stays what it is when the product's graphs change.

Writes ONNX graphs node by node as torch's exporter does: the vocabulary of `exporter`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from appliance.model import Checkpoint

OPSET, IR_VERSION = 17, 8
EPSILON = 1e-5
"""PyTorch's layer norm, which Whisper uses."""


class Exported:
    """A growing graph in the exporter's manner. Tensors are known by their names."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = checkpoint.config
        self.checkpoint = checkpoint
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> str:
        """Declares an input."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, tensor: str, name: str, shape: Sequence[int | str]) -> None:
        """Declares `tensor` (float32) an output under `name`."""
        self._nodes.append(helper.make_node("Identity", [tensor], [name], name=f"to_{name}"))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def node(self, operator: str, *inputs: str, **attributes: object) -> str:
        """The single output of a new node."""
        name = f"/{operator}_{len(self._nodes)}"
        out = f"{name}_output_0"
        self._nodes.append(helper.make_node(operator, [*inputs], [out], name=name, **attributes))
        return out

    def constant(self, name: str, array: NDArray[np.generic]) -> str:
        """A constant under a name of its own, written once."""
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def weight(self, name: str) -> str:
        """A weight of the checkpoint, as it is."""
        return self.constant(name, self.checkpoint.weights[name])

    def number(self, value: float) -> str:
        """A scalar float32."""
        return self.constant(f"number_{value}", np.array(value, np.float32))

    def shape(self, x: str, *sizes: int) -> str:
        """x in another shape; 0 keeps a size, -1 takes the rest."""
        return self.node("Reshape", x, self.constant(f"shape_{sizes}", np.array(sizes, np.int64)))

    def linear(self, x: str, name: str, *, bias: bool = True) -> str:
        """x W^T + b."""
        matrix = f"onnx::MatMul_{name}"
        if matrix not in self._constants:
            self.constant(matrix, self.checkpoint.weights[f"{name}.weight"].T)
        product = self.node("MatMul", x, matrix)
        return self.node("Add", self.weight(f"{name}.bias"), product) if bias else product

    def norm(self, x: str, name: str) -> str:
        """Layer norm over the last axis."""
        scale, offset = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.node("LayerNormalization", x, scale, offset, axis=-1, epsilon=EPSILON)

    def gelu(self, x: str) -> str:
        """x (1 + erf(x / sqrt 2)) / 2."""
        error = self.node("Erf", self.node("Div", x, self.number(math.sqrt(2.0))))
        raised = self.node("Add", error, self.number(1.0))
        return self.node("Mul", self.node("Mul", x, raised), self.number(0.5))

    def feed_forward(self, x: str, name: str) -> str:
        """x + fc2(gelu(fc1(norm x)))."""
        inner = self.gelu(self.linear(self.norm(x, f"{name}.final_layer_norm"), f"{name}.fc1"))
        return self.node("Add", x, self.linear(inner, f"{name}.fc2"))

    def split(self, x: str) -> str:
        """(batch, n, d_model) -> (batch, heads, n, size)."""
        heads = self.config.decoder_attention_heads
        parts = self.shape(x, 0, -1, heads, self.config.head_size)
        return self.node("Transpose", parts, perm=[0, 2, 1, 3])

    def attend(self, x: str, block: str, keys: str, values: str, mask: str = "") -> str:
        """Residual x + out(softmax(q K^T + mask) V), the queries made of norm x."""
        scale = self.number(self.config.head_size**-0.5)
        normed = self.norm(x, f"{block}_layer_norm")
        queries = self.split(self.node("Mul", self.linear(normed, f"{block}.q_proj"), scale))
        scores = self.node("MatMul", queries, self.node("Transpose", keys, perm=[0, 1, 3, 2]))
        if mask:
            scores = self.node("Add", scores, mask)
        seen = self.node("MatMul", self.node("Softmax", scores, axis=-1), values)
        merged = self.shape(
            self.node("Transpose", seen, perm=[0, 2, 1, 3]), 0, -1, self.config.d_model
        )
        return self.node("Add", x, self.linear(merged, f"{block}.out_proj"))

    def save(self, file: Path) -> None:
        """Checks the graph and writes it."""
        graph = helper.make_graph(
            self._nodes, "main_graph", self._inputs, self._outputs, [*self._constants.values()]
        )
        imports = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        onnx.save(model, str(file))


OUTSIDE = -3.4028234663852886e38
"""The mask's value: the least float32, as transformers has it."""
BATCH = 1


def write_encoder_model(checkpoint: Checkpoint, positions: int, file: Path) -> None:
    """encoder_model.onnx: input_features (1, n_mels, 2 P) -> last_hidden_state (1, P, d_model).

    P is `positions`: 1500 as exported; less, with the position table cut, for shorter windows.
    """
    graph, config, stem = Exported(checkpoint), checkpoint.config, "model.encoder"
    x = graph.input("input_features", (BATCH, config.num_mel_bins, 2 * positions))
    for name, stride in (("conv1", 1), ("conv2", 2)):
        weight, bias = (graph.weight(f"{stem}.{name}.{part}") for part in ("weight", "bias"))
        convolved = graph.node(
            "Conv", x, weight, bias, kernel_shape=[3], pads=[1, 1], strides=[stride]
        )
        x = graph.gelu(convolved)
    table = checkpoint.weights[f"{stem}.embed_positions.weight"][:positions]
    x = graph.node("Transpose", x, perm=[0, 2, 1])
    x = graph.node("Add", x, graph.constant("embed_positions", table))
    for layer in range(config.encoder_layers):
        block = f"{stem}.layers.{layer}.self_attn"
        normed = graph.norm(x, f"{block}_layer_norm")
        keys = graph.split(graph.linear(normed, f"{block}.k_proj", bias=False))
        values = graph.split(graph.linear(normed, f"{block}.v_proj"))
        x = graph.attend(x, block, keys, values)
        x = graph.feed_forward(x, f"{stem}.layers.{layer}")
    x = graph.norm(x, f"{stem}.layer_norm")
    graph.output(x, "last_hidden_state", (BATCH, positions, config.d_model))
    graph.save(file)


def write_decoder_model(checkpoint: Checkpoint, file: Path) -> None:
    """decoder_model.onnx: input_ids (1, n), encoder_hidden_states (1, P, d_model) -> logits
    (1, n, vocabulary) and every layer's present keys and values."""
    graph, config = Exported(checkpoint), checkpoint.config
    ids = graph.input("input_ids", (BATCH, "new"), TensorProto.INT64)
    states = graph.input("encoder_hidden_states", (BATCH, "positions", config.d_model))
    count = graph.node("Gather", graph.node("Shape", ids), _int(graph, 1))
    places = graph.node("Range", _int(graph, 0), count, _int(graph, 1))
    later = graph.node("Greater", places, graph.shape(places, -1, 1))
    mask = graph.node("Where", later, graph.number(OUTSIDE), graph.number(0.0))
    x = _embed(graph, ids, places)
    for layer in range(config.decoder_layers):
        name = f"model.decoder.layers.{layer}"
        own = _keys_and_values(
            graph, graph.norm(x, f"{name}.self_attn_layer_norm"), f"{name}.self_attn"
        )
        heard = _keys_and_values(graph, states, f"{name}.encoder_attn")
        _give(graph, layer, "decoder", own, "new")
        _give(graph, layer, "encoder", heard, "positions")
        x = graph.attend(x, f"{name}.self_attn", *own, mask)
        x = graph.attend(x, f"{name}.encoder_attn", *heard)
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
    length = graph.node("Gather", graph.node("Shape", known[0]["decoder"][0]), _int(graph, 2))
    x = _embed(graph, ids, graph.shape(length, 1))
    for layer in range(config.decoder_layers):
        name = f"model.decoder.layers.{layer}"
        normed = graph.norm(x, f"{name}.self_attn_layer_norm")
        new = _keys_and_values(graph, normed, f"{name}.self_attn")
        keys, values = (
            graph.node("Concat", old, one, axis=2)
            for old, one in zip(known[layer]["decoder"], new, strict=True)
        )
        _give(graph, layer, "decoder", (keys, values), "known_and_new")
        x = graph.attend(x, f"{name}.self_attn", keys, values)
        x = graph.attend(x, f"{name}.encoder_attn", *known[layer]["encoder"])
        x = graph.feed_forward(x, name)
    _finish(graph, x, file)


def _int(graph: Exported, value: int) -> str:
    return graph.constant(f"int_{value}", np.array(value, np.int64))


def _embed(graph: Exported, ids: str, places: str) -> str:
    tokens = graph.node("Gather", graph.weight("model.decoder.embed_tokens.weight"), ids)
    table = graph.weight("model.decoder.embed_positions.weight")
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
    normed = graph.norm(x, "model.decoder.layer_norm")
    embedding = graph.checkpoint.weights["model.decoder.embed_tokens.weight"]
    matrix = graph.constant("onnx::MatMul_proj_out", embedding.T)
    shape = (BATCH, "new", graph.config.vocab_size)
    graph.output(graph.node("MatMul", normed, matrix), "logits", shape)
    graph.save(file)
