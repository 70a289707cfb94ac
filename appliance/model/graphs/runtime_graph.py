"""Graphs for ONNX Runtime on a CPU: its own operators, and 8-bit products where asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from appliance.model.graphs.graph import LAYER_NORM_EPSILON, MICROSOFT, Dimensions, Graph
from appliance.model.graphs.quantize import to_int8
from appliance.model.weights.checkpoint import Weights


class RuntimeGraph(Graph):
    """A growing graph of ONNX Runtime's operators, of its versions from 1.21 on.

    A residual sum and the layer norm after it are one node: `add_and_norm`.
    """

    def __init__(self, weights: Weights, *, int8: bool, many_rows: bool) -> None:
        """`int8` makes products those of 8-bit numbers and stores the other tables as float16;
        everything between products is float32 either way. `many_rows`: a product has hundreds of
        rows, not a token's or a few.

        The input of an 8-bit product has one scale, its matrix one for each column. The matrix's
        zero point, 0, is written out: onnxruntime 1.21 makes weights unsigned for processors that
        multiply signed ones wrongly (see infer/sessions.py) only where there is one, and crashes or
        leaves them as they are elsewhere.
        """
        super().__init__(weights)
        self.int8, self._many_rows = int8, many_rows
        self._narrowed: dict[str, list[str]] = {}

    def output(
        self, tensor: str, name: str, shape: Dimensions, kind: int = TensorProto.FLOAT
    ) -> None:
        """Declares `tensor`, which a node makes, an output; from now on it is called `name`."""
        for node in self._nodes:
            node.input[:] = [name if each == tensor else each for each in node.input]
            node.output[:] = [name if each == tensor else each for each in node.output]
        self.declare(name, shape, kind)

    def constant(self, name: str, array: NDArray[np.generic]) -> str:
        """A constant under a name of its own, written once."""
        if not self.int8 or array.dtype != np.float32 or array.ndim < 2:
            return super().constant(name, array)
        if name not in self._constants:
            stored = super().constant(f"{name}.half", array.astype(np.float16))
            cast = helper.make_node("Cast", [stored], [name], to=TensorProto.FLOAT)
            self._nodes.append(cast)
            self._constants[name] = self._constants[stored]
        return name

    def elsewhere(self, name: str, shape: Sequence[int], file: str, start: int = 0) -> str:
        """A constant that lies in another file of the graph's folder, from byte `start`: float16 if
        the graph is `int8`, else float32."""
        kind, width = (TensorProto.FLOAT16, 2) if self.int8 else (TensorProto.FLOAT, 4)
        tensor = TensorProto(name=name, data_type=kind, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": file, "offset": start, "length": width * math.prod(shape)}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self._constants[name] = tensor
        return name

    def linear(self, x: str, name: str, *, bias: bool = True, scale: float = 1.0) -> str:
        """x W^T + b, times `scale`."""
        factor = np.float32(scale)
        matrix = self._weights[f"{name}.weight"].T * factor
        return self.project(
            x, name, matrix, self._weights[f"{name}.bias"] * factor if bias else None
        )

    def project(
        self,
        x: str,
        name: str,
        matrix: NDArray[np.float32],
        offset: NDArray[np.float32] | None = None,
    ) -> str:
        """x times `matrix` (in, out), plus `offset` (out,)."""
        if self.int8:
            narrow = self._project_rows if self._many_rows else self._project_row
            return narrow(x, name, matrix, offset)
        product = self.node("MatMul", x, self.constant(f"{name}.matrix", matrix))
        if offset is None:
            return product
        return self.node("Add", product, self.constant(f"{name}.offset", offset))

    def _project_row(
        self, x: str, name: str, matrix: NDArray[np.float32], offset: NDArray[np.float32] | None
    ) -> str:
        """`project` of 8 bits, the columns' scales applied afterwards: onnxruntime 1.21's product
        with a row of scales takes a tenth longer."""
        whole, scales = to_int8(matrix)
        unscaled = self.constant("unscaled", np.array(1.0, np.float32))
        inputs = [x, self.constant(f"{name}.int8", whole), unscaled, self._zero_point(name)]
        if offset is not None:
            inputs.append(self.constant(f"{name}.offset", offset / scales))
        product = self.node("DynamicQuantizeMatMul", *inputs, domain=MICROSOFT)
        return self.node("Mul", product, self.constant(f"{name}.scales", scales))

    def _project_rows(
        self, x: str, name: str, matrix: NDArray[np.float32], offset: NDArray[np.float32] | None
    ) -> str:
        """`project` of 8 bits, x made 8 bits wide once for all products with it."""
        if x not in self._narrowed:
            self._narrowed[x] = self.nodes("DynamicQuantizeLinear", x, outputs=("", "", ""))
        narrow, scale, zero = self._narrowed[x]
        whole, scales = to_int8(matrix)
        inputs = [narrow, self.constant(f"{name}.int8", whole), scale]
        inputs += [self.constant(f"{name}.scales", scales), zero, self._zero_point(name)]
        if offset is not None:
            inputs.append(self.constant(f"{name}.offset", offset))
        return self.node("MatMulIntegerToFloat", *inputs, domain=MICROSOFT)

    def _zero_point(self, name: str) -> str:
        """The zero point of an 8-bit matrix; one for each, because onnxruntime renames those that
        it makes unsigned, and refuses one that two products share."""
        return self.constant(f"{name}.zero_point", np.array(0, np.int8))

    def gelu(self, x: str) -> str:
        """The exact GELU."""
        return self.node("Gelu", x, domain=MICROSOFT)

    def add_and_norm(
        self, x: str, part: str, offset: NDArray[np.float32], name: str
    ) -> tuple[str, str]:
        """x + part + offset, and the layer norm `name` of that."""
        normed, *_, total = self.nodes(
            "SkipLayerNormalization",
            *(x, part, self.weight(f"{name}.weight"), self.weight(f"{name}.bias")),
            self.constant(f"{name}.before", offset),
            outputs=("", None, None, ""),
            domain=MICROSOFT,
            epsilon=LAYER_NORM_EPSILON,
        )
        return total, normed

    def feed_forward_part(self, normed: str, name: str) -> tuple[str, NDArray[np.float32]]:
        """fc2(gelu(fc1(normed))) but for its bias, and the bias."""
        inner = self.gelu(self.linear(normed, f"{name}.fc1"))
        return self.linear(inner, f"{name}.fc2", bias=False), self._weights[f"{name}.fc2.bias"]
