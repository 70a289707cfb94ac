"""Types and shapes of every tensor in an ONNX graph, found without touching its weights."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import helper, shape_inference

SMALL = 1024
"""Bytes. A constant up to this size may say what shape another tensor has."""


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its large constants declared as inputs: light, and of the same shapes."""
    light = helper.make_model(
        helper.make_graph(
            model.graph.node, model.graph.name, model.graph.input, model.graph.output
        ),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )
    for constant in model.graph.initializer:
        if len(constant.raw_data) <= SMALL:
            light.graph.initializer.append(constant)
        else:
            declared = helper.make_tensor_value_info(
                constant.name, constant.data_type, constant.dims
            )
            light.graph.input.append(declared)
    return light


def infer_shapes(light: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """What each node of a skeleton puts out. Raises onnx.shape_inference.InferenceError."""
    known = shape_inference.infer_shapes(light, check_type=True, strict_mode=True, data_prop=True)
    return list(known.graph.value_info)


def sizes(tensor: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    """The shape of a tensor; None where any of it is free or unknown."""
    if not tensor.type.tensor_type.HasField("shape"):
        return None
    axes: Iterable[onnx.TensorShapeProto.Dimension] = tensor.type.tensor_type.shape.dim
    found = tuple(axis.dim_value for axis in axes)
    return found if all(size > 0 for size in found) else None
