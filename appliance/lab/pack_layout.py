"""Layout of a pack: which blob holds which weights of the encoder, in which type.

A pack is a folder with pack.json and a blob for each part of the encoder:

    stem.bin               both convolutions
    positions.bin          the position embedding
    layer_00.bin ...       one for each layer, weights in the order in which a kernel needs them
    final_layer_norm.bin

Weights are row-major, little-endian and contiguous. Each begins at a multiple of ALIGNMENT bytes
and each blob is a multiple of it; the gaps that this may need are zeros, and Whisper's own shapes
need none: whisper-base's six layers are 75,644,928 bytes in float32 and 37,822,464 in bfloat16.
(25.2 and 12.6 MB, often quoted for them, are the projections of their attention alone.)
Names and shapes are those of the checkpoint: a linear layer's weight is (out, in), a
convolution's (out, in, 3).

In an int8 pack matrices and convolutions are int8, with one float32 scale for each output channel
right behind them; biases, layer norms and positions stay float32. In the other packs all weights
have the pack's type. `narrow` and `widen` go from float32 to these types and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.convert import (
    ENCODER,
    SOUND_POSITIONS,
    WhisperConfig,
    expected_shapes,
    to_int8 as columns_to_int8,
)
from appliance.errors import ModelError

ALIGNMENT = 64
"""Bytes: a cache line, a multiple of every vector load of the NPUs and CPUs meant."""
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "int8": "int8", "fp32": "float32"}
"""Types of packs, and of the numbers in them."""
LAYER = (
    *("self_attn_layer_norm.weight", "self_attn_layer_norm.bias"),
    *("self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight"),
    *("self_attn.v_proj.weight", "self_attn.v_proj.bias"),
    *("self_attn.out_proj.weight", "self_attn.out_proj.bias"),
    *("final_layer_norm.weight", "final_layer_norm.bias"),
    *("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"),
)
"""A layer's weights; Whisper's key projection has no bias."""

Bits = NDArray[np.uint16]
"""bfloat16 numbers as their 16 bits; numpy has no such type."""

STORED: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "bfloat16": np.dtype("<u2"),
    "float16": np.dtype("<f2"),
    "int8": np.dtype("i1"),
}
"""How numpy sees the numbers of each type in a pack."""
LARGEST = {
    "float32": float(np.finfo(np.float32).max),
    "bfloat16": 2.0**128 - 2.0**120,
    "float16": 65504.0,
    "int8": float(np.finfo(np.float32).max),
}
"""Beyond this a number does not fit; an int8's scale takes what float32 takes."""


def to_bfloat16(values: NDArray[np.float32]) -> Bits:
    """The nearest bfloat16 of each number, ties to even as in IEEE 754; same shape.

    What is too large becomes infinity, subnormals round like all others, a NaN stays a NaN (made
    quiet) with its sign.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + (np.uint32(0x7FFF) + odd)) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def from_bfloat16(bits: Bits) -> NDArray[np.float32]:
    """The numbers, exactly; same shape."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_int8(values: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Values (n, ...) as int8 in -127..127 of the same shape, and scales (n,) float32.

    A number is int8 times the scale of its output channel (the first axis); a channel's largest
    number is 127. A channel of zeros has scale 1. -128 is not used, so that a kernel may negate.
    """
    steps, scales = columns_to_int8(values.reshape(len(values), -1).T)
    return np.ascontiguousarray(steps.T).reshape(values.shape), scales


def from_int8(steps: NDArray[np.int8], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """The numbers that int8 (n, ...) and scales (n,) stand for; same shape."""
    rows = steps.reshape(len(steps), -1).astype(np.float32) * scales[:, None]
    return np.asarray(rows, np.float32).reshape(steps.shape)


def narrow(values: NDArray[np.float32], dtype: str) -> list[NDArray[Any]]:
    """The arrays that are stored for `values`: the numbers in `dtype`, for int8 scales as well.

    Raises ModelError when a number is not finite or does not fit.
    """
    largest = float(np.abs(values).max())
    if not largest <= LARGEST[dtype]:
        raise ModelError(f"expected at most {LARGEST[dtype]:.8g} for {dtype}, found {largest:.8g}")
    if dtype == "bfloat16":
        return [to_bfloat16(values).astype(STORED[dtype])]
    if dtype == "int8":
        steps, scales = to_int8(values)
        return [steps, scales.astype(STORED["float32"])]
    return [values.astype(STORED[dtype])]


def widen(stored: list[NDArray[Any]], dtype: str) -> NDArray[np.float32]:
    """The float32 numbers that the arrays of `narrow` stand for."""
    if dtype == "bfloat16":
        return from_bfloat16(stored[0].astype(np.uint16))
    if dtype == "int8":
        return from_int8(stored[0].astype(np.int8), stored[1].astype(np.float32))
    return stored[0].astype(np.float32)


@dataclass(frozen=True, slots=True)
class Array:
    """Position of an array in its blob."""

    shape: tuple[int, ...]
    dtype: str
    """A key of STORED."""
    offset: int
    """Bytes from the blob's begin."""

    @property
    def size(self) -> int:
        """In bytes."""
        return prod(self.shape) * STORED[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight in a pack."""

    name: str
    values: Array
    scales: Array | None
    """(out,) float32 for int8 weights."""

    @property
    def arrays(self) -> list[Array]:
        """As `narrow` gives them."""
        return [self.values] if self.scales is None else [self.values, self.scales]


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of a pack."""

    file: str
    size: int
    """In bytes."""
    tensors: tuple[Tensor, ...]


def lay_out(config: WhisperConfig, dtype: str) -> tuple[Blob, ...]:
    """The blobs of a network of these sizes in a pack of this type."""
    shapes = expected_shapes(config)
    stem = [f"{ENCODER}.conv{n}.{kind}" for n in (1, 2) for kind in ("weight", "bias")]
    parts = {"stem.bin": stem, "positions.bin": [SOUND_POSITIONS]}
    for layer in range(config.encoder_layers):
        parts[f"layer_{layer:02d}.bin"] = [f"{ENCODER}.layers.{layer}.{name}" for name in LAYER]
    parts["final_layer_norm.bin"] = [f"{ENCODER}.layer_norm.{kind}" for kind in ("weight", "bias")]
    return tuple(
        _lay_out_blob(file, {name: shapes[name] for name in names}, dtype)
        for file, names in parts.items()
    )


def _lay_out_blob(file: str, shapes: Mapping[str, tuple[int, ...]], dtype: str) -> Blob:
    offset, tensors = 0, []
    for name, shape in shapes.items():
        values = Array(shape, _type_of(name, shape, dtype), offset)
        offset = _align(offset + values.size)
        scales = Array(shape[:1], "float32", offset) if values.dtype == "int8" else None
        offset = _align(offset + (scales.size if scales else 0))
        tensors.append(Tensor(name, values, scales))
    return Blob(file, offset, tuple(tensors))


def _type_of(name: str, shape: tuple[int, ...], dtype: str) -> str:
    """The type of a weight's numbers in a pack."""
    linear = len(shape) > 1 and name != SOUND_POSITIONS
    return "float32" if dtype == "int8" and not linear else DTYPES[dtype]


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
