"""Packs: the encoder's weights as blobs for kernels that load their weights themselves.

An AMD XDNA's kernels through XRT buffers are one example (`xrt` beside this module). The format is
told in `layout`; `reader` reads it back.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.model.checkpoint import Checkpoint
from appliance.model.library import drafted
from appliance.model.packs.index import INDEX, Index, read_index, write_index
from appliance.model.packs.layout import DTYPES, Blob, Tensor, lay_out
from appliance.model.packs.types import narrow, widen
from appliance.model.tensors import Weights


@dataclass(frozen=True, slots=True)
class TensorReport:
    """What a pack's type cost one weight."""

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
    """What `write_pack` wrote."""

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
    """Writes the pack folder `out`, whole or not at all; a pack that is there is replaced.

    `dtype` is bf16, fp16, int8 or fp32. Raises ModelError for weights that do not fit the type,
    naming all of them, for a target that is no pack, and where there is no room.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype: expected one of {', '.join(DTYPES)}, found {dtype!r}")
    out = out.absolute()
    _check_target(out)
    blobs = lay_out(checkpoint.config, dtype)
    try:
        with drafted(out) as draft:
            tensors, sums = _write_blobs(checkpoint.weights, blobs, draft)
            write_index(draft, Index(dtype, checkpoint.config, checkpoint.sha256, sums))
    except OSError as error:
        raise ModelError(
            f"{out}: expected room and leave to write a pack, found: {error.strerror}"
        ) from error
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
    """Raises ModelError if writing to `out` would take away anything but a pack."""
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
    """Writes all blobs; what each weight lost, and each file's SHA-256.

    Raises ModelError naming all weights that do not fit.
    """
    reports, sums, faults = [], {}, []
    for blob in blobs:
        digest = hashlib.sha256()
        with (folder / blob.file).open("wb") as stream:
            at = 0
            for tensor in blob.tensors:
                values = weights[tensor.name]
                try:
                    stored = narrow(values, tensor.values.dtype)
                except ModelError as fault:
                    faults.append(f"{tensor.name}: {fault}")
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
    if faults:
        raise ModelError(f"{len(faults)} of the weights do not fit: " + "; ".join(faults))
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
