"""Graphs as Hailo's Dataflow Compiler reads them: node for node torch's own export, simplified.

The compiler numbers the layers in the order of the nodes, and its model scripts call them by these
numbers. So every part of a graph is written in the order, and in the operators, of that export
(tests/golden/hailo_*.txt), everything is static, and constants are folded.

The decoder has one fixed sequence and no cache: all of it is computed at each step, so a sequence
of L tokens takes L runs. What the NPU cannot do, looking up embeddings, is done on the host from
two tables beside the graph.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, shape_inference

from appliance.convert import (
    DECODER,
    EMBEDDING,
    ENCODER,
    LAYER_NORM_EPSILON,
    SOUND_POSITIONS,
    Checkpoint,
    Dimensions,
    Graph,
    Weights,
)
from appliance.errors import ModelError

SMALL = 1024
"""Bytes. A constant up to this size may say what shape another tensor has."""
OPSET, IR_VERSION = 13, 8
"""Those of Hailo's own exports, which the compiler is known to read."""
LARGEST = 2**31 - 1
"""Bytes of an ONNX file that holds its own weights."""
PARTS = 4
"""Of the logits: the whole vocabulary in one product does not fit a Hailo-8."""
START_NODES = ("encoder_hidden_states", "/Reshape")
"""Where the compiler is to begin; the second takes (1, d_model, L, 1), on the host as NHWC
(L, 1, d_model)."""
END_NODES = ("/MatMul", "/MatMul_1", "/MatMul_2", "/MatMul_3")
CLOSED = -100.0
"""Added to the scores of tokens still to come. Far enough for a softmax (e^-100 = 4e-44), near
enough for a compiler that quantises the sum."""
PAD = 0
"""Fills the sequence behind its last token, as in Hailo's own calibration sets."""

