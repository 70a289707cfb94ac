"""Whispers as exporters write them: encoder_model.onnx and decoder_model.onnx.

Names, operators and their order are those of torch 2.13's TorchScript exporter, called by
optimum-onnx 0.1.0 with transformers 4.57.6 at opset 17 (14 with `norms_apart`): named biases,
norms, convolutions and embeddings; anonymous transposed matrices; a position table folded into an
Add.
`scoped=False` leaves module paths out of node names, as exporters before torch 1.13 did; `linear`
"gemm" and "named" are what torch 2.13's other exporter writes (dynamo=True), with and without its
optimiser. Left out are the parts that hold no weight: most of the reckoning of shapes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from appliance.convert.shapes import WhisperConfig
from appliance.convert.tensors import Weights

MASKED = -3.4e38


@dataclass(frozen=True, slots=True)
class Style:
    """How an exporter writes."""

    scoped: bool = True
    norms_apart: bool = False
    """Layer norms as single operations (opset below 17)."""
    linear: str = "folded"
    """folded: x MatMul anonymous; gemm, named: x with the named matrix, turned; stored: x MatMul
    the named matrix, which is stored turned."""
    table: str = "anonymous"
    """Of the encoder's positions: anonymous, named, or gone (zeros in its place)."""
    encoder_prefix: str = ""
    decoder_prefix: str = "model.decoder."
    in_nodes: bool = False
    """Weights in Constant nodes."""
    merged: bool = False
    """The decoder as decoder_model_merged.onnx: two branches that share their weights."""
    half: bool = False
    """Weights and computing in float16."""
    output: str = "proj_out.weight"
    """The weight multiplied with at the end."""


def write_export(
    folder: Path, config: WhisperConfig, weights: Weights, style: Style | None = None
) -> Path:
    """Writes the two files into `folder`, which may be there."""
    style = style or Style()
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(encoder(config, weights, style), str(folder / "encoder_model.onnx"))
    name = "decoder_model_merged" if style.merged else "decoder_model"
    onnx.save(decoder(config, weights, style), str(folder / f"{name}.onnx"))
    return folder


def encoder(config: WhisperConfig, weights: Weights, style: Style) -> Any:
    """input_features (1, n_mels, 2 P) -> last_hidden_state (1, P, d_model)."""
    trace = Trace(weights, style, "model.encoder.", style.encoder_prefix)
    x = "input_features"
    for number in (1, 2):
        names = [trace.held(f"conv{number}.{part}") for part in ("weight", "bias")]
        window: dict[str, Any] = {"kernel_shape": [3], "pads": [1, 1], "strides": [number]}
        x = trace.gelu(trace.node(f"conv{number}", "Conv", x, *names, **window), "")
    x = trace.node("", "Transpose", x, perm=[0, 2, 1])
    table = weights["model.encoder.embed_positions.weight"]
    held = {
        "anonymous": lambda: trace.constant("onnx::Add_241", table),
        "named": lambda: trace.held("embed_positions.weight"),
        "gone": lambda: trace.constant("", np.zeros(1, np.float32)),
    }[style.table]()
    x = trace.node("", "Add", x, held)
    for layer in range(config.encoder_layers):
        name = f"layers.{layer}"
        x = trace.attend(x, "", f"{name}/self_attn", config)
        x = trace.feed_forward(x, name)
    trace.norm(x, "layer_norm", out="last_hidden_state")
    sizes = (1, config.num_mel_bins, 2 * config.max_source_positions)
    return trace.model({"input_features": sizes}, ["last_hidden_state"])


def decoder(config: WhisperConfig, weights: Weights, style: Style) -> Any:
    """input_ids (1, n), encoder_hidden_states (1, P, d_model) -> logits (1, n, vocabulary)."""
    trace = Trace(weights, style, "model.decoder.", style.decoder_prefix)
    place = trace.scalar(1, np.int64)
    count = trace.node("", "Gather", trace.node("", "Shape", "input_ids"), place)
    places = trace.node("", "Range", trace.scalar(0, np.int64), count, place)
    vectors = trace.node("embed_tokens", "Gather", trace.held("embed_tokens.weight"), "input_ids")
    placed = trace.node("embed_positions", "Gather", trace.held("embed_positions.weight"), places)
    x = trace.node("", "Add", vectors, trace.node("embed_positions", "Cast", placed, to=1))
    column = trace.node("", "Unsqueeze", places, trace.constant("", np.array([1])))
    seen = trace.node("", "LessOrEqual", places, column)
    outputs = ["logits"]
    for layer in range(config.decoder_layers):
        name = f"layers.{layer}"
        x = trace.attend(x, "", f"{name}/self_attn", config, mask=seen, layer=layer)
        x = trace.attend(x, "encoder_hidden_states", f"{name}/encoder_attn", config, layer=layer)
        x = trace.feed_forward(x, name)
        outputs += [
            f"present.{layer}.{half}.{part}"
            for half in ("decoder", "encoder")
            for part in ("key", "value")
        ]
    x = trace.norm(x, "layer_norm")
    trace.project(x, "proj_out", weights[style.output if style.output in weights else TOKENS])
    states = (1, config.max_source_positions, config.d_model)
    return trace.model({"input_ids": (1, "n"), "encoder_hidden_states": states}, outputs)


