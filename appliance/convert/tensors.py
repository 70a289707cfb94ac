"""Read weights from safetensors, verified before use.

The format (huggingface/safetensors, README): 8 bytes with the length of the header, little-endian;
the header, a JSON table of names with dtype, shape and the offsets of the first byte and behind
the last; the numbers, little-endian, without holes. Read here and not by the library, because a
header from a download must be bounded before it is parsed, and numpy has no bfloat16.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.model import require_regular, sha256, unreadable
from appliance.system import shorten

Weights = Mapping[str, NDArray[np.float32]]
"""Weights by Hugging Face's names. May be lazy: keep a tensor that you need twice."""

DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F64": np.dtype("<f8"),
}
"""What weights may be stored as, by safetensors' names. numpy has no bfloat16: it is read as whole
numbers, which are the upper halves of float32."""
HEADER_LIMIT = 4_000_000
"""Bytes. A large Whisper's header has 0.2 million; the format's own limit, 100 million, would let
a file of that size take gigabytes of memory."""
MAX_RANK = 8
METADATA = "__metadata__"
NAME_LENGTH = 120


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Position of a tensor in a file that was long enough when it was opened."""

    file: Path
    offset: int
    """Bytes from the start of the file."""
    length: int
    """Bytes in the file."""
    dtype: str
    """One of DTYPES if the tensor can be read; else the file's own name."""
    shape: tuple[int, ...]
    """As `read` gives it."""
    transposed: bool = False
    """Stored with its two axes in the other order."""

    def transpose(self) -> Self:
        """The same matrix with its axes exchanged."""
        return replace(self, shape=self.shape[::-1], transposed=not self.transposed)

    def rows(self, first: int, count: int) -> Self:
        """Return a part of the tensor, which is not transposed, along its first axis."""
        length = self.length // self.shape[0]
        return replace(
            self,
            offset=self.offset + first * length,
            length=count * length,
            shape=(count, *self.shape[1:]),
        )

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
    """Weights that are read or computed at each access; nothing is kept."""

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
            lines.append((sha256(file), file.name))
        except OSError as error:
            raise unreadable(file, error) from error
    if len(lines) == 1:
        return lines[0][0]
    return hashlib.sha256("".join(f"{each}  {name}\n" for each, name in lines).encode()).hexdigest()


def shown(name: object) -> str:
    """A name from a file, fit for one line of a message."""
    return shorten(name, NAME_LENGTH)


def listed(kind: str, troubles: Sequence[str], most: int = 300) -> str:
    """`kind` of troubles, counted and listed in one line."""
    rest = f"; and {len(troubles) - most} more" if len(troubles) > most else ""
    return f"{len(troubles)} {kind}: " + "; ".join(troubles[:most]) + rest


@contextmanager
def reading(file: Path, expected: str) -> Iterator[BinaryIO]:
    """Open a file of weights. What the block raises becomes a ModelError of one line, also a
    ValueError that says what was found."""
    try:
        require_regular(file)
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise unreadable(file, error) from error
    except (ValueError, RecursionError) as error:
        names = {UnicodeDecodeError: "a name that is no text", RecursionError: "too deep a table"}
        found = names.get(type(error), error)
        raise ModelError(
            f"{file}: expected {expected}, found {found}; get the file again"
        ) from None


def refuse_other(first: bytes) -> None:
    """Raise ValueError if a file begins as what often has the name of weights and is none."""
    if first[:2] == b"PK" or first[:1] == b"\x80":
        raise ValueError("a pickle (PyTorch's own format) under this name")
    if first[:4] == b"vers":
        raise ValueError("a pointer of Git LFS in its place: git lfs pull in that folder")


def open_safetensors(file: Path) -> dict[str, StoredTensor]:
    """Every tensor of `file`, unread. Raises ModelError saying what is wrong with the file."""
    with reading(file, "weights in safetensors") as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        header, start = _read_header(stream, size)
        header.pop(METADATA, None)
        return {name: _locate(file, name, entry, start, size) for name, entry in header.items()}


def _read_header(stream: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    first = stream.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > size - 8:
        refuse_other(first)
        raise ValueError(f"{size} bytes of which the header would take {length}")
    if length > HEADER_LIMIT:
        raise ValueError(f"a header of {length} bytes where {HEADER_LIMIT} are allowed")
    header = json.loads(stream.read(length))
    if not isinstance(header, dict):
        raise ValueError("a header that is no JSON table")
    return header, 8 + length


def _locate(file: Path, name: str, entry: object, start: int, size: int) -> StoredTensor:
    """The tensor that an entry of the header describes. Raises ValueError."""
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape = entry.get("dtype"), _counts(entry.get("shape"))
    offsets = _counts(entry.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:
        raise ValueError(f"{shown(name)} without dtype, shape and two data_offsets")
    first, last = offsets
    length = math.prod(shape) * DTYPES[dtype].itemsize if dtype in DTYPES else last - first
    if last - first != length or not first <= last <= size - start:
        raise ValueError(
            f"{shown(name)} from {first} to {last} where its shape takes {length} bytes, up to "
            f"{size - start}"
        )
    return StoredTensor(file, start + first, length, shown(dtype), tuple(shape))


def _counts(values: object) -> list[int] | None:
    """A list of up to MAX_RANK whole numbers from 0; None where it is something else."""
    if not isinstance(values, list) or len(values) > MAX_RANK:
        return None
    return values if all(type(each) is int and 0 <= each < 2**63 for each in values) else None
