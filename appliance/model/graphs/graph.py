"""Writes ONNX graphs node by node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from appliance.model.weights.checkpoint import Weights

OPSET, IR_VERSION = 17, 8
"""Old on purpose: Debian trixie's onnxruntime 1.21 loads at most opset 22 and IR 10; 17 is the
first opset with LayerNormalization."""
MICROSOFT = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""
LAYER_NORM_EPSILON = 1e-5
"""PyTorch's default, which Whisper uses."""

Dimensions = Sequence[int | str]
"""Sizes of a tensor; a name where the size may vary."""


class Graph:
    """A growing graph. Tensors are known by their names, which every method returns."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Dimensions, kind: int = TensorProto.FLOAT) -> str:
        """Declares an input."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, tensor: str, name: str, shape: Dimensions) -> None:
        """Declares `tensor` (float32) an output under `name`."""
        self._nodes.append(helper.make_node("Identity", [tensor], [name]))
        self.declare(name, shape)

    def declare(self, name: str, shape: Dimensions, kind: int = TensorProto.FLOAT) -> None:
        """Declares the tensor called `name` an output."""
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def node(self, operator: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """The single output of a new node."""
        return self.nodes(operator, *inputs, domain=domain, outputs=("",), **attributes)[0]

    def nodes(
        self,
        operator: str,
        *inputs: str,
        outputs: Sequence[str | None],
        domain: str = "",
        **attributes: object,
    ) -> list[str]:
        """The outputs of a new node; an empty name is made up, None is left out."""
        name = f"{operator.lower()}_{len(self._nodes)}"
        made_up = [f"{name}_{at}" if at else name for at in range(len(outputs))]
        pairs = zip(outputs, made_up, strict=True)
        named = ["" if output is None else output or other for output, other in pairs]
        node = helper.make_node(operator, list(inputs), named, name, domain=domain, **attributes)
        self._nodes.append(node)
        return named

    def constant(self, name: str, array: NDArray[np.generic]) -> str:
        """A constant under a name of its own, written once."""
        if name in self._constants:
            return name
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def weight(self, name: str) -> str:
        """A weight of the checkpoint, as it is."""
        return self.constant(name, self._weights[name])

    def linear(self, x: str, name: str, *, bias: bool = True, scale: float = 1.0) -> str:
        """x W^T + b, times `scale`."""
        factor = np.float32(scale)
        matrix = self.constant(f"{name}.matrix", self._weights[f"{name}.weight"].T * factor)
        product = self.node("MatMul", x, matrix)
        if not bias:
            return product
        offset = self.constant(f"{name}.offset", self._weights[f"{name}.bias"] * factor)
        return self.node("Add", product, offset)

    def layer_norm(self, x: str, name: str) -> str:
        """Layer norm over the last axis."""
        scale, offset = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.node(
            "LayerNormalization", x, scale, offset, axis=-1, epsilon=LAYER_NORM_EPSILON
        )

    def gelu(self, x: str) -> str:
        """The exact GELU, x (1 + erf(x / sqrt 2)) / 2."""
        root = self.constant("sqrt_2", np.array(math.sqrt(2.0), np.float32))
        one = self.constant("one", np.array(1.0, np.float32))
        half = self.constant("one_half", np.array(0.5, np.float32))
        factor = self.node("Add", self.node("Erf", self.node("Div", x, root)), one)
        return self.node("Mul", self.node("Mul", x, factor), half)

    def feed_forward(self, x: str, name: str) -> str:
        """The block's residual feed-forward part: x + fc2(gelu(fc1(norm x)))."""
        inner = self.linear(self.layer_norm(x, f"{name}.final_layer_norm"), f"{name}.fc1")
        return self.node("Add", x, self.linear(self.gelu(inner), f"{name}.fc2"))

    def reshape(self, x: str, *sizes: int) -> str:
        """x in another shape; 0 keeps a size, -1 takes the rest."""
        name = "shape_" + "_".join(str(size) for size in sizes).replace("-", "m")
        return self.node("Reshape", x, self.constant(name, np.array(sizes, np.int64)))

    def transpose(self, x: str, *axes: int) -> str:
        """x with its axes in another order."""
        return self.node("Transpose", x, perm=list(axes))

    def attend(self, queries: str, keys: str, values: str, mask: str = "") -> str:
        """softmax(Q K + mask) V for Q (.., n, h), K (.., h, m), V (.., m, h)."""
        scores = self.node("MatMul", queries, keys)
        if mask:
            scores = self.node("Add", scores, mask)
        return self.node("MatMul", self.node("Softmax", scores, axis=-1), values)

    def save(self, file: Path, name: str) -> None:
        """Writes the graph and checks it."""
        constants = {tensor.name: tensor for tensor in self._constants.values()}
        graph = helper.make_graph(
            self._nodes, name, self._inputs, self._outputs, list(constants.values())
        )
        domains = {node.domain for node in self._nodes} | {""}
        versions = {"": OPSET, MICROSOFT: 1}
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(each, versions[each]) for each in sorted(domains)],
            ir_version=IR_VERSION,
            producer_name="roomscribe",
        )
        onnx.save(model, str(file))
        onnx.checker.check_model(str(file))
