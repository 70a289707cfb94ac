"""Graphs as Hailo's Dataflow Compiler reads them: node for node torch's own export, simplified.

The compiler numbers the layers in the order of the nodes, and its model scripts call them by these
numbers. So every part of a graph is written in the order, and in the operators, of that export
(tests/golden/hailo_*.txt), everything is static, and constants are folded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from appliance.errors import ModelError
from appliance.model.graph import LAYER_NORM_EPSILON, Dimensions, Graph
from appliance.model.hailo.shapes import infer_shapes, skeleton
from appliance.model.tensors import Weights

OPSETS = range(13, 18)
"""What the compiler is known to read; 17 is the first with LayerNormalization."""
IR_VERSION = 8
"""Goes with opset 13 to 17."""
LARGEST = 2**31 - 1
"""Bytes of an ONNX file that holds its own weights."""

Heads = tuple[int, int]
"""How many heads of attention, and how wide one is."""


class HailoGraph(Graph):
    """A growing static graph in the opset asked for; the first axis of a tensor is the batch."""

    def __init__(self, weights: Weights, opset: int) -> None:
        """Raises ModelError for an opset that the compiler is not known to read."""
        if opset not in OPSETS:
            raise ModelError(f"opset: expected {OPSETS[0]} to {OPSETS[-1]}, found {opset}")
        super().__init__(weights)
        self._opset = opset

    def output(self, tensor: str, name: str, shape: Dimensions) -> None:
        """Declares `tensor`, which the newest node makes, an output under `name`."""
        self._nodes[-1].output[:] = [name]
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def call(self, name: str) -> None:
        """Names the newest node, so that the compiler can be told of it."""
        self._nodes[-1].name = name

    def layer_norm(self, x: str, name: str) -> str:
        """Layer norm over the last axis, in parts where the opset has no operator for it."""
        if self._opset >= 17:
            return super().layer_norm(x, name)
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
        queries, keys, values = self._split_in_three(self.node("MatMul", normed, matrix), heads)
        asked = self._ask(self._add_bias(queries, f"{block}.q_proj"), heads)
        offered = self._by_head(keys, heads)
        carried = self._carry(self._add_bias(values, f"{block}.v_proj"), heads)
        return self._mix(x, (asked, offered, carried), block, heads, mask)

    def attend_to(self, states: str, x: str, name: str, heads: Heads) -> str:
        """x + out(attention over the encoder's states (1, P, d)), x (1, n, d)."""
        block = f"{name}.encoder_attn"
        normed = self.layer_norm(x, f"{block}_layer_norm")
        asked = self._ask(self.linear(normed, f"{block}.q_proj"), heads)
        offered = self._by_head(self.linear(states, f"{block}.k_proj", bias=False), heads)
        carried = self._carry(self.linear(states, f"{block}.v_proj"), heads)
        return self._mix(x, (asked, offered, carried), block, heads)

    def _mix(
        self, x: str, parts: tuple[str, str, str], block: str, heads: Heads, mask: str = ""
    ) -> str:
        """x + out(attention) of queries (1, H, n, h), keys (1, m, H, h), values (1, H, m, h)."""
        asked, offered, carried = parts
        seen = self.attend(asked, self.transpose(offered, 0, 2, 3, 1), carried, mask)
        merged = self.reshape(self.transpose(seen, 0, 2, 1, 3), 1, -1, heads[0] * heads[1])
        return self.node("Add", x, self.linear(merged, f"{block}.out_proj"))

    def _ask(self, queries: str, heads: Heads) -> str:
        """Queries (1, H, n, h) divided by sqrt h."""
        factor = self.constant("query_scale", np.array(heads[1] ** -0.5, np.float32))
        return self._carry(self.node("Mul", queries, factor), heads)

    def _carry(self, x: str, heads: Heads) -> str:
        """x (1, n, d) as (1, H, n, h)."""
        return self.transpose(self._by_head(x, heads), 0, 2, 1, 3)

    def _by_head(self, x: str, heads: Heads) -> str:
        """x (1, n, d) as (1, n, H, h)."""
        return self.reshape(x, 1, -1, *heads)

    def _add_bias(self, x: str, name: str) -> str:
        return self.node("Add", x, self.weight(f"{name}.bias"))

    def _split_in_three(self, x: str, heads: Heads) -> tuple[str, str, str]:
        """The thirds of x (1, n, 3 d)."""
        thirds = self.constant("thirds", np.array([heads[0] * heads[1]] * 3, np.int64))
        name = f"split_{len(self._nodes)}"
        names = (f"{name}_0", f"{name}_1", f"{name}_2")
        self._nodes.append(helper.make_node("Split", [x, thirds], names, name=name, axis=-1))
        return names

    def save(self, file: Path, name: str) -> None:
        """Writes the graph with the shape of each tensor in it. The graph is spent by this.

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
            opset_imports=[helper.make_opsetid("", self._opset)],
            ir_version=IR_VERSION,
            producer_name="roomscribe",
        )
        while self._constants:  # one by one: a second copy of all weights may not fit
            model.graph.initializer.append(self._constants.popitem()[1])
        light = skeleton(model)
        onnx.checker.check_model(light)
        model.graph.value_info.extend(infer_shapes(light))
        onnx.save(model, str(file))
