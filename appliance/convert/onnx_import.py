"""Whisper's encoder and decoder as exported to ONNX -> weights by Hugging Face's names.

A file's nodes and the places of its constants are found without loading a number: the message's own
fields (onnx.proto) are walked through on a memory map, for a file may hold two gigabytes of
numbers, which protobuf would all take into memory, and some times over.

Exporters keep PyTorch's names for biases, norms, convolutions and embeddings, mostly without the
module's own prefix; merged decoders add "_merged_0". Matrices of linear layers are folded into
constants without a name ("onnx::MatMul_242"), transposed. `Layers` finds whose they are by the
names of the modules that the nodes came from, by the bias added next, and a key's matrix, which has
no bias, by the query that it is multiplied with.
"""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from appliance.convert.shapes import (
    DECODER,
    EMBEDDING,
    ENCODER,
    SOUND_POSITIONS,
    TIED_OUTPUT,
    WhisperConfig,
    expected_shapes,
)
from appliance.convert.tensors import DTYPES, StoredTensor, is_plain, listed, shown
from appliance.errors import ModelError
from appliance.model import protobuf, unreadable

OUTLINE_LIMIT = 16_000_000
"""Bytes of a model without its numbers; a large Whisper's decoder has three million."""
MAX_DEPTH, MAX_RANK, MAX_NODES = 16, 8, 100_000
INSIDE = {
    ("model", 7): "graph",
    ("graph", 1): "node",
    ("graph", 5): "tensor",
    ("node", 5): "attribute",
    ("attribute", 5): "tensor",
    ("attribute", 6): "graph",
}
"""The messages that are walked through, by field number."""
KEPT = {
    "model": set[int](),
    "graph": {2},
    "node": {1, 2, 3, 4, 7},
    "attribute": {1, 2, 3, 4, 7, 8, 20},
    "tensor": {1, 2, 8, 13, 14},
}
"""The other fields that are wanted: names, inputs, outputs, operators, plain attributes, shapes."""
TEXTS = {("graph", 2), ("attribute", 1), ("tensor", 8), *(("node", each) for each in KEPT["node"])}
"""Those of them that are names, which protobuf gives as bytes where they are no UTF-8."""
NUMBERS = {("tensor", 4), ("tensor", 9), ("tensor", 10)}
"""float_data, raw_data, double_data: little-endian numbers, one behind the other."""
KINDS = {1: "F32", 10: "F16", 11: "F64", 16: "BF16"}
"""TensorProto's data types that weights may have."""
MERGED = re.compile(r"_merged_\d+$")
PRODUCTS = {"MatMul", "Gemm"}
SAME = {"Identity", "Cast"}
"""Operators that leave numbers as they are."""
MOST_STEPS, FARTHEST, MOST_PARTS = 8, 200, 10
"""Operators between a constant and its use, tensors on the way from a projection to the product,
parts of a name: a damaged graph may go in circles."""
MOVES = SAME | {"Reshape", "Transpose", "Mul", "Div", "Concat", "Unsqueeze", "Squeeze", "Split"}
MOVES |= {"Slice", "Expand"}
"""What may lie between a projection and the product of queries and keys."""
BY_MODULE = {
    "Add": {0: "bias", 1: "bias"},
    "BiasGelu": {1: "bias"},
    "Mul": {0: "weight", 1: "weight"},
    "LayerNormalization": {1: "weight", 2: "bias"},
    "Conv": {1: "weight", 2: "bias"},
    "Gather": {0: "weight"},
    "Gemm": {2: "bias"},
}
"""What an input of an operator is to the module that it came from."""
BIASED = {"Add", "BiasGelu", "Gemm"}
WEIGHT, BIAS, QUERY, KEY = ".weight", ".bias", ".q_proj", ".k_proj"
SUBFOLDERS = ("", "onnx")
SUFFIXES = ("", "_fp16")
ENCODER_STEM, DECODER_STEMS = "encoder_model", ("decoder_model", "decoder_model_merged")
LATER_STEM = "decoder_with_past_model"
QUANTIZED = {"DynamicQuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger"}
QUANTIZED |= {"QLinearMatMul", "QLinearConv", "DynamicQuantizeMatMul", "MatMulNBits", "QAttention"}
QUANTIZED |= {"MatMulBnb4", "MatMulFpQ4", "QGemm", "MatMulIntegerToFloat", "GatherBlockQuantized"}
FUSED = {"Attention", "MultiHeadAttention", "DecoderMaskedMultiHeadAttention"}
FUSED |= {"DecoderAttention", "GroupQueryAttention", "PackedAttention"}
FLOAT_FIX = (
    "get the float32 or float16 files of the same model (encoder_model.onnx and decoder_model.onnx)"
)


