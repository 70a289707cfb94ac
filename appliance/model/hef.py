"""HEF files, read without a device: version, chip, compiler, edges, and whether they are whole.

A HEF is a header, a description and the chip's data. The header's layout is that of HailoRT's
published sources (4.18 to 5.2): big-endian magic, version, length of the description; then, by
version, 0: MD5 of the description; 1: CRC-32, 2 and 3: XXH3, of all that follows the header, whose
length is given too. The description is a protobuf message; its field numbers are those of HailoRT's
published hef.proto (4.18 to 5.2). Only what is named here is read, everything else is stepped over.
Real files of versions 2 and 3 were read with it, none of them a Whisper encoder.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields as fields_of
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.model.bundle import HEF_FILE, Bundle
from appliance.model.files import require_regular

MAGIC = b"\x01HEF"
LAYOUTS = {0: ">4x16s", 1: ">IQ4x", 2: ">QQ16x", 3: ">QQIQ16x"}
"""What follows magic, version and length of the description, by version: checksum, bytes of data
behind the description, and in version 3 bytes of padding in them and bytes of what comes last."""
COMMON = 12
SINCE = {0: "4.18", 1: "4.18", 2: "4.20", 3: "4.21"}
"""First HailoRT that reads a version; before 4.18 there is nothing to run it with from Python."""

CHIP_NAMES = {"hailo8": "Hailo-8", "hailo8l": "Hailo-8L", "hailo10h": "Hailo-10H"}
ARCHITECTURES: dict[int, tuple[str, tuple[str, ...]]] = {
    0: ("Hailo-8", ("hailo8",)),
    1: ("Hailo-8", ("hailo8",)),
    2: ("Hailo-8R", ("hailo8",)),
    3: ("Hailo-8L", ("hailo8l", "hailo8")),
    4: ("Hailo-15M", ("hailo10h",)),
    5: ("Hailo-10H", ("hailo10h",)),
    6: ("Hailo-15L", ()),
    103: ("Hailo-10H or Hailo-15H", ("hailo10h",)),
    104: ("Hailo-10H or Hailo-15H", ("hailo10h",)),
    105: ("Hailo-10H or Hailo-15H", ("hailo10h",)),
}
"""The compiler's number: what it was compiled for, and the chips that run it (HailoRT's
is_hef_compatible)."""
HEADER, NETWORKS = 1, 2
"""Field numbers of the description, from here to HEIGHT."""
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
VARINT, LENGTH = 0, 2
FIXED = {1: 8, 5: 4}
"""Protobuf's wire types, the last two with their bytes."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What is read of a HEF's description."""

    architecture: int
    """Of HailoRT's ProtoHEFHwArch."""
    compiler: str
    """Version of Hailo's compiler, as it wrote it."""
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    """In no order."""
    output_order: tuple[str, ...]
    """Their names, in the order of the compiled graph; empty where the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hef(Description):
    """A HEF that is whole: lengths and checksum are right."""

    file: Path
    version: int
    """Of the header, 0 to 3."""
    checksum: str
    """Hexadecimal; MD5, CRC-32 or XXH3 by version."""

    @property
    def made_for(self) -> str:
        """The chip that it was compiled for, as people call it."""
        unknown = f"an unknown chip (number {self.architecture})"
        return ARCHITECTURES.get(self.architecture, (unknown, ()))[0]

    @property
    def chips(self) -> tuple[str, ...]:
        """hailo8, hailo8l, hailo10h: those that run it; none of them for a chip unknown here."""
        return ARCHITECTURES.get(self.architecture, ("", ()))[1]

    def check_chip(self, chip: str) -> None:
        """Raises ModelError unless `chip` (hailo8...) runs it."""
        if chip not in self.chips:
            raise ModelError(
                f"{self.file}: expected a HEF for {CHIP_NAMES.get(chip, chip)}, found one for "
                f"{self.made_for}; {_other_hef(chip)}"
            )

    def check_known(self, chip: str = "") -> None:
        """Raises ModelError unless `chip` runs it; "": any that is known here."""
        if chip:
            self.check_chip(chip)
        elif not self.chips:
            names = ", ".join(CHIP_NAMES.values())
            raise _refused(self.file, f"a HEF for {names}", f"for {self.made_for}")

    def check_library(self, version: str) -> None:
        """Raises ModelError when HailoRT `version` ("4.23.0") is too old for the file."""
        since = SINCE[self.version]
        if _numbers(version) < _numbers(since):
            raise ModelError(
                f"{self.file}: expected a HEF that HailoRT {version} reads, found one with a "
                f"header of version {self.version}, which HailoRT reads from {since} on; "
                "install a newer HailoRT"
            )

    def check_fit(self, bundle: Bundle) -> None:
        """Raises ModelError unless it is an encoder of the bundle's sizes, as far as the file says.

        How the numbers lie is HailoRT's to say: it is checked again when the chip is configured.
        """
        wanted = (
            ("input", self.inputs, (1, bundle.frames, bundle.n_mels)),
            ("output", self.outputs, (1, bundle.positions, bundle.d_model)),
        )
        for role, edges, shape in wanted:
            if edges and sum(edge.size for edge in edges) != int(np.prod(shape)):
                found = ", ".join(f"{edge.name} {edge.shape}" for edge in edges)
                raise ModelError(
                    f"{self.file}: {role}: expected {shape} for model {bundle.name} "
                    f"({bundle.window_s:g} s), found {found}; it is the HEF of another model or "
                    f"window: roomscribe model add {bundle.name} --hef FILE with the right one"
                )


def read_hef(file: Path) -> Hef:
    """The HEF in `file`. Raises ModelError when it cannot be read, or is cut short or damaged."""
    try:
        require_regular(file)
        content = np.fromfile(file, np.uint8)
    except OSError as error:
        raise _refused(file, "a readable file", str(error.strerror)) from error
    begin = content[: COMMON + 60].tobytes()
    if begin[:4] != MAGIC:
        raise _refused(file, f"a HEF (its first bytes are {MAGIC!r})", repr(begin[:4]))
    if len(content) < COMMON:
        raise _refused(file, f"a header of {COMMON} bytes", f"{len(content)} bytes")
    version, length = struct.unpack_from(">II", begin, 4)
    if version not in LAYOUTS:
        raise _refused(
            file, "a header of version 0 to 3", f"version {version}, from a newer compiler"
        )
    size = COMMON + struct.calcsize(LAYOUTS[version])
    if len(content) < size:
        raise _refused(file, f"a header of {size} bytes", f"{len(content)} bytes")
    checksum = _check(file, content, version, length)
    try:
        description = describe(content.data[size : size + length])
    except ValueError as error:
        raise _refused(file, "a description of the network", str(error)) from error
    values = {each.name: getattr(description, each.name) for each in fields_of(Description)}
    return Hef(file=file, version=version, checksum=checksum, **values)


def verify_hef(file: Path, bundle: Bundle, chip: str = "") -> Hef:
    """The HEF in `file`, if it is whole, an encoder of the bundle's sizes, and runs on `chip`
    (hailo8..., "": any that is known). Touches no device. Raises ModelError.
    """
    hef = read_hef(file)
    hef.check_known(chip)
    hef.check_fit(bundle)
    return hef


def bundled_hef(bundle: Bundle) -> Path | None:
    """The bundle's HEF; None where it has none."""
    return bundle.folder / HEF_FILE if HEF_FILE in bundle.files else None


