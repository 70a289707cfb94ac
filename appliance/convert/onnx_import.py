"""Whisper's encoder and decoder as exported to ONNX -> weights by Hugging Face's names.

Exporters keep PyTorch's names for biases, norms, convolutions and embeddings, mostly without the
module's own prefix; merged decoders add "_merged_0". Matrices of linear layers are folded into
constants without a name ("onnx::MatMul_242"), transposed: they belong to the module that the path
in their node's name ends in (torch writes it since 1.13).
"""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
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
from appliance.convert.tensors import DTYPES, StoredTensor, is_plain, shown
from appliance.errors import ModelError
from appliance.model import unreadable

MAX_RANK = 8
KINDS = {1: "F32", 10: "F16", 11: "F64", 16: "BF16"}
"""TensorProto's data types that weights may have."""
MERGED = re.compile(r"_merged_\d+$")
SAME = {"Identity", "Cast", "Transpose"}
"""Operators between a constant and its use that keep its numbers."""
MOST_STEPS, MOST_PARTS = 8, 10
"""Operators between a constant and its use, parts of a name: a damaged graph may go in circles."""
FILES = ("{}encoder_model{}.onnx", "{}decoder_model{}.onnx", "{}decoder_model_merged{}.onnx")
QUANTIZED = {"DynamicQuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger"}
FLOAT_FIX = (
    "get the float32 or float16 files of the same model (encoder_model.onnx and decoder_model.onnx)"
)

Constants = Mapping[str, StoredTensor]


def find_onnx(folder: Path) -> list[Path]:
    """The encoder and decoder in `folder` or in its folder onnx, whole precision before half.

    Empty without any. Raises ModelError where there are files, but not these two.
    """
    for inside in ("", "onnx/"):
        for suffix in ("", "_fp16"):
            files = [folder / name.format(inside, suffix) for name in FILES]
            encoder, *decoders = [file for file in files if file.is_file()] or [folder]
            if encoder == files[0] and decoders:
                return [encoder, decoders[0]]
    names = {shown(file.name) for each in ("*.onnx", "onnx/*.onnx") for file in folder.glob(each)}
    if not names:
        return []
    raise ModelError(
        f"{folder}: expected encoder_model.onnx and decoder_model.onnx, found "
        f"{', '.join(sorted(names)[:12])}; {FLOAT_FIX}"
    )


def open_onnx_weights(
    files: Sequence[Path], config: WhisperConfig
) -> tuple[Mapping[str, StoredTensor], list[Path]]:
    """Every weight found in the encoder's and the decoder's file, and all files that hold them.

    What is not found is left out. Raises ModelError where a file cannot be read or understood.
    """
    shapes, weights, sources = expected_shapes(config), dict[str, StoredTensor](), {*files}
    for half, file in zip((ENCODER, DECODER), files, strict=True):
        known = {name.removeprefix(f"{half}."): name for name in shapes if name.startswith(half)}
        if half == DECODER:
            known[TIED_OUTPUT] = TIED_OUTPUT
        for graph, constants in _open(file):
            weights = _find_named(graph, constants, known) | weights
            if half == ENCODER and (table := _find_table(graph, constants, shapes)):
                weights.setdefault(SOUND_POSITIONS, table)
            sources |= {tensor.file for tensor in constants.values()}
    return weights, sorted(sources)


def _open(file: Path) -> list[tuple[Any, Constants]]:
    """A file's graph and the branches in it, with the constants that each one sees. Raises
    ModelError."""
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as data:
            graphs = list(_graphs(onnx.load_from_string(data[:]).graph, {}, file, data))
    except OSError as error:
        raise unreadable(file, error) from error
    except (ValueError, DecodeError) as error:
        found = error if type(error) is ValueError else "something else"
        raise ModelError(
            f"{file}: expected an ONNX model, found {found}; get the file again"
        ) from None
    for graph, _ in graphs:
        for node in graph.node:
            if node.op_type in QUANTIZED or node.domain:
                raise ModelError(
                    f"{file}: expected an export as it comes, found one that was quantised or "
                    f"optimised ({shown(node.op_type)}); {FLOAT_FIX}"
                )
    return graphs