@dataclass(frozen=True, slots=True)
class Scope:
    """The nodes of a graph, or of a branch in it, and all constants they can see."""

    nodes: list[Any]
    """onnx.NodeProto, without numbers."""
    constants: dict[str, StoredTensor]


def open_onnx(file: Path) -> tuple[list[Scope], set[Path]]:
    """The graph and its branches, outermost first, and the files that hold their numbers.

    Raises ModelError saying what is wrong with a file.
    """
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as data:
            outline = _Outline(data, file.name)
            model = onnx.ModelProto.FromString(outline.of(0, len(data), "model"))
        files = {file}
        scopes = list(_scopes(model.graph, {}, file, files))
    except OSError as error:
        raise unreadable(file, error) from error
    except (ValueError, DecodeError) as error:
        found = error if type(error) is ValueError else "something else"
        raise ModelError(
            f"{file}: expected an ONNX model, found {found}; get the file again"
        ) from None
    return scopes, files


class _Outline:
    """Copies a message without its numbers, which become external data of the same file."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data, self._name, self._size = data, name, 0

    def of(self, at: int, end: int, kind: str, depth: int = 0) -> bytes:
        """The message of this kind between two offsets. Raises ValueError."""
        if depth > MAX_DEPTH:
            raise ValueError("graphs nested too deep")
        parts: list[bytes] = []
        for field in protobuf.fields(self._data, at, end):
            key = (kind, field.number)
            self._count(field.begin - field.start)
            if field.wire == protobuf.LENGTH and (inner := INSIDE.get(key)):
                message = self.of(field.begin, field.end, inner, depth + 1)
                parts += [_key(field.number), _length(message), message]
            elif field.wire == protobuf.LENGTH and key in NUMBERS:
                parts.append(self._reference(field.begin, field.end - field.begin))
            elif field.number in KEPT[kind]:
                self._count(field.end - field.begin)
                if field.wire == protobuf.LENGTH and key in TEXTS:
                    self._data[field.begin : field.end].decode()
                parts.append(self._data[field.start : field.end])
        return b"".join(parts)

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > OUTLINE_LIMIT:
            raise ValueError(f"more than {OUTLINE_LIMIT} bytes besides numbers")

    def _reference(self, offset: int, length: int) -> bytes:
        """The fields that say that a tensor's numbers are at an offset of this file."""
        tensor = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
        for key, value in (("location", self._name), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        self._count(tensor.ByteSize())
        return bytes(tensor.SerializeToString())


def _key(field: int) -> bytes:
    return bytes([field << 3 | protobuf.LENGTH])


def _length(message: bytes) -> bytes:
    """Its length as a varint."""
    rest, parts = len(message), bytearray()
    while rest > 0x7F:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*parts, rest])


