"""Write appliance/infer/arithmetic.onnx, the products for checking a processor.

    PYTHONPATH=tests:scripts .venv/bin/python -m generate.arithmetic [FILE]

Wanted again when the INT8 graphs get other operators: tests/infer/test_arithmetic.py says so then.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from appliance.convert.graph import RuntimeGraph
from appliance.infer import arithmetic


def write(file: Path) -> None:
    """Write the graph: many rows as encoder.onnx and cross.onnx multiply them, one as step.onnx
    does, and one with a table of rows, the vocabulary's."""
    matrix = arithmetic.weights()
    rows, inner, columns = arithmetic.ROWS, arithmetic.INNER, arithmetic.COLUMNS
    graph = RuntimeGraph({}, int8=True, many_rows=True)
    many = graph.input("many", (1, rows, inner))
    graph.output(graph.project(many, "many", matrix), "many_rows", (1, rows, columns))
    graph._many_rows = False
    one = graph.input("one", (1, 1, inner))
    graph.output(graph.project(one, "one", matrix), "one_row", (1, 1, columns))
    table = graph.constant("table", np.ascontiguousarray(matrix.T.astype(np.int8)))
    scanned = graph.scan(graph.narrowed(graph.reshape(one, 1, inner)), table)
    graph.output(scanned, "scanned", (1, columns))
    graph.save(file, "int8_arithmetic")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if sys.argv[1:] else arithmetic.FILE)
