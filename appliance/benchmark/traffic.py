"""The floor of a token's time: bytes that it must read over the memory's speed."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx

from appliance.benchmark.facts import Facts

ARRAY_BYTES = 256 << 20
"""Many times the largest cache of such a machine."""
ROUNDS = 20
LOOKED_UP = {"Gather", "GatherBlockQuantized"}
"""Operators that read a row of a table, not the table."""
FLOAT_BYTES = 4


def memory_speed(threads: int) -> float:
    """Bytes a second that `threads` threads read from memory: the best of ROUNDS passes of numpy's
    maximum over ARRAY_BYTES."""
    array = np.ones(ARRAY_BYTES // FLOAT_BYTES, np.float32)
    parts = np.array_split(array, threads)
    with ThreadPoolExecutor(threads) as pool:
        best = math.inf
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - begun)
    return ARRAY_BYTES / best


def bytes_of_graph(file: Path, unread: str = "") -> int:
    """Bytes of the constants that one run of a graph reads: of tables that are only looked up in,
    one row; of those whose name ends in `unread`, none."""
    graph = onnx.load(str(file), load_external_data=False).graph
    readers: dict[str, set[str]] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            is_lookup = node.op_type in LOOKED_UP and place == 0
            readers.setdefault(name, set()).add("lookup" if is_lookup else "whole")
    total = 0
    for constant in graph.initializer:
        if unread and constant.name.endswith(unread):
            continue
        size = _size(constant)
        lookup = readers.get(constant.name) == {"lookup"} and len(constant.dims) > 1
        total += size // max(1, constant.dims[0]) if lookup else size
    return total


def bytes_of_cross_cache(facts: Facts, positions: int) -> int:
    """Bytes of the cross-attention's keys and values in float32, read for every token."""
    return 2 * facts.decoder_layers * positions * facts.d_model * FLOAT_BYTES


def _size(constant: onnx.TensorProto) -> int:
    """Bytes of a constant's values."""
    count: int = math.prod(constant.dims)
    if constant.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4):
        return (count + 1) // 2
    item = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(constant.data_type)).itemsize
    return count * int(item)