Heads = tuple[int, int]
"""How many heads of attention, and how wide one is."""
Tables = tuple[NDArray[np.float32], NDArray[np.float32]]
"""The token embedding (vocabulary, d_model) and the positions added to it (L, d_model)."""


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its large constants declared as inputs: light, and of the same shapes."""
    light = helper.make_model(
        helper.make_graph(
            model.graph.node, model.graph.name, model.graph.input, model.graph.output
        ),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )
    for constant in model.graph.initializer:
        if len(constant.raw_data) <= SMALL:
            light.graph.initializer.append(constant)
        else:
            declared = helper.make_tensor_value_info(
                constant.name, constant.data_type, constant.dims
            )
            light.graph.input.append(declared)
    return light


def infer_shapes(light: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """What each node of a skeleton puts out. Raises onnx.shape_inference.InferenceError."""
    known = shape_inference.infer_shapes(light, check_type=True, strict_mode=True, data_prop=True)
    return list(known.graph.value_info)


def sizes(tensor: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    """The shape of a tensor; None where any of it is free or unknown."""
    if not tensor.type.tensor_type.HasField("shape"):
        return None
    axes: Iterable[onnx.TensorShapeProto.Dimension] = tensor.type.tensor_type.shape.dim
    found = tuple(axis.dim_value for axis in axes)
    return found if all(size > 0 for size in found) else None


class HailoGraph(Graph):
    """A growing static graph; the first axis of a tensor is the batch."""

    def output(self, tensor: str, name: str, shape: Dimensions) -> None:
        """Declares `tensor`, which the newest node makes, an output under `name`."""
        self._nodes[-1].output[:] = [name]
        self.declare(name, shape)

    def call(self, name: str) -> None:
        """Name the newest node, so that the compiler can be given it."""
        self._nodes[-1].name = name

    def layer_norm(self, x: str, name: str) -> str:
        """Layer norm over the last axis, in parts: this opset has no operator for it."""
        two = self.constant("two", np.array(2.0, np.float32))
        epsilon = self.constant("epsilon", np.array(LAYER_NORM_EPSILON, np.float32))
        centred = self.node("Sub", x, self.node("ReduceMean", x, axes=[-1]))
        variance = self.node("ReduceMean", self.node("Pow", centred, two), axes=[-1])
        deviation = self.node("Sqrt", self.node("Add", variance, epsilon))
        normed = self.node("Div", centred, deviation)
        scaled = self.node("Mul", normed, self.weight(f"{name}.weight"))
        return self.node("Add", scaled, self.weight(f"{name}.bias"))

    def attend_to_itself(self, x: str, name: str, heads: Heads, mask: str = "") -> str:
        """x + out(attention(norm x)), x (1, n, d).

        Queries, keys and values are one product: simplifying an export makes it so.
        """
        block = f"{name}.self_attn"
        normed = self.layer_norm(x, f"{block}_layer_norm")
        parts = [self._weights[f"{block}.{part}_proj.weight"].T for part in "qkv"]
        matrix = self.constant(f"{block}.matrix", np.concatenate(parts, axis=1))
        thirds = self.constant("thirds", np.array([heads[0] * heads[1]] * 3, np.int64))
        product = self.node("MatMul", normed, matrix)
        queries, keys, values = self.nodes("Split", product, thirds, outputs=("",) * 3, axis=-1)
        queries = self._scale_queries(self._add_bias(queries, f"{block}.q_proj"), heads)
        keys = self._by_head(keys, heads)
        values = self._swap_heads(self._add_bias(values, f"{block}.v_proj"), heads)
        return self._mix(x, (queries, keys, values), block, heads, mask)

    def attend_to(self, states: str, x: str, name: str, heads: Heads) -> str:
        """x + out(attention over the encoder's states (1, P, d)), x (1, n, d)."""
        block = f"{name}.encoder_attn"
        normed = self.layer_norm(x, f"{block}_layer_norm")
        queries = self._scale_queries(self.linear(normed, f"{block}.q_proj"), heads)
        keys = self._by_head(self.linear(states, f"{block}.k_proj", bias=False), heads)
        values = self._swap_heads(self.linear(states, f"{block}.v_proj"), heads)
        return self._mix(x, (queries, keys, values), block, heads)

    def _mix(
        self, x: str, parts: tuple[str, str, str], block: str, heads: Heads, mask: str = ""
    ) -> str:
        """x + out(attention) of queries (1, H, n, h), keys (1, m, H, h), values (1, H, m, h)."""
        queries, keys, values = parts
        seen = self.attend(queries, self.transpose(keys, 0, 2, 3, 1), values, mask)
        merged = self.reshape(self.transpose(seen, 0, 2, 1, 3), 1, -1, heads[0] * heads[1])
        return self.node("Add", x, self.linear(merged, f"{block}.out_proj"))

    def _scale_queries(self, queries: str, heads: Heads) -> str:
        """Queries (1, H, n, h) divided by sqrt h."""
        factor = self.constant("query_scale", np.array(heads[1] ** -0.5, np.float32))
        return self._swap_heads(self.node("Mul", queries, factor), heads)

    def _swap_heads(self, x: str, heads: Heads) -> str:
        """x (1, n, d) as (1, H, n, h)."""
        return self.transpose(self._by_head(x, heads), 0, 2, 1, 3)

    def _by_head(self, x: str, heads: Heads) -> str:
        """x (1, n, d) as (1, n, H, h)."""
        return self.reshape(x, 1, -1, *heads)

    def _add_bias(self, x: str, name: str) -> str:
        return self.node("Add", x, self.weight(f"{name}.bias"))

    def save(self, file: Path, name: str) -> None:
        """Write the graph with the shape of each tensor in it. The graph is spent by this.

        Raises ModelError when it is larger than one file can be.
        """
        size = sum(len(tensor.raw_data) for tensor in self._constants.values())
        if size > LARGEST:
            raise ModelError(
                f"{file}: expected weights up to {LARGEST / 1e9:.1f} GB, which one ONNX file "
                f"holds, found {size / 1e9:.1f} GB; export a smaller model"
            )
        model = helper.make_model(
            helper.make_graph(self._nodes, name, self._inputs, self._outputs),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="roomscribe",
        )
        while self._constants:  # one by one: a second copy of all weights may not fit
            model.graph.initializer.append(self._constants.popitem()[1])
        light = skeleton(model)
        onnx.checker.check_model(light)
        model.graph.value_info.extend(infer_shapes(light))
        onnx.save(model, str(file))


def write_hailo_encoder(checkpoint: Checkpoint, positions: int, file: Path) -> None:
    """Write the encoder: mel (1, n_mels, 1, 2 P) float32 -> states (1, P, d_model) float32.

    The time axis is an image's width: both convolutions are two-dimensional, of height one.
    P is `positions`; the position table is cut to it. Raises ModelError.
    """
    config, graph = checkpoint.config, HailoGraph(checkpoint.weights)
    mel = graph.input("mel", (1, config.num_mel_bins, 1, 2 * positions))
    x = _convolve(graph, checkpoint.weights, mel, f"{ENCODER}.conv1", stride=1)
    x = _convolve(graph, checkpoint.weights, x, f"{ENCODER}.conv2", stride=2)
    x = graph.transpose(graph.reshape(x, 1, config.d_model, -1), 0, 2, 1)
    table = checkpoint.weights[SOUND_POSITIONS][:positions]
    x = graph.node("Add", x, graph.constant("positions", table))
    heads = (config.encoder_attention_heads, config.head_size)
    for layer in range(config.encoder_layers):
        name = f"{ENCODER}.layers.{layer}"
        x = graph.attend_to_itself(x, name, heads)
        x = graph.feed_forward(x, name)
    x = graph.layer_norm(x, f"{ENCODER}.layer_norm")
    graph.output(x, "states", (1, positions, config.d_model))
    graph.save(file, "whisper_encoder")


def _convolve(graph: HailoGraph, weights: Weights, x: str, name: str, stride: int) -> str:
    """GELU of a convolution of three frames, x (1, channels, 1, frames)."""
    weight = graph.constant(f"{name}.image", weights[f"{name}.weight"][:, :, None])
    convolved = graph.node(
        "Conv",
        x,
        weight,
        graph.weight(f"{name}.bias"),
        kernel_shape=[1, 3],
        pads=[0, 1, 0, 1],
        strides=[1, stride],
        dilations=[1, 1],
        group=1,
    )
    return graph.gelu(convolved)


def write_hailo_decoder(checkpoint: Checkpoint, positions: int, length: int, file: Path) -> None:
    """Write the decoder: encoder_hidden_states (1, P, d_model) and token_embeddings
    (1, L, d_model), both float32 -> logits_0 .. logits_3 (1, L, vocabulary / 4) float32.

    P is `positions`, L `length`. Row i of the logits, the four parts put side by side, is about
    the token behind the i-th; tokens behind it do not matter. Raises ModelError.
    """
    config = checkpoint.config
    graph = HailoGraph(checkpoint.weights)
    states = graph.input("encoder_hidden_states", (1, positions, config.d_model))
    embeddings = graph.input("token_embeddings", (1, length, config.d_model))
    x = _as_image_and_back(graph, embeddings, config.d_model)
    mask = graph.constant("mask", np.triu(np.full((1, 1, length, length), CLOSED, np.float32), 1))
    heads = (config.decoder_attention_heads, config.head_size)
    for layer in range(config.decoder_layers):
        name = f"{DECODER}.layers.{layer}"
        x = graph.attend_to_itself(x, name, heads, mask)
        x = graph.attend_to(states, x, name, heads)
        x = graph.feed_forward(x, name)
    x = graph.layer_norm(x, f"{DECODER}.layer_norm")
    _write_logits(graph, x, length, checkpoint.weights[EMBEDDING])
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
        checkpoint.weights[EMBEDDING],
        checkpoint.weights[f"{DECODER}.embed_positions.weight"][:length],
    )


def embed(tables: Tables, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Placed embeddings (L, d_model) of up to L tokens, the rest of the sequence padded."""
    embedding, places = tables
    sequence = np.full(len(places), PAD)
    kept = list(tokens)[: len(places)]
    sequence[: len(kept)] = kept
    placed: NDArray[np.float32] = embedding[sequence] + places
    return placed
