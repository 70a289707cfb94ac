"""Whether an ONNX graph is one that Hailo's Dataflow Compiler can be expected to read.

The compiler's own list of layers is behind an account. What stands here is what is public of it:
Hailo's conversion scripts for Whisper (github.com/hailo-ai/hailo-whisper: static export with opset
13 or 17, simplified), a log of such an encoder parsed and compiled by DFC 3.x (github.com/ktomanek/
huggingface_whisper_to_hailo_conversion, notes/hailo_conversion_log.md), and people's tests of
single layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from appliance.errors import ModelError
from appliance.model.hailo.graph import OPSETS
from appliance.model.hailo.shapes import infer_shapes, sizes, skeleton

OPERATORS = {
    *("Conv", "MatMul", "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Erf", "Softmax"),
    *("ReduceMean", "LayerNormalization", "Reshape", "Transpose", "Unsqueeze", "Split"),
}
"""Those of the exports named above. Gather, Shape, Cast and other arithmetic on shapes and indices
are what the compiler is known to refuse."""
LATEST_IR = 10
"""Of onnx 1.16, which DFC 3.32 comes with."""
MOST = 12
"""Faults told of one graph."""


def check_for_hailo(file: Path) -> list[str]:
    """Facts about the graph, one line each. Raises ModelError listing all that is wrong with it.

    This is no more than can be told without the compiler.
    """
    try:
        model = onnx.load(file)
    except (OSError, DecodeError) as error:
        raise ModelError(f"{file}: expected an ONNX graph, found: {error}") from error
    light = skeleton(model)
    light.ir_version = min(light.ir_version, LATEST_IR)  # a later one is told of, not checked by
    faults = [*_check_versions(model), *_check_operators(model), *_check_constants(model)]
    try:
        onnx.checker.check_model(light)
        tensors = infer_shapes(light)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        faults.append(f"expected a valid graph, found: {' '.join(str(error).split())}")
    else:
        faults += _check_shapes(model, tensors)
    if faults:
        more = [f"and {len(faults) - MOST} more"] if len(faults) > MOST else []
        raise ModelError(f"{file}: {'; '.join(faults[:MOST] + more)}")
    return list(_describe(model))


def _check_versions(model: onnx.ModelProto) -> Iterator[str]:
    """What is wrong with the versions of the format."""
    if model.ir_version > LATEST_IR:
        yield f"IR version: expected at most {LATEST_IR}, found {model.ir_version}"
    for entry in model.opset_import:
        if entry.domain:
            yield f"operators: expected ONNX's own, found the domain {entry.domain}"
        elif entry.version not in OPSETS:
            yield f"opset: expected {OPSETS[0]} to {OPSETS[-1]}, found {entry.version}"


def _check_operators(model: onnx.ModelProto) -> Iterator[str]:
    """Operators that the compiler is not known to read."""
    strange = sorted({node.op_type for node in model.graph.node} - OPERATORS)
    if strange:
        known = ", ".join(sorted(OPERATORS))
        yield f"operators: expected none but {known}, found {', '.join(strange)}"


def _check_constants(model: onnx.ModelProto) -> Iterator[str]:
    """Constants that no quantisation has room for."""
    for constant in model.graph.initializer:
        if constant.data_type == TensorProto.FLOAT:
            if not np.isfinite(numpy_helper.to_array(constant)).all():
                yield f"constant {constant.name}: expected finite numbers, found NaN or infinity"
        elif constant.data_type != TensorProto.INT64:
            kind = TensorProto.DataType.Name(constant.data_type)
            yield f"constant {constant.name}: expected FLOAT, found {kind}"


def _check_shapes(model: onnx.ModelProto, inner: Sequence[onnx.ValueInfoProto]) -> Iterator[str]:
    """Tensors of free size, other batches than of one, and arithmetic on anything but floats."""
    for tensor in (*model.graph.input, *model.graph.output):
        shape = sizes(tensor)
        if shape is not None and shape[:1] != (1,):
            yield f"{tensor.name}: expected a batch of 1, found shape {shape}"
    for tensor in (*model.graph.input, *inner, *model.graph.output):
        if sizes(tensor) is None:
            yield f"{tensor.name}: expected a fixed size on every axis, found a free one"
        if tensor.type.tensor_type.elem_type != TensorProto.FLOAT:
            kind = TensorProto.DataType.Name(tensor.type.tensor_type.elem_type)
            yield f"{tensor.name}: expected FLOAT, found {kind}"
    known = {tensor.name for tensor in (*inner, *model.graph.output)}
    for node in model.graph.node:
        if unknown := sorted(set(node.output) - known):
            yield f"{', '.join(unknown)}: expected a known size, found none"


def _describe(model: onnx.ModelProto) -> Iterator[str]:
    """Facts about a graph in which nothing is wrong."""
    yield f"opset {model.opset_import[0].version}, IR version {model.ir_version}"
    for role, tensors in (("input", model.graph.input), ("output", model.graph.output)):
        for tensor in tensors:
            yield f"{role} {tensor.name}: {sizes(tensor)} float32"
    yield "every tensor between them has a fixed size and is float32"
    counts = Counter(node.op_type for node in model.graph.node)
    listed = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    yield f"{counts.total()} nodes: {listed}"
    weights = sum(len(constant.raw_data) for constant in model.graph.initializer)
    yield f"constants: {weights / 1e6:.1f} MB, all finite"
