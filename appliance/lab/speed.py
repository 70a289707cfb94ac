"""How fast this machine computes what Whisper is made of: two INT8 products, a second of work."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.convert import RuntimeGraph
from appliance.infer import Session

ROWS, INNER, COLUMNS = 500, 512, 2048
"""An encoder's: the positions of 10 s, and whisper-base's feed-forward layer."""
ROW_INNER, ROW_COLUMNS = 512, 16_384
"""A decoder's, for one token: 8 MB of weights, more than most caches hold."""
RUNS = 8


@dataclass(frozen=True, slots=True)
class Speed:
    """What one core of this machine was measured to do."""

    operations_per_s: float
    """Of a product of many rows; a multiplication with its addition counts as two."""
    weights_per_s: float
    """8-bit weights that a product of one row reads."""


def measure_speed() -> Speed:
    """Measure both products, the best of RUNS each. Raises ModelError, and OSError for /tmp."""
    random = np.random.default_rng(1)
    many_s = _product_s(random, ROWS, INNER, COLUMNS)
    row_s = _product_s(random, 1, ROW_INNER, ROW_COLUMNS)
    return Speed(2.0 * ROWS * INNER * COLUMNS / many_s, ROW_INNER * ROW_COLUMNS / row_s)


def _product_s(random: np.random.Generator, rows: int, inner: int, columns: int) -> float:
    """Return the processor's seconds for a (rows, inner) x (inner, columns) INT8 product."""
    matrix: NDArray[np.float32] = random.standard_normal((inner, columns), np.float32)
    graph = RuntimeGraph({}, int8=True, many_rows=rows > 1)
    x = graph.input("x", (1, rows, inner))
    graph.output(graph.project(x, "product", matrix), "y", (1, rows, columns))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "product.onnx"
        graph.save(file, "speed")
        session = Session(file, 1, {"x": (1, rows, inner)}, {"y": (1, rows, columns)})
    feeds = {"x": random.standard_normal((1, rows, inner), np.float32)}
    times_s = []
    for _ in range(RUNS):
        begun_s = time.process_time()
        session.run(feeds)
        times_s.append(time.process_time() - begun_s)
    return min(times_s)
