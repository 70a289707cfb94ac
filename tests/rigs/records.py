"""Compares records field by field: frozen dataclasses that hold arrays or NaN have no `==`."""

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def differences(one: Any, other: Any) -> list[str]:
    """The names of the fields in which two records of one class differ; of records within them,
    too, as `frame.start_s`. NaN equals NaN, and arrays are equal if type, shape and numbers are.
    """
    assert type(one) is type(other), (one, other)
    found = []
    for field in fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if is_dataclass(left) and type(left) is type(right):
            found += [f"{field.name}.{name}" for name in differences(left, right)]
        elif not _equal(left, right):
            found.append(field.name)
    return found


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
        )
    if isinstance(left, float) and math.isnan(left):
        return isinstance(right, float) and math.isnan(right)
    return bool(left == right)
