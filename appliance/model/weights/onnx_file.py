"""An ONNX file -> its nodes and where its constants lie, without loading a number.

The message's own fields (onnx.proto) are walked through on a memory map: a file may hold two
gigabytes of numbers, which protobuf would all take into memory, and some times over.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from appliance.errors import ModelError
from appliance.model.weights.stored import DTYPES, StoredTensor, is_plain, shown, unreadable

OUTLINE_LIMIT = 16_000_000
"""Bytes of a model without its numbers; a large Whisper's decoder has three million."""
MAX_DEPTH, MAX_RANK, MAX_NODES = 16, 8, 100_000
VARINT, LENGTH = 0, 2
FIXED = {1: 8, 5: 4}
"""Wire types of protobuf (protobuf.dev, encoding)."""

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
"""Those of them that are names, which protobuf hands on as bytes where they are no UTF-8."""
NUMBERS = {("tensor", 4), ("tensor", 9), ("tensor", 10)}
"""float_data, raw_data, double_data: little-endian numbers, one behind the other."""
KINDS = {1: "F32", 10: "F16", 11: "F64", 16: "BF16"}
"""TensorProto's data types that weights may have."""


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
        while at < end:
            start = at
            key, at = self._varint(at, end)
            field, wire = key >> 3, key & 7
            if wire == VARINT:
                _, at = self._varint(at, end)
                stop = at
            elif wire == LENGTH:
                length, at = self._varint(at, end)
                stop = at + length
            elif wire in FIXED:
                stop = at + FIXED[wire]
            else:
                raise ValueError("bytes that are no message")
            if stop > end:
                raise ValueError("a file that is cut off")
            self._count(at - start)
            if wire == LENGTH and (inner := INSIDE.get((kind, field))):
                message = self.of(at, stop, inner, depth + 1)
                parts += [_key(field), _length(message), message]
            elif wire == LENGTH and (kind, field) in NUMBERS:
                parts.append(self._reference(at, stop - at))
            elif field in KEPT[kind]:
                self._count(stop - at)
                if wire == LENGTH and (kind, field) in TEXTS:
                    self._data[at:stop].decode()
                parts.append(self._data[start:stop])
            at = stop
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

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """A whole number of up to 64 bits and the offset behind it."""
        value = 0
        for shift in range(0, 70, 7):
            if at >= end:
                raise ValueError("a file that is cut off")
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
        raise ValueError("bytes that are no message")


def _key(field: int) -> bytes:
    return bytes([field << 3 | LENGTH])


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
    place, offset = where.get("location", ""), where.get("offset", "0")
    if not is_plain(place):
        raise ValueError(f"{shown(name)} in {shown(place)}, which is not in the same folder")
    length = math.prod(shape) * DTYPES[kind].itemsize
    given = where.get("length", str(length))
    if not offset.isdecimal() or given != str(length):
        raise ValueError(f"{shown(name)} at {shown(offset)}, {shown(given)} bytes of {length}")
    source = file.parent / place
    if not source.is_file():
        raise ValueError(f"{shown(name)} in {place}, which is not there")
    if int(offset) + length > source.stat().st_size:
        raise ValueError(f"{shown(name)} beyond the end of {place}")
    return StoredTensor(source, int(offset), length, kind, shape)
