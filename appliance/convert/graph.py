"""Writes ONNX graphs node by node.

`Graph` has ONNX's operators; `RuntimeGraph` has ONNX Runtime's own for a CPU, and products of 8-bit
numbers where asked for.
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from appliance.convert.tensors import Weights

OPSET, IR_VERSION = 17, 8
"""Old on purpose: Debian trixie's onnxruntime 1.21 loads at most opset 22 and IR 10; 17 is the
first opset with LayerNormalization."""
MICROSOFT = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""
LAYER_NORM_EPSILON = 1e-5
"""PyTorch's default, which Whisper uses."""

HIGHEST_8 = 127

INLINE = 64_000_000
"""Bytes of constants that go into a graph's own file. A file of the format, protobuf, has less than
2 GiB, and to write and to check it takes three times its size of memory."""
SMALL = 1024
"""Bytes of a constant that is kept in memory."""
ALIGNMENT = 64
"""Bytes at a multiple of which a constant begins in a file of constants."""
COLUMNS_AT_ONCE = 4096
BLOCK = 64
"""Numbers of 4 bits with one scale; with 32 a product takes longer than of 8 bits."""
UNEVEN = 2.0
"""Gain of a neuron over the median, from which on it is multiplied apart from the others: beside
175, numbers around 0.2 would be 0 or one step of their common 8-bit scale. tiny.en has 4 such
neurons in its encoder and a few in its decoder, base 14 and some 25."""

Dimensions = Sequence[int | str]
"""Sizes of a tensor; a name where the size may vary."""
Floats = NDArray[np.float32]


class Graph:
    """A growing graph. Tensors are known by their names, which every method returns."""

    def __init__(self, weights: Weights, file: Path | None = None, inline: int = INLINE) -> None:
        """With `file`, where the graph will be saved, its constants are not held in memory: they
        are written beside it as they come, and stay there if they are more than `inline` bytes.
        """
        self._weights = weights
        self._data = _DataFile(file.with_suffix(".bin")) if file else None
        self._inline = inline
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Dimensions, kind: int = TensorProto.FLOAT) -> str:
        """Declares an input."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

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
        array = np.ascontiguousarray(array)
        if self._data and array.nbytes >= SMALL:
            self._constants[name] = self._data.put(name, array)
        else:
            self._constants[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, name: str) -> str:
        """Add a weight of the checkpoint unchanged."""
        return self.constant(name, self._weights[name])

    def linear(self, x: str, name: str, *, bias: bool = True, scale: float = 1.0) -> str:
        """x W^T + b, times `scale`."""
        factor = np.float32(scale)
        offset = self._weights[f"{name}.bias"] * factor if bias else None
        return self.project(x, name, self._weights[f"{name}.weight"].T * factor, offset)

    def project(self, x: str, name: str, matrix: Floats, offset: Floats | None = None) -> str:
        """x times `matrix` (in, out), plus `offset` (out,)."""
        product = self.node("MatMul", x, self.constant(f"{name}.matrix", matrix))
        if offset is None:
            return product
        return self.node("Add", product, self.constant(f"{name}.offset", offset))

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

    def branch(self) -> Self:
        """Return a graph that begins as this one does. Both write their constants to one file, so
        all nodes of both come before either is saved."""
        twin = copy.copy(self)
        for name in ("_nodes", "_inputs", "_outputs", "_constants"):
            setattr(twin, name, copy.deepcopy(getattr(self, name)))
        return twin

    def save(self, file: Path, name: str) -> None:
        """Write the graph and check it."""
        constants = {tensor.name: tensor for tensor in self._constants.values()}
        if self._data:
            self._data.close()
            if self._data.size <= self._inline:
                self._data.take_back(constants.values())
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


class _DataFile:
    """A growing file of constants."""

    def __init__(self, file: Path) -> None:
        self.size = 0
        self._file = file
        self._stream = file.open("wb")

    def put(self, name: str, array: NDArray[np.generic]) -> onnx.TensorProto:
        """Append a constant, in C order, and return its tensor."""
        start = self.size + -self.size % ALIGNMENT
        self._stream.write(bytes(start - self.size))
        self._stream.write(array.reshape(-1).view(np.uint8).data)
        self.size = start + array.nbytes
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        return _external(name, kind, array.shape, (self._file.name, start, array.nbytes))

    def close(self) -> None:
        """Write what is left."""
        self._stream.close()

    def take_back(self, tensors: Iterable[onnx.TensorProto]) -> None:
        """Put the constants into the tensors that stand for them, and delete the file."""
        with self._file.open("rb") as stream:
            for tensor in tensors:
                location = {entry.key: entry.value for entry in tensor.external_data}
                if location.get("location") == self._file.name:
                    stream.seek(int(location["offset"]))
                    tensor.raw_data = stream.read(int(location["length"]))
                    del tensor.external_data[:]
                    tensor.ClearField("data_location")
        self._file.unlink()


def _external(
    name: str, kind: int, shape: Sequence[int], location: tuple[str, int, int]
) -> onnx.TensorProto:
    """Return a constant in another file of the graph's folder: its name, first byte and size.

    Its numbers are little-endian.
    """
    tensor = TensorProto(name=name, data_type=kind, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in zip(("location", "offset", "length"), location, strict=True):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def to_int8(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A matrix (in, out) as whole numbers -127..127 and the scale of each column, (out,)."""
    whole, scales = np.empty(matrix.shape, np.int8), np.empty(matrix.shape[1], np.float32)
    for start in range(0, matrix.shape[1], COLUMNS_AT_ONCE):
        columns = slice(start, start + COLUMNS_AT_ONCE)
        part = matrix[:, columns]
        step = np.abs(part).max(axis=0) / np.float32(HIGHEST_8)
        step[step == 0] = 1.0
        # so close to 0 that their scale is rounded, numbers may be more than 127 of it
        whole[:, columns] = np.clip(np.rint(part / step), -HIGHEST_8, HIGHEST_8)
        scales[columns] = step
    return whole, scales


