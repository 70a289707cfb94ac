"""The token embedding: a file from which a step needs one row."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.model.bundle import EMBEDDING, Bundle


class Embedding:
    """Rows of the token embedding (vocabulary, d_model), float32 or float16 in the file.

    Read row by row when needed: it is the largest part of a small Whisper, and a window needs some
    dozens of its rows. Read, not mapped: each page that is touched would count, with 15 around it.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Opens the file. Raises ModelError."""
        self._path = bundle.folder / EMBEDDING
        dtype = np.dtype("<f4" if bundle.quantize == "none" else "<f2")
        rows, width = bundle.vocabulary_size, bundle.d_model
        try:
            self._file = self._path.open("rb", buffering=0)
        except OSError as error:
            raise ModelError(
                f"{self._path}: expected a readable file, found {error.strerror}"
            ) from error
        size = os.fstat(self._file.fileno()).st_size
        if size != rows * width * dtype.itemsize:
            raise ModelError(
                f"{self._path}: expected {rows} rows of {width} numbers of {dtype.itemsize} bytes, "
                f"found {size} bytes in all; build or install the bundle again"
            )
        self._row = np.empty(width, dtype)
        self.kept, self.left_out = bundle.kept, bundle.left_out
        self._place = np.empty(rows, np.int64)
        """Where each token's row begins, bytes."""
        self._place[np.concatenate([self.kept, self.left_out])] = np.arange(rows) * self._row.nbytes

    def look_up(self, tokens: Sequence[int], out: NDArray[np.float32]) -> None:
        """Writes the rows of n token ids to `out` (n, d_model). Raises ModelError."""
        for at, token in enumerate(tokens):
            read = os.preadv(self._file.fileno(), [self._row.data], int(self._place[token]))
            if read != self._row.nbytes:
                raise ModelError(f"{self._path}: expected a file that stays as it is, found it cut")
            out[at] = self._row

    def columns_of(self, tokens: Sequence[int]) -> NDArray[np.intp]:
        """Where token ids stand among the kept ones; those left out are dropped."""
        wanted = np.array(tokens, np.intp)
        return np.searchsorted(self.kept, wanted[np.isin(wanted, self.kept)])
