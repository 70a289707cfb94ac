"""Writes ONNX graphs node by node as torch's exporter does: the vocabulary of `exporter`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from appliance.model.checkpoint import Checkpoint

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
