"""Write and read packs: the encoder's weights as blobs for kernels that load them themselves.

An AMD XDNA's kernels through XRT buffers are one example (`xrt` beside this module); `pack_layout`
has the format. pack.json is written from a pack's layout, and read only if every value of it is
as written; the blobs are mapped into memory and every checksum is verified.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.convert import Checkpoint, Weights, WhisperConfig
from appliance.errors import ModelError
from appliance.lab.pack_layout import (
    ALIGNMENT,
    DTYPES,
    Array,
    Blob,
    Tensor,
    lay_out,
    narrow,
    widen,
)
from appliance.model import drafted, read_json, write_json

INDEX = "pack.json"
FORMAT, SCHEMA = "roomscribe pack", 1
LARGEST_SIZE = 100_000
"""Twice the largest number in any Whisper's config."""
FIX = "the pack is damaged: write it again with roomscribe model pack"

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Index:
    """pack.json."""

    dtype: str
    """A key of DTYPES."""
    config: WhisperConfig
    checkpoint_sha256: str
    sha256: Mapping[str, str]
    """Of each blob, by its file's name."""

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """All files, in the order in which the signal passes them."""
        return lay_out(self.config, self.dtype)


def _to_json(index: Index) -> dict[str, Any]:
    """Return the content of pack.json."""
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "dtype": index.dtype,
        "byte_order": "little",
        "alignment": ALIGNMENT,
        "checkpoint_sha256": index.checkpoint_sha256,
        "config": asdict(index.config),
        "blobs": [
            {
                "file": blob.file,
                "size": blob.size,
                "sha256": index.sha256[blob.file],
                "tensors": [
                    {"name": each.name, **_describe(each.values)}
                    | ({"scales": _describe(each.scales)} if each.scales else {})
                    for each in blob.tensors
                ],
            }
            for blob in index.blobs
        ],
    }


def _describe(array: Array) -> dict[str, Any]:
    where = {"offset": array.offset, "size": array.size}
    return {"shape": list(array.shape), "dtype": array.dtype, **where}


def read_index(folder: Path) -> Index:
    """Return pack.json, if every value of it is as `write_pack` writes it for these sizes and this
    type. Raises ModelError."""
    file = folder / INDEX
    found = read_json(file)
    try:
        config = WhisperConfig(**found["config"])
        sums = {blob["file"]: str(blob["sha256"]) for blob in found["blobs"]}
        if config.encoder_layers + 3 != len(sums) or max(astuple(config)) > LARGEST_SIZE:
            raise ValueError("sizes that do not fit")
        index = Index(found["dtype"], config, str(found["checkpoint_sha256"]), sums)
        if json.dumps(_to_json(index)) != json.dumps(found):
            raise ValueError("values that do not fit")
    except (LookupError, TypeError, ValueError, ArithmeticError):
        raise ModelError(
            f"{file}: expected the index of a pack as it was written, found a changed one; {FIX}"
        ) from None
    return index


@dataclass(frozen=True, slots=True)
class TensorReport:
    """Precision that one weight lost."""

    name: str
    blob: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    """In bytes, scales included."""
    max_abs_error: float
    """Largest difference to float32."""
    relative_rms_error: float
    """Root mean square of the differences over that of the weight."""


@dataclass(frozen=True, slots=True)
class PackReport:
    """Result of `write_pack`."""

    folder: Path
    dtype: str
    size: int
    """Of all blobs, bytes."""
    layers_size: int
    """Of the encoder layers' blobs, bytes."""
    layers_float32_size: int
    """What the same weights take in float32, bytes."""
    tensors: tuple[TensorReport, ...]

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        return asdict(self) | {"folder": str(self.folder)}

    def __str__(self) -> str:
        """The report for people: a line for each weight, then the sums."""
        width = max(len(each.name) for each in self.tensors)
        kinds = f"{'shape':<16} {'type':<9} {'bytes':>9}"
        lines = [f"{'weight':<{width}}  {kinds}  {'max error':>9}  relative RMS"]
        for each in self.tensors:
            shape = "x".join(map(str, each.shape))
            lines.append(
                f"{each.name:<{width}}  {shape:<16} {each.dtype:<9} {each.size:>9}  "
                f"{each.max_abs_error:>9.3g}  {each.relative_rms_error:.3g}"
            )
        lines.append(
            f"{self.folder}: {self.size} bytes; the encoder layers {self.layers_size} "
            f"({self.layers_float32_size} in float32)"
        )
        return "\n".join(lines)