def _scopes(
    graph: Any, visible: dict[str, StoredTensor], file: Path, files: set[Path]
) -> Iterator[Scope]:
    """A graph and the branches in it; adds the files of their constants to `files`."""
    tensors = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            tensors += [(node.output[0], each.t) for each in node.attribute if each.name == "value"]
    if len(graph.node) > MAX_NODES:
        raise ValueError(f"more than {MAX_NODES} nodes")
    constants = dict(visible)
    for name, tensor in tensors:
        if tensor.data_type in KINDS:
            constants[name] = _locate(name, tensor, file)
            files.add(constants[name].file)
    yield Scope(list(graph.node), constants)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _scopes(attribute.g, constants, file, files)


def _locate(name: str, tensor: Any, file: Path) -> StoredTensor:
    """Where a constant's numbers lie. Raises ValueError."""
    shape, kind = tuple(int(size) for size in tensor.dims[: MAX_RANK + 1]), KINDS[tensor.data_type]
    if len(shape) > MAX_RANK or any(size < 0 for size in shape):
        raise ValueError(f"{shown(name)} with the shape {shape}")
    where = {str(entry.key): str(entry.value) for entry in tensor.external_data}
    if not where:
        return StoredTensor(file, 0, 0, f"{kind} in a form of its own", shape)
    location, offset = where.get("location", ""), where.get("offset", "0")
    if not is_plain(location):
        raise ValueError(f"{shown(name)} in {shown(location)}, which is not in the same folder")
    length = math.prod(shape) * DTYPES[kind].itemsize
    given = where.get("length", str(length))
    if not offset.isdecimal() or given != str(length):
        raise ValueError(f"{shown(name)} at {shown(offset)}, {shown(given)} bytes of {length}")
    source = file.parent / location
    if not source.is_file():
        raise ValueError(f"{shown(name)} in {location}, which is not there")
    if int(offset) + length > source.stat().st_size:
        raise ValueError(f"{shown(name)} beyond the end of {location}")
    return StoredTensor(source, int(offset), length, kind, shape)