TOKENS = "model.decoder.embed_tokens.weight"


@dataclass
class Trace:
    """A graph as it is traced, node by node."""

    weights: Weights
    style: Style
    stem: str
    prefix: str
    nodes: list[Any] = field(default_factory=list)
    tensors: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def node(
        self, scope: str, operator: str, *inputs: str, out: str = "", **attributes: Any
    ) -> str:
        """The output of a new node of a module; `scope` is its path behind the prefix."""
        path = "/".join(["", *filter(None, [*self.prefix.rstrip(".").split("."), scope])])
        number = self.counts[path + operator] = self.counts.get(path + operator, -1) + 1
        name = f"{path}/{operator}" + (f"_{number}" if number else "")
        if self.style.scoped:
            out = out or f"{name}_output_0"
        else:
            name, out = f"{operator}_{len(self.nodes)}", out or str(1000 + len(self.nodes))
        self.nodes.append(helper.make_node(operator, list(inputs), [out], name=name, **attributes))
        return out

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """A constant; without a name, as a Constant node."""
        if self.style.half and array.dtype == np.float32:
            array = np.clip(array, -6e4, 6e4).astype(np.float16)
        if name and self.style.merged:
            name += "_merged_0"
        tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
        if not name or self.style.in_nodes:
            return self.node("", "Constant", out=name, value=tensor)
        self.tensors[name] = tensor
        return name

    def scalar(self, number: float, kind: type = np.float32) -> str:
        return self.constant("", np.array(number, kind))

    def held(self, name: str) -> str:
        """A weight under its own name; `name` is without the network's half."""
        return self.constant(self.prefix + name, self.weights[self.stem + name])

    def project(self, x: str, scope: str, matrix: NDArray[np.float32], named: str = "") -> str:
        """x W^T, the last one into the logits."""
        out = "logits" if scope == "proj_out" else ""
        if self.style.linear == "folded" or not named:
            folded = self.constant(f"onnx::MatMul_{500 + len(self.nodes)}", matrix.T)
            return self.node(scope, "MatMul", x, folded, out=out)
        if self.style.linear == "stored":
            return self.node(scope, "MatMul", x, self.constant(named, matrix.T))
        turned = self.node(scope, "Transpose", named, perm=[1, 0])
        return self.node(scope, "MatMul", x, turned, out=out)

    def linear(self, x: str, scope: str, *, bias: bool = True) -> str:
        """x W^T + b of the module at `scope`."""
        module = scope.replace("/", ".")
        matrix = self.weights[f"{self.stem}{module}.weight"]
        named = {"folded": "", "stored": f"{self.prefix}{module}.weight"}.get(self.style.linear)
        named = self.held(f"{module}.weight") if named is None else named
        if self.style.linear == "gemm" and bias:
            width = matrix.shape[::-1]
            flat = self.node(scope, "Reshape", x, self.constant("", np.array([-1, width[0]])))
            offset = self.held(f"{module}.bias")
            flat = self.node(scope, "Gemm", flat, named, offset, transB=1)
            return self.node(scope, "Reshape", flat, self.constant("", np.array([1, -1, width[1]])))
        product = self.project(x, scope, matrix, named)
        return self.node(scope, "Add", self.held(f"{module}.bias"), product) if bias else product

    def norm(self, x: str, scope: str, out: str = "") -> str:
        module = scope.replace("/", ".")
        weight, bias = self.held(f"{module}.weight"), self.held(f"{module}.bias")
        if not self.style.norms_apart:
            return self.node(
                scope, "LayerNormalization", x, weight, bias, out=out, axis=-1, epsilon=1e-5
            )
        mean = self.node(scope, "ReduceMean", x, axes=[-1])
        centred = self.node(scope, "Sub", x, mean)
        square = self.node(scope, "Pow", centred, self.scalar(2))
        spread = self.node(scope, "ReduceMean", square, axes=[-1])
        root = self.node(scope, "Sqrt", self.node(scope, "Add", spread, self.scalar(1e-5)))
        scaled = self.node(scope, "Mul", self.node(scope, "Div", centred, root), weight)
        return self.node(scope, "Add", scaled, bias, out=out)

    def gelu(self, x: str, scope: str) -> str:
        inner = self.node(scope, "Erf", self.node(scope, "Div", x, self.scalar(math.sqrt(2))))
        factor = self.node(scope, "Add", inner, self.scalar(1))
        return self.node(scope, "Mul", self.node(scope, "Mul", x, factor), self.scalar(0.5))

    def feed_forward(self, x: str, name: str) -> str:
        inner = self.linear(self.norm(x, f"{name}/final_layer_norm"), f"{name}/fc1")
        inner = self.gelu(inner, f"{name}/activation_fn")
        return self.node(name, "Add", x, self.linear(inner, f"{name}/fc2"))

    def attend(  # noqa: PLR0917
        self,
        x: str,
        source: str,
        block: str,
        config: WhisperConfig,
        mask: str = "",
        layer: int = -1,
    ) -> str:
        """x + attention from x to `source`, "" for itself; a decoder's caches are outputs."""
        heads, size = config.decoder_attention_heads, config.head_size
        half = "encoder" if source else "decoder"
        caches = [
            f"present.{layer}.{half}.{part}" if layer >= 0 else "" for part in ("key", "value")
        ]
        normed = self.norm(x, f"{block}_layer_norm")
        queries = self.linear(normed, f"{block}/q_proj")
        queries = self._split(
            self.node(block, "Mul", queries, self.scalar(size**-0.5)), block, config
        )
        queries = self.node(block, "Transpose", queries, perm=[0, 2, 1, 3])
        keys = self._split(
            self.linear(source or normed, f"{block}/k_proj", bias=False), block, config
        )
        values = self._split(self.linear(source or normed, f"{block}/v_proj"), block, config)
        if caches[0]:
            self.node(block, "Transpose", keys, out=caches[0], perm=[0, 2, 1, 3])
        values = self.node(block, "Transpose", values, out=caches[1], perm=[0, 2, 1, 3])
        keys = self.node(block, "Transpose", keys, perm=[0, 2, 3, 1])
        one = self.scalar(1)
        scores = self.node(
            block,
            "MatMul",
            self.node(block, "Mul", queries, one),
            self.node(block, "Mul", keys, one),
        )
        if mask:
            outside = self.node(block, "Where", mask, self.scalar(0), self.scalar(MASKED))
            scores = self.node(block, "Add", scores, outside)
        heard = self.node(block, "MatMul", self.node(block, "Softmax", scores, axis=-1), values)
        heard = self.node(block, "Transpose", heard, perm=[0, 2, 1, 3])
        heard = self.node(
            block, "Reshape", heard, self.constant("", np.array([1, -1, heads * size]))
        )
        merged = self.linear(heard, f"{block}/out_proj")
        return self.node(block.partition("/")[0], "Add", x, merged)

    def _split(self, x: str, block: str, config: WhisperConfig) -> str:
        """x (1, n, d) as (1, n, heads, size), its shape put together from x's own."""
        length = self.node(
            block, "Gather", self.node(block, "Shape", x), self.constant("", np.array([1]))
        )
        rest = np.array([config.decoder_attention_heads, config.head_size])
        one = self.constant("", np.array([1]))
        sizes = self.node(block, "Concat", one, length, self.constant("", rest), axis=0)
        return self.node(block, "Reshape", x, sizes)

    def model(self, inputs: dict[str, tuple[int | str, ...]], outputs: list[str]) -> Any:
        kind = TensorProto.FLOAT16 if self.style.half else TensorProto.FLOAT
        given = [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if name == "input_ids" else kind, sizes
            )
            for name, sizes in inputs.items()
        ]
        told = [
            helper.make_tensor_value_info(name, kind, ["b", "m", "n", "k"][: 3 + ("." in name)])
            for name in outputs
        ]
        nodes = self.nodes
        if self.style.merged and "logits" in outputs:
            branches = {
                f"{name}_branch": helper.make_graph(nodes, name, [], told)
                for name in ("then", "else")
            }
            given.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
            nodes = [helper.make_node("If", ["use_cache_branch"], outputs, name="if", **branches)]
        graph = helper.make_graph(nodes, "main_graph", given, told, list(self.tensors.values()))
        opset = helper.make_opsetid("", 14 if self.style.norms_apart else 17)
        return helper.make_model(
            graph, opset_imports=[opset], ir_version=8, producer_name="pytorch"
        )
