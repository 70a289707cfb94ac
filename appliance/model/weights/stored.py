"""A tensor that lies in a file, and the weights of a network read from such tensors on demand."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError

Weights = Mapping[str, NDArray[np.float32]]
"""Weights by Hugging Face's names. May be lazy: whoever needs a tensor twice keeps it."""

DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F64": np.dtype("<f8"),
}
"""What weights may be stored as, by safetensors' names. numpy has no bfloat16: it is read as whole
numbers, which are the upper halves of float32."""
NAME_LENGTH = 120


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's place in a file that was long enough when it was opened."""

    file: Path
    offset: int
    """Bytes from the start of the file."""
    length: int
    """Bytes in the file."""
    dtype: str
    """One of DTYPES where the tensor can be read; else what the file says."""
    shape: tuple[int, ...]
    """As `read` gives it."""
    transposed: bool = False
    """Stored with its two axes in the other order."""

    def transpose(self) -> StoredTensor:
        """The same matrix with its axes exchanged."""
        return replace(self, shape=self.shape[::-1], transposed=not self.transposed)

    def read(self) -> NDArray[np.float32]:
        """The numbers, in `shape`: a new array in C order.

        Raises ModelError where the file has changed.
        """
        count = math.prod(self.shape)
        try:
            array: NDArray[Any] = np.fromfile(
                self.file, DTYPES[self.dtype], count, offset=self.offset
            )
        except OSError as error:
            raise unreadable(self.file, error) from error
        if array.size != count:
            raise ModelError(f"{self.file}: expected a file that stays as it is, found it shorter")
        if self.dtype == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore"):
            numbers: NDArray[np.float32] = array.astype(np.float32, copy=False)
        if self.transposed:
            return np.ascontiguousarray(numbers.reshape(self.shape[::-1]).T)
        return numbers.reshape(self.shape)


class LazyWeights(Mapping[str, NDArray[np.float32]]):
    """Weights made when asked for, by reading a file or by computing; nothing is kept."""

    def __init__(self, readers: Mapping[str, Callable[[], NDArray[np.float32]]]) -> None:
        self._readers = readers

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __contains__(self, name: object) -> bool:
        return name in self._readers


def digest(files: Sequence[Path]) -> str:
    """SHA-256 of a single file. Of several: of the lines that `sha256sum` would print for them, in
    order of their names, without folders. Raises ModelError.
    """
    lines = []
    for file in sorted(files, key=lambda each: each.name):
        try:
            with file.open("rb") as stream:
                lines.append((hashlib.file_digest(stream, "sha256").hexdigest(), file.name))
        except OSError as error:
            raise unreadable(file, error) from error
    if len(lines) == 1:
        return lines[0][0]
    return hashlib.sha256("".join(f"{each}  {name}\n" for each, name in lines).encode()).hexdigest()


def unreadable(file: Path, error: OSError) -> ModelError:
    """The error for a file that cannot be read."""
    return ModelError(f"{file}: expected a readable file, found: {error.strerror or error}")


def is_plain(name: object) -> bool:
    """Whether `name` is that of a file in the same folder, and no way out of it."""
    return (
        isinstance(name, str)
        and name not in {"", ".", ".."}
        and name.isprintable()
        and not set(name) & set('/\\:"')
    )


def shown(name: object) -> str:
    """A name from a file, fit for one line of a message."""
    text = str(name)
    if text.isprintable() and len(text) <= NAME_LENGTH:
        return text
    return ascii(text[:NAME_LENGTH])


def listed(kind: str, faults: Sequence[str], most: int = 300) -> str:
    """`kind` of faults, counted and listed in one line."""
    rest = f"; and {len(faults) - most} more" if len(faults) > most else ""
    return f"{len(faults)} {kind}: " + "; ".join(faults[:most]) + rest
