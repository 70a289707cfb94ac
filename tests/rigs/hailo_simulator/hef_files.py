"""HEF files for tests: whole by every check of the format, for a chip that is simulated.

Behind the description, where a real one has the chip's data, it says in JSON what the simulator is
to do with it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

Shape = tuple[int, int, int]
Edges = Mapping[str, tuple[Shape, str]]
"""Shape of each edge, and the tensor of the graph that it is."""

ARCHITECTURES = {"HAILO8": 1, "HAILO8L": 3, "HAILO10H": 103, "SAGE": 100}


def write_hef(
    file: Path,
    input_shape: Shape,
    output_shape: Shape,
    chip: str = "HAILO8",
    *,
    told_output: Shape | None = None,
    graph: str = "encoder.onnx",
) -> Path:
    """An encoder's HEF. `told_output`: what the description says, where it lies; `graph`: the file
    beside it that computes it."""
    inputs, outputs = (
        {"encoder/input_layer1": (input_shape, "mel")},
        {"encoder/conv9": (output_shape, "states")},
    )
    told = {"encoder/conv9": (told_output or output_shape, "states")}
    return write_network(file, inputs, outputs, chip, graph=graph, told=told)


def write_network(
    file: Path,
    inputs: Edges,
    outputs: Edges,
    chip: str = "HAILO8",
    *,
    graph: str,
    order: Sequence[str] | None = None,
    told: Edges | None = None,
) -> Path:
    """A HEF of header version 1, computed by `graph`, a file beside it. `order`: that of the
    outputs, where it is not how they are given; `told`: what the description says of them."""
    edges = [_layer(name, shape, 0) for name, (shape, _) in inputs.items()]
    edges += [_layer(name, shape, 1) for name, (shape, _) in (told or outputs).items()]
    context = _message(3, b"".join(_message(2, edge) for edge in edges))
    names = b"".join(_message(4, name.encode()) for name in (outputs if order is None else order))
    header = _number(1, ARCHITECTURES[chip]) + _message(3, b"3.31.0")
    description = _message(1, header) + _message(2, _message(3, context) + names)
    about = {
        "chip": chip,
        "graph": graph,
        "inputs": [[name, shape, tensor] for name, (shape, tensor) in inputs.items()],
        "outputs": [[name, shape, tensor] for name, (shape, tensor) in outputs.items()],
    }
    data = json.dumps(about).encode()
    data = data.ljust(max(512, len(data)), b"\0")
    body = description + data
    sizes = zlib.crc32(body).to_bytes(4, "big") + len(data).to_bytes(8, "big") + bytes(4)
    head = b"\x01HEF" + (1).to_bytes(4, "big") + len(description).to_bytes(4, "big")
    file.write_bytes(head + sizes + body)
    return file


def _layer(name: str, shape: Shape, direction: int) -> bytes:
    """An edge between host (direction 0: from it) and chip."""
    height, width, features = shape
    base = _number(1, height) + _number(3, width) + _number(5, features)
    info = _message(1, name.encode()) + _message(2, base)
    return _number(1, direction) + _message(3, info) + _message(5, _number(1, 0))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    def digits() -> Iterable[int]:
        rest = value
        while rest > 0x7F:
            yield rest & 0x7F | 0x80
            rest >>= 7
        yield rest

    return bytes(digits())
