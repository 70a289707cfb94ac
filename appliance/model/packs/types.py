"""The number types of packs: float32 -> bfloat16, float16, int8 with scales, and back.

Arrays of numbers as they lie in a pack are little-endian whatever the machine is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError

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
INT8_STEPS = 127
"""Symmetric: -128 is not used, so that a kernel may negate."""


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
    number is 127. A channel of zeros has scale 1.
    """
    rows = values.reshape(len(values), -1)
    scales = np.abs(rows).max(axis=1) / np.float32(INT8_STEPS)
    scales = np.where(scales > 0, scales, 1).astype(np.float32)
    steps = np.clip(np.rint(rows / scales[:, None]), -INT8_STEPS, INT8_STEPS)
    return steps.astype(np.int8).reshape(values.shape), scales


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
