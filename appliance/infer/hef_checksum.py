"""Checksums of HEF files: MD5, CRC-32 or XXH3, as the version of the file's header has it.

XXH3 (64 bits, no seed) follows the public description of the xxHash family; the standard library
has none, and a HEF is far longer than the 240 bytes below which XXH3 works differently.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

STRIPE, BLOCK = 64, 1024
SHORTEST = 241
"""Bytes from which XXH3 works as it is written here."""
BLOCKS_AT_ONCE = 1024
MASK = (1 << 64) - 1
PRIME32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
PRIME64 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
AVALANCHE = 0x165667919E3779F9
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8"
    "fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb17"
    "0ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
"""XXH3's own secret, 192 bytes."""


def md5(content: NDArray[np.uint8]) -> str:
    """MD5, 32 hexadecimal digits."""
    return hashlib.md5(content.data, usedforsecurity=False).hexdigest()


def crc32(content: NDArray[np.uint8]) -> str:
    """CRC-32 as zlib has it, 8 hexadecimal digits."""
    return f"{zlib.crc32(content.data):08x}"


def xxh3(content: NDArray[np.uint8]) -> str:
    """XXH3, 64 bits, 16 hexadecimal digits. Raises ValueError for less than SHORTEST bytes."""
    length = len(content)
    if length < SHORTEST:
        raise ValueError(f"expected at least {SHORTEST} bytes, found {length}")
    whole = (length - 1) // BLOCK
    sums = np.array([PRIME32[2], *PRIME64[:4], PRIME32[1], PRIME64[4], PRIME32[0]], np.uint64)
    scramble, keys = _secret(len(SECRET) - STRIPE, 1)[0], _secret(0, BLOCK // STRIPE)
    for first in range(0, whole, BLOCKS_AT_ONCE):
        last = min(whole, first + BLOCKS_AT_ONCE)
        words = content[first * BLOCK : last * BLOCK].view("<u8")
        for added in _mix(words.reshape(-1, BLOCK // STRIPE, 8), keys):
            sums += added
            sums ^= sums >> np.uint64(47)
            sums ^= scramble
            sums *= np.uint64(PRIME32[0])
    rest = content[whole * BLOCK : length - 1]
    stripes = len(rest) // STRIPE
    if stripes:
        words = rest[: stripes * STRIPE].view("<u8").reshape(1, stripes, 8)
        sums += _mix(words, keys[:stripes])[0]
    tail = content[-STRIPE:].copy().view("<u8").reshape(1, 1, 8)
    sums += _mix(tail, _secret(len(SECRET) - STRIPE - 7, 1))[0]
    return f"{_merge([int(word) for word in sums], length):016x}"


def _mix(words: Words, keys: Words) -> Words:
    """What each block (blocks, stripes, 8) adds to the eight sums: (blocks, 8)."""
    keyed = words ^ keys
    products = (keyed & np.uint64(0xFFFFFFFF)) * (keyed >> np.uint64(32))
    swapped = words.reshape(*words.shape[:2], 4, 2)[..., ::-1].reshape(words.shape)
    total: Words = (products + swapped).sum(axis=1, dtype=np.uint64)
    return total


def _secret(begin: int, stripes: int) -> Words:
    """The secret's words for so many stripes, each 8 bytes further on: (stripes, 8)."""
    return np.stack(
        [
            np.frombuffer(SECRET, "<u8", 8, begin + 8 * stripe).astype(np.uint64)
            for stripe in range(stripes)
        ]
    )


def _merge(sums: list[int], length: int) -> int:
    """The hash of the eight sums."""
    key = [int.from_bytes(SECRET[11 + 8 * i : 19 + 8 * i], "little") for i in range(8)]
    result = length * PRIME64[0]
    for i in range(0, 8, 2):
        product = (sums[i] ^ key[i]) * (sums[i + 1] ^ key[i + 1])
        result += (product & MASK) ^ (product >> 64)
    result &= MASK
    result ^= result >> 37
    result = result * AVALANCHE & MASK
    return result ^ (result >> 32)


Checksum = Callable[[NDArray[Any]], str]