def write_pack(checkpoint: Checkpoint, out: Path, dtype: str) -> PackReport:
    """Write the pack folder `out`, whole or not at all; a pack that is there is replaced.

    `dtype` is bf16, fp16, int8 or fp32. Raises ModelError for weights that do not fit the type,
    naming all of them, for a target that is no pack, and where there is no room.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype: expected one of {', '.join(DTYPES)}, found {dtype!r}")
    out = out.absolute()
    _check_target(out)
    blobs = lay_out(checkpoint.config, dtype)
    with drafted(out, "a pack") as draft:
        tensors, sums = _write_blobs(checkpoint.weights, blobs, draft)
        index = Index(dtype, checkpoint.config, checkpoint.sha256, sums)
        write_json(draft / INDEX, _to_json(index), indent=1)
    layers = [each for each in tensors if each.blob.startswith("layer_")]
    return PackReport(
        folder=out,
        dtype=dtype,
        size=sum(blob.size for blob in blobs),
        layers_size=sum(blob.size for blob in blobs if blob.file.startswith("layer_")),
        layers_float32_size=4 * sum(int(np.prod(each.shape)) for each in layers),
        tensors=tuple(tensors),
    )


def _check_target(out: Path) -> None:
    """Raise ModelError if writing to `out` would take away anything but a pack."""
    if not out.exists():
        return
    try:
        names = {INDEX, *(blob.file for blob in read_index(out).blobs)}
        foreign = sorted(file.name for file in out.iterdir() if file.name not in names)
    except (ModelError, OSError):
        foreign = [out.name]
    if foreign:
        raise ModelError(
            f"{out}: expected a pack to replace or nothing, found something else "
            f"({foreign[0]}); move it away"
        )


def _write_blobs(
    weights: Weights, blobs: tuple[Blob, ...], folder: Path
) -> tuple[list[TensorReport], dict[str, str]]:
    """Write all blobs; what each weight lost, and each file's SHA-256.

    Raises ModelError naming all weights that do not fit.
    """
    reports, sums, troubles = [], {}, []
    for blob in blobs:
        digest = hashlib.sha256()
        with (folder / blob.file).open("wb") as stream:
            at = 0
            for tensor in blob.tensors:
                values = weights[tensor.name]
                try:
                    stored = narrow(values, tensor.values.dtype)
                except ModelError as trouble:
                    troubles.append(f"{tensor.name}: {trouble}")
                    continue
                for array, numbers in zip(tensor.arrays, stored, strict=True):
                    data = bytes(array.offset - at) + numbers.tobytes()
                    stream.write(data)
                    digest.update(data)
                    at = array.offset + array.size
                reports.append(_report(tensor, blob, values, widen(stored, tensor.values.dtype)))
            end = bytes(blob.size - at)
            stream.write(end)
            digest.update(end)
            stream.flush()
            os.fsync(stream.fileno())
        sums[blob.file] = digest.hexdigest()
    if troubles:
        raise ModelError(f"{len(troubles)} of the weights do not fit: " + "; ".join(troubles))
    return reports, sums


def _report(
    tensor: Tensor, blob: Blob, values: NDArray[np.float32], found: NDArray[np.float32]
) -> TensorReport:
    wide = values.astype(np.float64)
    error = found - wide
    scale = float(np.sqrt(np.mean(wide**2)))
    return TensorReport(
        name=tensor.name,
        blob=blob.file,
        shape=tensor.values.shape,
        dtype=tensor.values.dtype,
        size=sum(array.size for array in tensor.arrays),
        max_abs_error=float(np.abs(error).max()),
        relative_rms_error=float(np.sqrt(np.mean(error**2))) / scale if scale else 0.0,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """A verified pack folder."""

    folder: Path
    index: Index
    data: Mapping[str, Bytes]
    """Each blob by its file's name, (size,) uint8, a read-only map of the file."""


def read_pack(folder: Path) -> Pack:
    """Return the pack in a folder, with every offset, size, shape and checksum verified.

    Raises ModelError naming file, key, what was expected, what was found and what to do.
    """
    index = read_index(folder)
    return Pack(folder, index, {blob.file: _map(folder, blob, index) for blob in index.blobs})


def _map(folder: Path, blob: Blob, index: Index) -> Bytes:
    """Return a verified blob."""
    file = folder / blob.file
    try:
        data: Bytes = np.memmap(file, np.uint8, "r")
    except OSError as error:
        raise ModelError(
            f"{file}: expected a readable file, found: {error.strerror}; {FIX}"
        ) from error
    except ValueError:
        raise ModelError(f"{file}: expected {blob.size} bytes, found 0; {FIX}") from None
    if len(data) != blob.size:
        raise ModelError(f"{file}: expected {blob.size} bytes, found {len(data)}; {FIX}")
    found, expected = hashlib.sha256(data.data).hexdigest(), index.sha256[blob.file]
    if found != expected:
        raise ModelError(f"{file}: expected the SHA-256 {expected}, found {found}; {FIX}")
    return data
