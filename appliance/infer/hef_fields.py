"""What a HEF's description says: chip, compiler, and the edges through which data comes and goes.

The description is a protobuf message; its field numbers are those of HailoRT's published hef.proto
(4.18 to 5.2). Only what is named here is read, everything else is stepped over. Real files of
versions 2 and 3 were read with it, none of them a Whisper encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Field = tuple[int, "int | memoryview"]
"""A field's number, and its value: a whole number, or the bytes of a text or a message."""

HEADER, NETWORKS = 1, 2
OUTPUT_ORDER = 4
"""Of a network group: names of its outputs, in the order of the graph's end nodes."""
ARCHITECTURE, COMPILER = 1, 3
CONTEXT_PATHS = ((3,), (8, 4, 3), (7, 1, 3), (8, 4, 7, 1, 3))
"""From a network group to its contexts: older files, newer ones, and those for the chips (8L) whose
network is kept once for each layout of the chip."""
METADATA, EDGES = 3, 2
DIRECTION, PLAIN, MUXED, SWITCHING = 1, 3, 4, 5
CONNECTION = 3
"""Of SWITCHING: 0 (the default) is an edge between the host and the chip."""
PREDECESSORS = 5
NAME, BASE, TRANSPOSED = 1, 2, 6
HEIGHT, WIDTH, FEATURES = 1, 3, 5
LONGEST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Edge:
    """An input or output of the network on the chip."""

    name: str
    shape: tuple[int, int, int]
    """Height, width, features: what HailoRT calls NHWC, without the batch."""

    @property
    def size(self) -> int:
        """Numbers in it."""
        height, width, features = self.shape
        return height * width * features


@dataclass(frozen=True, slots=True)
class Description:
    """What is read of the message."""

    architecture: int
    """Of HailoRT's ProtoHEFHwArch."""
    compiler: str
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    """In no order."""
    output_order: tuple[str, ...]
    """Their names, in the order of the graph that was compiled; empty where it is not told."""


def describe(message: memoryview) -> Description:
    """The description in a HEF's message. Raises ValueError where it is no such message."""
    header = _first(message, HEADER)
    compiler = _text(_first(header, COMPILER)[:LONGEST_TEXT])
    edges: tuple[dict[str, Edge], dict[str, Edge]] = ({}, {})
    for network in _messages(message, NETWORKS):
        for path in CONTEXT_PATHS:
            for context in _follow(network, path):
                _collect(context, edges)
    return Description(
        _number(header, ARCHITECTURE),
        compiler.strip(),
        tuple(edges[0].values()),
        tuple(edges[1].values()),
        tuple(
            _text(name)
            for network in _messages(message, NETWORKS)
            for name in _messages(network, OUTPUT_ORDER)
        ),
    )


def _collect(context: memoryview, edges: tuple[dict[str, Edge], dict[str, Edge]]) -> None:
    """Adds the edges of a context that lead to the host or come from it."""
    for layer in _follow(context, (METADATA, EDGES)):
        if _number(_first(layer, SWITCHING), CONNECTION) == 0:
            known = edges[min(_number(layer, DIRECTION), 1)]
            for edge in _edges(layer, PLAIN, MUXED):
                known.setdefault(edge.name, edge)


def _edges(layer: memoryview, plain: int, muxed: int) -> Iterator[Edge]:
    """The edge in a layer, or those that were joined into it."""
    for info in _messages(layer, plain):
        base = _first(info, BASE)
        shape = (_number(base, HEIGHT), _number(base, WIDTH), _number(base, FEATURES))
        if _number(info, TRANSPOSED):
            shape = (shape[1], shape[0], shape[2])
        yield Edge(_text(_first(info, NAME)), shape)
    for mux in _messages(layer, muxed):
        for predecessor in _messages(mux, PREDECESSORS):
            yield from _edges(predecessor, 1, 2)


def _follow(message: memoryview, path: tuple[int, ...]) -> Iterator[memoryview]:
    """The messages at the end of a path of field numbers."""
    if not path:
        yield message
        return
    for inner in _messages(message, path[0]):
        yield from _follow(inner, path[1:])


def _messages(message: memoryview, number: int) -> Iterator[memoryview]:
    for found, value in _fields(message):
        if found == number and isinstance(value, memoryview):
            yield value


def _first(message: memoryview, number: int) -> memoryview:
    return next(_messages(message, number), memoryview(b""))


def _text(content: memoryview) -> str:
    return bytes(content).decode("utf-8", "replace")


def _number(message: memoryview, number: int) -> int:
    """A whole number; 0, protobuf's default, where there is none."""
    values = (value for found, value in _fields(message) if found == number)
    return next((value for value in values if isinstance(value, int)), 0)


def _fields(message: memoryview) -> Iterator[Field]:
    """The fields of a message, in order. Raises ValueError where it breaks off."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        length = {1: 8, 5: 4}.get(kind, 0)
        if kind == 2:
            length, at = _varint(message, at)
        elif not length:
            raise ValueError(f"a field of kind {kind}")
        if at + length > len(message):
            raise ValueError("a field longer than the message")
        if kind == 2:
            yield key >> 3, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where the next field begins."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number that does not end")
