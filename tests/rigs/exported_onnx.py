"""Whispers as exporters write them: encoder_model.onnx and decoder_model.onnx.

Names are those of torch's TorchScript exporter, called by optimum-onnx (named biases, norms,
convolutions and embeddings; anonymous transposed matrices; a position table folded into an Add),
or of torch's other exporter (dynamo=True: everything is named, nodes have no paths). Each weight is
at the operator that uses it; what holds no weight is left out, so the graphs compute nothing.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from appliance.convert.shapes import WhisperConfig, expected_shapes
from appliance.convert.tensors import Weights

TABLE = "embed_positions.weight"
TOKENS = "model.decoder.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Style:
    """How an exporter writes."""

    linear: str = "folded"
    """folded: x MatMul anonymous, at a node with the module's path; named: x MatMul the named
    matrix, turned; stored: x MatMul the named matrix, stored turned."""
    table: str = "anonymous"
    """Of the encoder's positions: anonymous or named."""
    encoder_prefix: str = ""
    decoder_prefix: str = "model.decoder."


def write_export(
    folder: Path, config: WhisperConfig, weights: Weights, style: Style | None = None
) -> Path:
    """Writes the two files into `folder`, which may be there."""
    style = style or Style()
    folder.mkdir(parents=True, exist_ok=True)
    for half, name in (("model.encoder.", "encoder_model"), ("model.decoder.", "decoder_model")):
        graph = Graph(style)
        prefix = style.encoder_prefix if name == "encoder_model" else style.decoder_prefix
        for full in expected_shapes(config):
            if full.startswith(half):
                graph.add(prefix, full.removeprefix(half), weights[full])
        if name == "decoder_model":
            graph.add("", "proj_out.weight", weights.get("proj_out.weight", weights[TOKENS]))
        onnx.save(graph.model(), str(folder / f"{name}.onnx"))
    return folder


@dataclass
class Graph:
    """A graph of one node for each weight."""

    style: Style
    nodes: list[Any] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)

    def add(self, prefix: str, name: str, array: NDArray[np.float32]) -> None:
        """Adds a weight; `name` is without the network's half."""
        module, named = name.rpartition(".")[0], prefix + name
        if name == TABLE and not prefix.endswith("decoder."):
            named = "onnx::Add_241" if self.style.table == "anonymous" else named
        if module.endswith(("proj", "proj_out", "fc1", "fc2")) and array.ndim == 2:
            self._add_matrix(prefix + module, named, array)
            return
        operator = "Conv" if "conv" in name else "Gather" if "embed_tokens" in name else "Add"
        self._node(operator, prefix + module, ["x", self._constant(named, array)])

    def _add_matrix(self, module: str, named: str, array: NDArray[np.float32]) -> None:
        kind = self.style.linear
        if kind == "folded":
            held = self._constant(f"onnx::MatMul_{500 + len(self.nodes)}", array.T)
        else:
            held = self._constant(named, array.T if kind == "stored" else array)
        if kind == "named":
            held = self._node("Transpose", module, [held], perm=[1, 0])
        self._node("MatMul", module, ["x", held])

    def _constant(self, name: str, array: NDArray[np.float32]) -> str:
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _node(self, operator: str, module: str, inputs: list[str], **attributes: Any) -> str:
        """The output of a new node; paths of modules are what the first exporter leaves."""
        path = f"/{module.replace('.layers.', '/layers.').replace('attn.', 'attn/')}"
        path = path.replace(".fc", "/fc") if self.style.linear == "folded" else ""
        name = f"{path}/{operator}_{len(self.nodes)}"
        node = helper.make_node(operator, inputs, [f"{name}_output_0"], name, **attributes)
        self.nodes.append(node)
        return f"{name}_output_0"

    def model(self) -> Any:
        """The whole file."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
        graph = helper.make_graph(self.nodes, "main", [x], [], self.tensors)
        return helper.make_model(graph, ir_version=8, producer_name="pytorch")
