"""HEF files for tests: HailoRT's first bytes, a checksum, and in JSON what the simulator is to do.

Nothing in the product reads more of a HEF than its first bytes: the rest is HailoRT's own matter.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

Shape = tuple[int, int, int]
Edges = Mapping[str, tuple[Shape, str]]
"""Shape of each edge, and the tensor of the graph that it is."""


def write_hef(
    file: Path,
    input_shape: Shape,
    output_shape: Shape,
    chip: str = "HAILO8",
    *,
    graph: str = "encoder.onnx",
) -> Path:
    """An encoder's HEF. `graph`: the file beside it that computes it."""
    inputs, outputs = (
        {"encoder/input_layer1": (input_shape, "mel")},
        {"encoder/conv9": (output_shape, "states")},
    )
    return write_network(file, inputs, outputs, chip, graph=graph)


def write_network(
    file: Path,
    inputs: Edges,
    outputs: Edges,
    chip: str = "HAILO8",
    *,
    graph: str,
    order: Sequence[str] | None = None,
) -> Path:
    """A HEF, computed by `graph`, a file beside it. `order`: that of the outputs, where it is not
    how they are given."""
    about = {
        "chip": chip,
        "graph": graph,
        "inputs": [[name, shape, tensor] for name, (shape, tensor) in inputs.items()],
        "outputs": [[name, shape, tensor] for name, (shape, tensor) in outputs.items()],
        "order": list(outputs if order is None else order),
    }
    body = json.dumps(about).encode()
    file.write_bytes(b"\x01HEF" + zlib.crc32(body).to_bytes(4, "big") + body)
    return file
