"""A pack read back: mapped into memory, every checksum verified."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.model.packs.index import CURE, Index, read_index
from appliance.model.packs.layout import Array, Blob, Tensor
from appliance.model.packs.types import STORED, widen

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """A verified pack folder."""

    folder: Path
    index: Index
    data: Mapping[str, Bytes]
    """Each blob by its file's name, (size,) uint8, a read-only map of the file."""

    @property
    def tensors(self) -> dict[str, tuple[str, Tensor]]:
        """Blob and place of every weight by its name."""
        return {each.name: (blob.file, each) for blob in self.index.blobs for each in blob.tensors}

    def stored(self, name: str) -> list[NDArray[Any]]:
        """A weight as it is stored: its numbers, bfloat16 as uint16, and for int8 its scales.

        Views of the map. Raises ModelError for a name that the encoder does not have.
        """
        if name not in self.tensors:
            raise ModelError(
                f"{self.folder}: expected a weight of the encoder such as "
                f"{next(iter(self.tensors))}, found {name!r}"
            )
        file, tensor = self.tensors[name]
        return [_view(self.data[file], array) for array in tensor.arrays]

    def weight(self, name: str) -> NDArray[np.float32]:
        """A weight as float32 numbers; a copy. Raises ModelError as `stored` does."""
        return widen(self.stored(name), self.tensors[name][1].values.dtype)


def read_pack(folder: Path) -> Pack:
    """The pack in a folder, every offset, size, shape and checksum verified.

    Raises ModelError naming file, key, what was expected, what was found and what to do.
    """
    index = read_index(folder)
    return Pack(folder, index, {blob.file: _map(folder, blob, index) for blob in index.blobs})


def _map(folder: Path, blob: Blob, index: Index) -> Bytes:
    """A blob, verified."""
    file = folder / blob.file
    try:
        data: Bytes = np.memmap(file, np.uint8, "r")
    except OSError as error:
        raise ModelError(
            f"{file}: expected a readable file, found: {error.strerror}; {CURE}"
        ) from error
    except ValueError:
        raise ModelError(f"{file}: expected {blob.size} bytes, found 0; {CURE}") from None
    if len(data) != blob.size:
        raise ModelError(f"{file}: expected {blob.size} bytes, found {len(data)}; {CURE}")
    found, expected = hashlib.sha256(data.data).hexdigest(), index.sha256[blob.file]
    if found != expected:
        raise ModelError(f"{file}: expected the SHA-256 {expected}, found {found}; {CURE}")
    return data


def _view(data: Bytes, array: Array) -> NDArray[Any]:
    """The numbers of an array in its blob."""
    numbers = data[array.offset : array.offset + array.size].view(STORED[array.dtype])
    return numbers.reshape(array.shape)