def to_int4(rows: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Rows (n, d) as numbers of 4 bits, two in a byte (n, blocks, BLOCK / 2), and the scale of each
    block of a row, (n, blocks): MatMulNBits' layout, where 8 stands for 0."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % BLOCK))).reshape(len(rows), -1, BLOCK)
    farthest = np.take_along_axis(padded, np.abs(padded).argmax(-1, keepdims=True), -1)
    scales = np.where(farthest == 0, 1, farthest / np.float32(-8)).astype(np.float32)
    whole = np.clip(np.rint(padded / scales) + 8, 0, 15).astype(np.uint8)
    return whole[..., ::2] | whole[..., 1::2] << 4, scales[..., 0]


class RuntimeGraph(Graph):
    """A growing graph of ONNX Runtime's operators, of its versions from 1.21 on.

    A residual sum and the layer norm after it are one node: `add_and_norm`.
    """

    def __init__(
        self,
        weights: Weights,
        file: Path | None = None,
        inline: int = INLINE,
        *,
        int8: bool,
        many_rows: bool,
    ) -> None:
        """`int8` makes products those of 8-bit numbers and stores the other tables as float16;
        everything between products is float32 either way. `many_rows`: a product has hundreds of
        rows, not a token's or a few.

        The input of an 8-bit product has one scale, its matrix one for each column and the zero
        point 0. That is written out, because onnxruntime 1.21 makes weights unsigned for processors
        that multiply signed ones wrongly (see infer/sessions.py) only where it is.
        """
        super().__init__(weights, file, inline)
        self.int8, self._many_rows = int8, many_rows
        self._narrowed: dict[str, tuple[str, str, str]] = {}

    def output(self, tensor: str, name: str, shape: Dimensions) -> None:
        """Declares `tensor`, which a node makes, an output; from now on it is called `name`."""
        for node in self._nodes:
            node.input[:] = [name if each == tensor else each for each in node.input]
            node.output[:] = [name if each == tensor else each for each in node.output]
        self.declare(name, shape)

    def constant(self, name: str, array: NDArray[np.generic]) -> str:
        """A constant under a name of its own, written once."""
        if not self.int8 or array.dtype != np.float32 or array.ndim < 2:
            return super().constant(name, array)
        if name not in self._constants:
            stored = self.constant(f"{name}.half", array.astype(np.float16))
            cast = helper.make_node("Cast", [stored], [name], to=TensorProto.FLOAT)
            self._nodes.append(cast)
            self._constants[name] = self._constants[stored]
        return name

    def elsewhere(self, name: str, shape: Sequence[int], kind: int, file: str, start: int) -> str:
        """A constant that lies in another file of the graph's folder, from byte `start`."""
        size = helper.tensor_dtype_to_np_dtype(kind).itemsize * math.prod(shape)
        self._constants[name] = _external(name, kind, shape, (file, start, size))
        return name

    def project(self, x: str, name: str, matrix: Floats, offset: Floats | None = None) -> str:
        """x times `matrix` (in, out), plus `offset` (out,)."""
        if not self.int8:
            return super().project(x, name, matrix, offset)
        narrow = self._project_rows if self._many_rows else self._project_row
        return narrow(x, name, matrix, offset)

    def feed_forward_part(
        self, normed: str, name: str, offset: NDArray[np.float32] | None = None
    ) -> str:
        """fc2(gelu(fc1(normed))), plus `offset` in place of fc2's bias.

        Neurons that get far larger than the others would leave those only a few steps of a common
        8-bit scale, so they are multiplied apart, in float32.
        """
        first, bias = (self._weights[f"{name}.fc1.{part}"] for part in ("weight", "bias"))
        second = self._weights[f"{name}.fc2.weight"]
        gain = self._weights[f"{name}.final_layer_norm.weight"]
        sizes = np.linalg.norm(first * gain, axis=1)
        loud = sizes >= UNEVEN * np.median(sizes)
        if not self.int8 or not loud.any():
            return self._feed(self.project, normed, name, (first.T, bias, second.T), offset)
        rest = np.where(loud, 0, first.T), np.where(loud, 0, bias), np.where(loud, 0, second).T
        part = self._feed(self.project, normed, name, rest, offset)
        few = first[loud].T, bias[loud], second[:, loud].T
        return self.node(
            "Sum", part, self._feed(super().project, normed, f"{name}.loud", few, None)
        )

    def _feed(
        self,
        project: Callable[[str, str, Floats, Floats | None], str],
        normed: str,
        name: str,
        weights: tuple[Floats, Floats, Floats],
        offset: Floats | None,
    ) -> str:
        """gelu(normed W1 + b) W2, plus `offset`, for weights W1 (in, n), b (n,) and W2 (n, in)."""
        inner = self.gelu(project(normed, f"{name}.fc1", *weights[:2]))
        return project(inner, f"{name}.fc2", weights[2], offset)

    def _project_row(self, x: str, name: str, matrix: Floats, offset: Floats | None) -> str:
        """`project` of 8 bits, the columns' scales applied afterwards: onnxruntime 1.21's product
        with a row of scales takes a tenth longer. So is the offset."""
        whole, scales = to_int8(matrix)
        unscaled = self.constant("unscaled", np.array(1.0, np.float32))
        inputs = [x, self.constant(f"{name}.int8", whole), unscaled, self._zero_point(name)]
        product = self.node("DynamicQuantizeMatMul", *inputs, domain=MICROSOFT)
        result = self.node("Mul", product, self.constant(f"{name}.scales", scales))
        if offset is None:
            return result
        return self.node("Add", result, self.constant(f"{name}.offset", offset))

    def narrowed(self, x: str) -> tuple[str, str, str]:
        """x as 8-bit numbers, their scale and zero point; once for all products with it."""
        if x not in self._narrowed:
            narrow, scale, zero = self.nodes("DynamicQuantizeLinear", x, outputs=("", "", ""))
            self._narrowed[x] = narrow, scale, zero
        return self._narrowed[x]

    def scan(self, narrowed: tuple[str, str, str], table: str) -> str:
        """The product of `narrowed` rows (n, d) with those of a constant `table` (K, d), unscaled.

        onnxruntime packs the table when the graph is loaded, transposed or not, so one that others
        read row by row is in the file once.
        """
        unscaled = self.constant("unscaled", np.array(1.0, np.float32))
        inputs = [*narrowed, table, unscaled, self._zero_point(table)]
        return self.node("QGemm", *inputs, domain=MICROSOFT, transB=1)

    def screen(self, x: str, name: str, width: int, parts: Iterable[Floats]) -> str:
        """The product of x (n, width) with constant rows (K, width) of 4 bits: nearly the exact
        one. The rows come in `parts`, since all in float32 would take too much memory."""
        whole, scales = map(np.concatenate, zip(*map(to_int4, parts), strict=True))
        table = self.constant(f"{name}.int4", whole)
        return self.node(
            "MatMulNBits",
            *(x, table, self.constant(f"{name}.int4_scales", scales.reshape(-1))),
            domain=MICROSOFT, accuracy_level=4, bits=4, block_size=BLOCK, K=width, N=len(whole),
        )  # fmt: skip

    def _project_rows(self, x: str, name: str, matrix: Floats, offset: Floats | None) -> str:
        """`project` of 8 bits, x made 8 bits wide once for all products with it."""
        narrow, scale, zero = self.narrowed(x)
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
