"""Checks ONNX Runtime's products of 8-bit numbers on this processor.

arithmetic.onnx has one product of each kind that INT8 models use, written by
scripts/generate/arithmetic.py with the code that builds the models. Inputs and weights are whole
numbers, so that each product has one exact value. Half of them are the greatest that 8 bits hold:
instructions with too narrow an intermediate sum get those wrong (x86 before VNNI).
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.infer.sessions import Session, version
from appliance.model import Bundle

log = logging.getLogger("roomscribe.infer")

FILE = Path(__file__).with_name("arithmetic.onnx")
ROWS, INNER, COLUMNS = 3, 128, 40
LARGEST_ERROR = 0.01
"""Share of the greatest value. Right products have an error of 0 on x86-64, and a small one on
processors that round inputs in another way; saturating ones have 0.49."""
REPLACE = "install another onnxruntime, or add the model with `--quantize none` (32 bits, slower)"

Values = NDArray[np.float32]


class Products(Protocol):
    """Computes arithmetic.onnx: a Session, or a fake."""

    def run(self, feeds: Mapping[str, NDArray[np.generic]], /) -> list[Values]:
        """Return the products, in the order and shapes of `golden`."""
        ...


@dataclass(frozen=True, slots=True)
class Trouble:
    """Integer products that are wrong, or could not be checked."""

    found: str
    fix: str


def find_trouble(bundle: Bundle, products: Products | None = None) -> Trouble | None:
    """Return what is wrong with this processor's integer products; None if they are right, or if
    `bundle` has none.

    `products` None: ONNX Runtime's. Takes some milliseconds. Raises nothing: a graph that does not
    load or run is a trouble, too.
    """
    if bundle.quantize == "none":
        return None
    try:
        opened = products or open_products()
        off = errors(opened.run({"many": inputs(), "one": inputs()[:, :1]}))
    except ModelError as error:
        return Trouble(f"the INT8 arithmetic could not be checked: {error}", REPLACE)
    wrong = {name: error for name, error in off.items() if not error <= LARGEST_ERROR}
    if not wrong:
        return None
    return Trouble(
        f"texts are worse than they should be: onnxruntime {version()} computes INT8 products "
        f"wrongly on this processor ({platform.machine()}; "
        f"{', '.join(f'{name} off by {error:.0%}' for name, error in wrong.items())})",
        REPLACE,
    )


def warn_of_trouble(bundle: Bundle, products: Products | None = None) -> str:
    """Return `find_trouble` with its fix on one line, and log it; "" if there is none."""
    trouble = find_trouble(bundle, products)
    if trouble is None:
        return ""
    line = f"{trouble.found}; {trouble.fix}"
    log.warning("%s", line)
    return line


def open_products() -> Session:
    """Return a session of arithmetic.onnx. Raises ModelError."""
    shapes = {"many": (1, ROWS, INNER), "one": (1, 1, INNER)}
    results = {name: values.shape for name, values in golden().items()}
    return Session(FILE, 1, shapes, results, arena=False)


def errors(found: list[Values]) -> dict[str, float]:
    """Return the largest error of each product, as a share of its greatest right value."""
    return {
        name: float(np.abs(values - right).max() / np.abs(right).max())
        for values, (name, right) in zip(found, golden().items(), strict=True)
    }


def golden() -> dict[str, Values]:
    """Return the right values by output name, from numpy's 64-bit integers; float32 holds them
    exactly."""
    rows = inputs().astype(np.int64)
    many = rows @ weights().astype(np.int64)
    found = {"many_rows": many, "one_row": many[:, :1], "scanned": many[:, 0]}
    return {name: values.astype(np.float32) for name, values in found.items()}


def inputs() -> Values:
    """Return whole numbers 0 to 255, (1, ROWS, INNER), the first row all 255."""
    rows = (np.arange(ROWS)[:, None] * 37 + np.arange(INNER) * 101) % 256
    rows[0] = 255
    return rows.astype(np.float32)[None]


def weights() -> Values:
    """Return whole numbers -127 to 127, (INNER, COLUMNS), each column with one of the greatest: two
    columns of four are +-127 throughout, of one sign or alternating in pairs."""
    inner, column = np.arange(INNER)[:, None], np.arange(COLUMNS)[None]
    some = (inner * 67 + column * 29) % 255 - 127
    some[0] = 127
    whole = np.where(column % 4 == 0, 127, np.where(column % 4 == 1, -127, some))
    turning = np.where(inner % 4 < 2, 127, -127)
    return np.where(column % 8 == 4, turning, whole).astype(np.float32)
