"""HEF files for tests: whole by every check of the format, for a chip that is simulated.

Behind the description, where a real one has the chip's data, it says in JSON what the simulator is
to do with it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path

Shape = tuple[int, int, int]

ARCHITECTURES = {"HAILO8": 1, "HAILO8L": 3, "HAILO10H": 103, "SAGE": 100}


def write_hef(
    file: Path,
    input_shape: Shape,
    output_shape: Shape,
    chip: str = "HAILO8",
    *,
    told_output: Shape | None = None,
) -> Path:
    """A HEF of header version 1. `told_output`: what the description says, where it lies."""
    edges = [
        _layer("encoder/input_layer1", input_shape, 0),
        _layer("encoder/conv9", told_output or output_shape, 1),
    ]
    context = _message(3, b"".join(_message(2, edge) for edge in edges))
    header = _number(1, ARCHITECTURES[chip]) + _message(3, b"3.31.0")
    description = _message(1, header) + _message(2, _message(3, context))
    about = {
        "chip": chip,
        "inputs": [["encoder/input_layer1", input_shape]],
        "outputs": [["encoder/conv9", output_shape]],
    }
    data = json.dumps(about).encode().ljust(512, b"\0")
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
