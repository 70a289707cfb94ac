"""float32 matrices -> 8 and 4 bits, symmetric, for ONNX Runtime's integer products."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HIGHEST_8, HIGHEST_4 = 127, 7
MIDDLE_4 = 8
"""MatMulNBits' zero point where none is given: stored 0 to 15 means -8 to 7."""
BLOCK_4 = 128
"""Numbers along a row that share a scale."""


def to_int8(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A matrix (in, out) as whole numbers -127..127 and the scale of each column, (out,)."""
    scales = np.abs(matrix).max(axis=0) / np.float32(HIGHEST_8)
    scales[scales == 0] = 1.0
    return np.rint(matrix / scales).astype(np.int8), scales.astype(np.float32)


def to_int4(rows: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A matrix (out, in) as MatMulNBits stores it: (out, blocks, BLOCK_4 / 2) bytes of two numbers,
    the first in the lower half, and the scales (out * blocks,). Rows are filled up with zeros.
    """
    count, width = rows.shape
    blocks = -(-width // BLOCK_4)
    padded = np.zeros((count, blocks * BLOCK_4), np.float32)
    padded[:, :width] = rows
    padded = padded.reshape(count, blocks, BLOCK_4)
    scales = np.abs(padded).max(axis=2, keepdims=True) / np.float32(HIGHEST_4)
    scales[scales == 0] = 1.0
    whole = (np.rint(padded / scales) + MIDDLE_4).astype(np.uint8)
    return whole[..., 0::2] | whole[..., 1::2] << 4, scales.reshape(-1)