class Layers:
    """The weights found in one scope, in `found`, and what speaks against them, in `troubles`."""

    def __init__(self, scope: Scope, half: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """`half` is model.encoder or model.decoder; `shapes` are of the weights wanted."""
        self.found: dict[str, StoredTensor] = {}
        self.troubles: list[str] = []
        self._scope, self._shapes = scope, shapes
        self._tails = {name.removeprefix(f"{half}."): name for name in shapes}
        self._modules = {tail.rpartition(".")[0] for tail in self._tails}
        nodes = [node for node in scope.nodes if node.input and node.output]
        products = [node for node in nodes if node.op_type in PRODUCTS and len(node.input) > 1]
        self._maker = {output: node for node in nodes for output in node.output}
        self._users: dict[str, list[Any]] = {}
        for node in nodes:
            for name in node.input:
                self._users.setdefault(name, []).append(node)
        self._owners: dict[str, str] = {}
        """The module of a linear product, by its output."""
        for node in nodes:
            self._take_named(node)
        for node in products:
            self._take_matrix(node, self._module_by_name(node))
        self._met = {
            meeting: owner
            for output, owner in self._owners.items()
            if owner.endswith(QUERY)
            for meeting in self._onward(output, MOVES | {"Add"})
        }
        """The queries' module of each product of queries and keys, by its output."""
        for node in products:
            if node.output[0] not in self._owners:
                self._take_matrix(node, self._module_by_query(node))

    def added(self, shape: tuple[int, ...]) -> StoredTensor | None:
        """The one constant of this shape, or of a batch of one, that is added to something."""
        tables = {
            tensor
            for node in self._scope.nodes
            if node.op_type == "Add"
            for name in node.input
            if (tensor := self._constant(name)[0]) and tensor.shape in {shape, (1, *shape)}
        }
        return tables.pop() if len(tables) == 1 else None

    def _take_named(self, node: Any) -> None:
        """Take the constants at a node that are no matrix of a linear layer."""
        module = self._module_by_scope(node)
        roles = BY_MODULE.get(node.op_type, {})
        for index, name in enumerate(node.input):
            tensor, _ = self._constant(name)
            if tensor is None or (node.op_type in PRODUCTS and index < 2):
                continue
            own = self._full(name)
            self._take(EMBEDDING if own == TIED_OUTPUT else own, tensor)
            full = self._tails.get(f"{module}.{roles.get(index, '')}", "")
            if tensor.shape == self._shapes.get(full):
                self._take(full, tensor)

    def _take_matrix(self, node: Any, module: str) -> None:
        """Take the matrix of a linear product, as (out, in), for a module."""
        matrix = self._matrix(node)
        if matrix is not None and module:
            self._owners[node.output[0]] = module
            self._take(module + WEIGHT, matrix)

    def _take(self, name: str, tensor: StoredTensor) -> None:
        if name in self._shapes and self.found.setdefault(name, tensor) != tensor:
            self.troubles.append(f"{name}: claimed by two constants")

    def _module_by_name(self, node: Any) -> str:
        """The module of a linear product, by any name at it; empty where there is none."""
        own = self._full(node.input[1])
        if own.endswith(WEIGHT) and not self._is_output(node):
            return own.removesuffix(WEIGHT)
        if full := self._tails.get(self._module_by_scope(node) + WEIGHT):
            return full.removesuffix(WEIGHT)
        for user in (node, *self._users.get(node.output[0], ())):
            if user.op_type in BIASED:
                for name in user.input:
                    if (full := self._full(name)).endswith(BIAS):
                        return full.removesuffix(BIAS)
        return TIED_OUTPUT.removesuffix(WEIGHT) if self._is_output(node) else ""

    def _is_output(self, node: Any) -> bool:
        """Whether this is the product with the vocabulary, by its shape."""
        matrix = self._matrix(node)
        return matrix is not None and matrix.shape == self._shapes.get(TIED_OUTPUT)

    def _module_by_query(self, node: Any) -> str:
        """The key projection whose product meets a query's; empty where it meets none."""
        for meeting in self._onward(node.output[0], MOVES):
            if meeting in self._met:
                return self._met[meeting].removesuffix(QUERY) + KEY
        return ""

    def _onward(self, tensor: str, moves: Set[str]) -> Iterator[str]:
        """The outputs of the products that a tensor reaches by these operators alone."""
        waiting, seen = [tensor], {tensor}
        while waiting and len(seen) < FARTHEST:
            for user in self._users.get(waiting.pop(), ()):
                if user.op_type == "MatMul":
                    yield user.output[0]
                elif user.op_type in moves:
                    fresh = [output for output in user.output if output not in seen]
                    seen.update(fresh)
                    waiting += fresh

    def _matrix(self, node: Any) -> StoredTensor | None:
        """The constant of a linear product as (out, in); None where it has none."""
        tensor, turned = self._constant(node.input[1])
        if tensor is None or len(tensor.shape) != 2:
            return None
        flags = {each.name: each.i for each in node.attribute}
        as_stored = turned != bool(flags.get("transB", 0))
        return tensor if as_stored else tensor.transpose()

    def _constant(self, name: str) -> tuple[StoredTensor | None, bool]:
        """The constant behind a tensor, as it is stored, and whether it arrives transposed."""
        name, turned = self._way_back(name)
        return self._scope.constants.get(name), turned

    def _way_back(self, name: str) -> tuple[str, bool]:
        """Where a tensor's numbers come from, and whether they were transposed on the way."""
        turned = False
        for _ in range(MOST_STEPS):
            node = self._maker.get(name)
            if node is None or node.op_type not in SAME | {"Transpose"}:
                break
            turned ^= node.op_type == "Transpose"
            name = node.input[0]
        return name, turned

    def _full(self, name: str) -> str:
        """The weight that a constant is named after; empty where it is none's."""
        return self._tails.get(_end_in(MERGED.sub("", self._way_back(name)[0]), self._tails), "")

    def _module_by_scope(self, node: Any) -> str:
        """The module's name, without the network's half, that torch left in the node's name:
        /model/decoder/layers.0/fc1/MatMul is of layers.0.fc1. Empty where it left none.
        """
        path = node.name.rpartition("/")[0].strip("/").replace("/", ".")
        return _end_in(path, self._modules)


def _end_in(name: str, known: Container[str]) -> str:
    """The longest end of a dotted name that is known; empty where none is."""
    parts = name.split(".")[-MOST_PARTS:]
    ends = (".".join(parts[start:]) for start in range(len(parts)))
    return next((end for end in ends if end in known), "")


def find_onnx(folder: Path) -> list[Path]:
    """The encoder and decoder in `folder` or in its folder onnx, whole precision before half.

    Empty without any. Raises ModelError where there are files, but not these two.
    """
    names: set[str] = set()
    for subfolder in SUBFOLDERS:
        inside = folder / subfolder
        for suffix in SUFFIXES:
            encoder = inside / f"{ENCODER_STEM}{suffix}.onnx"
            decoders = [inside / f"{stem}{suffix}.onnx" for stem in DECODER_STEMS]
            found = [file for file in decoders if file.is_file()]
            if encoder.is_file() and found:
                return [encoder, found[0]]
        names |= {shown(file.name) for file in inside.glob("*.onnx")}
    if not names:
        return []
    expected = f"{folder}: expected encoder_model.onnx and decoder_model.onnx"
    if any(name.startswith(LATER_STEM) for name in names) and not any(
        name.startswith(tuple(f"{stem}." for stem in DECODER_STEMS)) for name in names
    ):
        expected += f" ({LATER_STEM}.onnx has no keys and values of the sound)"
    raise ModelError(f"{expected}, found {', '.join(sorted(names)[:12])}; {FLOAT_FIX}")


def open_onnx_weights(
    files: Sequence[Path], config: WhisperConfig
) -> tuple[Mapping[str, StoredTensor], list[Path]]:
    """Every weight found in the encoder's and the decoder's file, and all files that hold them.

    What is not found is left out. Raises ModelError where a file cannot be read or understood.
    """
    weights: dict[str, StoredTensor] = {}
    sources: set[Path] = set()
    for half, file in zip((ENCODER, DECODER), files, strict=True):
        scopes, held = open_onnx(file)
        operators = {node.op_type for scope in scopes for node in scope.nodes}
        if quantized := operators & QUANTIZED:
            raise ModelError(
                f"{file}: expected float weights, found a quantised model "
                f"({', '.join(sorted(quantized))}); {FLOAT_FIX}"
            )
        if fused := operators & FUSED:
            raise ModelError(
                f"{file}: expected an export as it comes, found one that was optimised "
                f"({', '.join(sorted(fused))}); get or make it without optimisation"
            )
        weights |= _weights_of(file, scopes, half, config)
        sources |= held
    return weights, sorted(sources)


def _weights_of(
    file: Path, scopes: Sequence[Scope], half: str, config: WhisperConfig
) -> dict[str, StoredTensor]:
    """Return the weights of one half of the network. Raises ModelError if two have one name."""
    shapes = {
        name: shape for name, shape in expected_shapes(config).items() if name.startswith(half)
    }
    if half == DECODER:
        shapes[TIED_OUTPUT] = shapes[EMBEDDING]
    weights: dict[str, StoredTensor] = {}
    troubles: list[str] = []
    for scope in scopes:
        layers = Layers(scope, half, shapes)
        if half == ENCODER and (table := layers.added(shapes[SOUND_POSITIONS])):
            layers.found.setdefault(SOUND_POSITIONS, replace(table, shape=shapes[SOUND_POSITIONS]))
        troubles += layers.troubles
        weights = layers.found | weights
    if troubles:
        raise ModelError(f"{file}: {listed('doubtful weights', troubles)}; export it again")
    return weights
