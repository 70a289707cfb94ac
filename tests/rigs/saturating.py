"""A processor that computes products of 8 bits wrong."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from appliance.infer import arithmetic
from appliance.infer.arithmetic import Values


class Saturating:
    """Multiplies as x86's vpmaddubsw does: sums of two products are cut off at 16 bits."""

    def run(self, feeds: Mapping[str, NDArray[np.generic]], /) -> list[Values]:
        matrix = arithmetic.weights()
        many, one = (cut_off(feeds[name], matrix) for name in ("many", "one"))
        return [many, one, one[0]]


def cut_off(rows: NDArray[np.generic], matrix: Values) -> Values:
    products = rows[..., None].astype(np.float32) * matrix
    pairs = products[..., 0::2, :] + products[..., 1::2, :]
    total: Values = np.clip(pairs, -32768, 32767).sum(axis=-2, dtype=np.float32)
    return total