def _check(file: Path, content: NDArray[np.uint8], version: int, length: int) -> str:
    """The right checksum, as found. Raises ModelError when lengths or checksum are wrong."""
    given = struct.unpack_from(LAYOUTS[version], content.data, COMMON)
    body = content.data[COMMON + struct.calcsize(LAYOUTS[version]) :]
    behind = 0 if version == 0 else given[1] + (given[3] if version == 3 else 0)
    if len(body) != length + behind:
        raise _refused(
            file, f"{length + behind} bytes behind the header", f"{len(body)}: it is cut short"
            if len(body) < length + behind else f"{len(body)}",
        )  # fmt: skip
    if version == 0:
        kind, wanted = "MD5", given[0].hex()
        found = hashlib.md5(body, usedforsecurity=False).hexdigest()
    elif version == 1:
        kind, wanted, found = "CRC-32", f"{given[0]:08x}", f"{zlib.crc32(body):08x}"
    else:
        kind, wanted = "XXH3", f"{given[0]:016x}"
        import xxhash

        found = xxhash.xxh3_64_hexdigest(body)
    if wanted != found:
        raise _refused(file, f"{kind} {wanted}", f"{found}: it is damaged")
    return found


def _refused(file: Path, expected: str, found: str) -> ModelError:
    return ModelError(f"{file}: expected {expected}, found {found}; fetch or compile the HEF again")


def _numbers(version: str) -> tuple[int, ...]:
    """Major and minor version."""
    return tuple(int(part) for part in version.split(".")[:2])


def _other_hef(chip: str) -> str:
    """The fix for a HEF of another chip."""
    return f"install the model again with the right one: roomscribe model add NAME --hef {chip}"


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
        architecture=_number(header, ARCHITECTURE),
        compiler=compiler.strip(),
        inputs=tuple(edges[0].values()),
        outputs=tuple(edges[1].values()),
        output_order=tuple(_text(name) for name in _follow(message, (NETWORKS, OUTPUT_ORDER))),
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
    for field, value in _fields(message):
        if field == number and isinstance(value, memoryview):
            yield value


def _first(message: memoryview, number: int) -> memoryview:
    return next(_messages(message, number), memoryview(b""))


def _text(content: memoryview) -> str:
    return bytes(content).decode("utf-8", "replace")


def _number(message: memoryview, number: int) -> int:
    """A whole number; 0, protobuf's default, where there is none."""
    values = (value for field, value in _fields(message) if field == number)
    return next((value for value in values if isinstance(value, int)), 0)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Numbers and values of a protobuf message's fields, without their schema; those of fixed
    length are stepped over. Raises ValueError where it breaks off or is no message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, stop = 0, at
        if key & 7 in (VARINT, LENGTH):
            value, stop = _varint(message, at)
        if key & 7 == LENGTH:
            at, stop = stop, stop + value
        elif key & 7 in FIXED:
            stop += FIXED[key & 7]
        elif key & 7 != VARINT:
            raise ValueError("bytes that are no message")
        if stop > len(message):
            raise ValueError("a file that is cut off")
        if key & 7 not in FIXED:
            yield key >> 3, message[at:stop] if key & 7 == LENGTH else value
        at = stop


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A whole number of up to 64 bits and the offset behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("a file that is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("bytes that are no message")