def _graphs(
    graph: Any, visible: Constants, file: Path, data: mmap.mmap
) -> Iterator[tuple[Any, Constants]]:
    """A graph and the branches in it. Raises ValueError."""
    tensors = []
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            tensors += [(node.output[0], each.t) for each in node.attribute if each.name == "value"]
    tensors += [(tensor.name, tensor) for tensor in graph.initializer]
    constants, at = {**visible}, 0
    for name, tensor in tensors:
        if tensor.data_type in KINDS:
            constants[name], at = _locate(name, tensor, file, data, at)
    yield graph, constants
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g, constants, file, data)


def _locate(
    name: str, tensor: Any, file: Path, data: mmap.mmap, at: int
) -> tuple[StoredTensor, int]:
    """Where a constant's numbers lie, so that they need not stay in memory, and from where on to
    look for the next one's. Raises ValueError."""
    shape, kind = tuple(int(size) for size in tensor.dims[: MAX_RANK + 1]), KINDS[tensor.data_type]
    if len(shape) > MAX_RANK or any(size < 0 for size in shape):
        raise ValueError(f"{shown(name)} with the shape {shape}")
    length = math.prod(shape) * DTYPES[kind].itemsize
    where = {str(entry.key): str(entry.value) for entry in tensor.external_data}
    if not where:
        raw = tensor.raw_data
        start = data.find(raw, at)
        start = start if start >= 0 else data.find(raw)
        if len(raw) != length:
            kind = f"{kind} in a form of its own"
        return StoredTensor(file, start, len(raw), kind, shape), start + len(raw)
    location, offset = where.get("location", ""), where.get("offset", "0")
    if not is_plain(location):
        raise ValueError(f"{shown(name)} in {shown(location)}, which is not in the same folder")
    source, given = file.parent / location, where.get("length", str(length))
    if not source.is_file():
        raise ValueError(f"{shown(name)} in {location}, which is not there")
    if not offset.isdecimal() or given != str(length):
        raise ValueError(f"{shown(name)} at {shown(offset)}, {shown(given)} bytes of {length}")
    if int(offset) + length > source.stat().st_size:
        raise ValueError(f"{shown(name)} beyond the end of {location}")
    return StoredTensor(source, int(offset), length, kind, shape), at


def _find_named(
    graph: Any, constants: Constants, known: Mapping[str, str]
) -> dict[str, StoredTensor]:
    """Return the weights of a graph by their full names, which `known` has for the ends of names
    in the graph."""
    makers = {name: node for node in graph.node for name in node.output}
    found: dict[str, StoredTensor] = {}
    for node in graph.node:
        path = node.name.rpartition("/")[0].replace("/", ".")
        for index, name in enumerate(node.input):
            source, is_turned = _source(name, makers)
            if (tensor := constants.get(source)) is None:
                continue
            own = known.get(_end_in(MERGED.sub("", source), known), "")
            if node.op_type in ("MatMul", "Gemm") and index == 1 and len(tensor.shape) == 2:
                own = own or known.get(_end_in(f"{path}.weight", known), "")
                flags = {each.name: each.i for each in node.attribute}
                if is_turned == bool(flags.get("transB", 0)):
                    tensor = tensor.transpose()
            elif own == TIED_OUTPUT:
                own = EMBEDDING
            if own:
                found.setdefault(own, tensor)
    return found


def _find_table(
    graph: Any, constants: Constants, shapes: Mapping[str, tuple[int, ...]]
) -> StoredTensor | None:
    """The encoder's positions: the one constant of their shape that is added to something."""
    shape = shapes[SOUND_POSITIONS]
    added = {name for node in graph.node if node.op_type == "Add" for name in node.input}
    tables = {constants[name] for name in added & constants.keys()}
    fitting = [table for table in tables if table.shape in {shape, (1, *shape)}]
    return replace(fitting[0], shape=shape) if len(fitting) == 1 else None


def _source(name: str, makers: Mapping[str, Any]) -> tuple[str, bool]:
    """Where a tensor's numbers come from, and whether they were transposed on the way."""
    turned = False
    for _ in range(MOST_STEPS):
        node = makers.get(name)
        if node is None or node.op_type not in SAME:
            break
        turned ^= node.op_type == "Transpose"
        name = node.input[0]
    return name, turned


def _end_in(name: str, known: Collection[str]) -> str:
    """The longest end of a dotted name that is known; empty where none is."""
    parts = name.split(".")[-MOST_PARTS:]
    ends = (".".join(parts[start:]) for start in range(len(parts)))
    return next((end for end in ends if end in known), "")
