"""Whisper's encoder and decoder as exported to ONNX -> weights by Hugging Face's names.

Exporters keep PyTorch's names for biases, norms, convolutions and embeddings, mostly without the
module's own prefix. Matrices of linear layers are folded into constants without a name
("onnx::MatMul_242"), transposed: they belong to the module that the path in their node's name ends
in (torch writes it since 1.13). Files with their weights beside them and merged decoders are not
read. The encoder's positions may be without a name: `checkpoint` computes them.
"""

import math
import mmap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from appliance.convert.shapes import (
    DECODER,
    EMBEDDING,
    ENCODER,
    TIED_OUTPUT,
    WhisperConfig,
    expected_shapes,
)
from appliance.convert.tensors import DTYPES, StoredTensor, reading, shown
from appliance.errors import ModelError

MAX_RANK = 8
KINDS = {1: "F32", 10: "F16", 11: "F64", 16: "BF16"}
"""TensorProto's data types that weights may have."""
MOST_PARTS = 10
"""Of a name."""
FILES = ("{}encoder_model{}.onnx", "{}decoder_model{}.onnx")
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
            if all(file.is_file() for file in files):
                return files
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
    """Every weight found in the encoder's and the decoder's file, and both files.

    What is not found is left out. Raises ModelError where a file cannot be read or understood.
    """
    names, weights = expected_shapes(config), dict[str, StoredTensor]()
    for half, file in zip((ENCODER, DECODER), files, strict=True):
        known = {name.removeprefix(f"{half}."): name for name in names if name.startswith(half)}
        if half == DECODER:
            known[TIED_OUTPUT] = TIED_OUTPUT
        weights |= _find_named(*_open(file), known)
    return weights, sorted(files)


def _open(file: Path) -> tuple[Any, Constants]:
    """A file's graph, and its constants. Raises ModelError."""
    constants, at = dict[str, StoredTensor](), 0
    with (
        reading(file, "an ONNX model") as stream,
        mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as data,
    ):
        try:
            graph = onnx.load_from_string(data[:]).graph
        except (DecodeError, UnicodeDecodeError):
            raise ValueError("something else") from None
        for tensor in graph.initializer:
            if tensor.data_type in KINDS:
                found, at = _locate(tensor, file, data, at)
                constants[tensor.name] = found
    for node in graph.node:
        if node.op_type in QUANTIZED or node.domain:
            raise ModelError(
                f"{file}: expected an export as it comes, found one that was quantised or "
                f"optimised ({shown(node.op_type)}); {FLOAT_FIX}"
            )
    return graph, constants


def _locate(tensor: Any, file: Path, data: mmap.mmap, at: int) -> tuple[StoredTensor, int]:
    """Where a constant's numbers lie, so that they need not stay in memory, and from where on to
    look for the next one's. Raises ValueError."""
    shape, kind = tuple(int(size) for size in tensor.dims[: MAX_RANK + 1]), KINDS[tensor.data_type]
    if len(shape) > MAX_RANK or any(size < 0 for size in shape):
        raise ValueError(f"{shown(tensor.name)} with the shape {shape}")
    raw = tensor.raw_data
    if len(raw) != math.prod(shape) * DTYPES[kind].itemsize:
        raise ValueError(f"{shown(tensor.name)} with its numbers elsewhere than in this file")
    start = data.find(raw, at)
    start = start if start >= 0 else data.find(raw)
    return StoredTensor(file, start, len(raw), kind, shape), start + len(raw)


def _find_named(
    graph: Any, constants: Constants, known: Mapping[str, str]
) -> dict[str, StoredTensor]:
    """Return the weights of a graph by their full names, which `known` has for the ends of names
    in the graph."""
    found: dict[str, StoredTensor] = {}
    for node in graph.node:
        path = node.name.rpartition("/")[0].replace("/", ".")
        for index, name in enumerate(node.input):
            if (tensor := constants.get(name)) is None:
                continue
            own = known.get(_end_in(name, known), "")
            if node.op_type == "MatMul" and index == 1 and len(tensor.shape) == 2:
                own, tensor = (
                    own or known.get(_end_in(f"{path}.weight", known), ""),
                    tensor.transpose(),
                )
            elif own == TIED_OUTPUT:
                own = EMBEDDING
            if own:
                found.setdefault(own, tensor)
    return found


def _end_in(name: str, known: Collection[str]) -> str:
    """The longest end of a dotted name that is known; empty where none is."""
    parts = name.split(".")[-MOST_PARTS:]
    ends = (".".join(parts[start:]) for start in range(len(parts)))
    return next((end for end in ends if end in known), "")
