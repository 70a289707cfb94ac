"""Write packs: the encoder's weights as blobs for kernels that load them, as an AMD XDNA's.

A pack is a folder with pack.json, which says where each weight lies, and a blob for each part of
the encoder:

    stem.bin               both convolutions
    positions.bin          the position embedding
    layer_00.bin ...       one for each layer, weights in the order in which a kernel needs them
    final_layer_norm.bin

Weights are row-major, little-endian and contiguous. Each begins at a multiple of ALIGNMENT bytes
and each blob is a multiple of it; the gaps that this may need are zeros. Names and shapes are those
of the checkpoint: a linear layer's weight is (out, in), a convolution's (out, in, 3). In an int8
pack matrices and convolutions are int8 (-128 is not used, so that a kernel may negate), with one
float32 scale for each output channel right behind them; other weights stay float32. In the other
packs all weights have the pack's type.
"""

import hashlib
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.convert import (
    ENCODER,
    SOUND_POSITIONS,
    Checkpoint,
    WhisperConfig,
    expected_shapes,
    to_int8,
)
from appliance.errors import ModelError
from appliance.model import drafted, write_json

INDEX = "pack.json"
ALIGNMENT = 64
"""Bytes: a cache line, a multiple of every vector load of the NPUs and CPUs meant."""
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
"""Types of packs, and of the numbers in them."""
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "int8": 1, "float32": 4}
LARGEST = {"bfloat16": 2.0**128 - 2.0**120, "float16": 65504.0}
"""Beyond this a number does not fit."""
LAYER = (
    *("self_attn_layer_norm.weight", "self_attn_layer_norm.bias"),
    *("self_attn.q_proj.weight", "self_attn.q_proj.bias", "self_attn.k_proj.weight"),
    *("self_attn.v_proj.weight", "self_attn.v_proj.bias"),
    *("self_attn.out_proj.weight", "self_attn.out_proj.bias"),
    *("final_layer_norm.weight", "final_layer_norm.bias"),
    *("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"),
)
"""A layer's weights; Whisper's key projection has no bias."""

Table = dict[str, Any]
Floats = NDArray[np.float32]


def lay_out(config: WhisperConfig, dtype: str) -> list[Table]:
    """Return what pack.json says of each blob, but for its checksum."""
    shapes = expected_shapes(config)
    parts = {
        "stem.bin": [f"{ENCODER}.conv{n}.{kind}" for n in (1, 2) for kind in ("weight", "bias")],
        "positions.bin": [SOUND_POSITIONS],
    }
    for layer in range(config.encoder_layers):
        parts[f"layer_{layer:02d}.bin"] = [f"{ENCODER}.layers.{layer}.{name}" for name in LAYER]
    parts["final_layer_norm.bin"] = [f"{ENCODER}.layer_norm.{kind}" for kind in ("weight", "bias")]
    blobs = []
    for file, names in parts.items():
        at, tensors = 0, list[Table]()
        for name in names:
            linear = len(shapes[name]) > 1 and name != SOUND_POSITIONS
            kind = "float32" if dtype == "int8" and not linear else DTYPES[dtype]
            tensor, at = _place(shapes[name], kind, at)
            if kind == "int8":
                tensor["scales"], at = _place(shapes[name][:1], "float32", at)
            tensors.append({"name": name} | tensor)
        blobs.append({"file": file, "size": at, "tensors": tensors})
    return blobs


def _place(shape: tuple[int, ...], dtype: str, offset: int) -> tuple[Table, int]:
    """Return where an array lies, and the offset behind it."""
    size = prod(shape) * ITEM_BYTES[dtype]
    table = {"shape": [*shape], "dtype": dtype, "offset": offset, "size": size}
    return table, -(-(offset + size) // ALIGNMENT) * ALIGNMENT


def narrow(values: Floats, dtype: str) -> tuple[list[NDArray[Any]], Floats]:
    """Return the arrays to store for `values`, and the numbers that they stand for. Raises
    ModelError if one does not fit."""
    largest = float(np.abs(values).max())
    if largest > LARGEST.get(dtype, largest):
        raise ModelError(f"expected at most {LARGEST[dtype]:.8g} for {dtype}, found {largest:.8g}")
    if dtype == "bfloat16":  # to the nearest, ties to even
        bits = np.ascontiguousarray(values).view(np.uint32)
        upper = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
        return [upper], (upper.astype(np.uint32) << 16).view(np.float32)
    if dtype == "int8":
        whole, scales = to_int8(values.reshape(len(values), -1).T)
        return [whole.T, scales], (whole * scales).T.reshape(values.shape)
    stored = values.astype("<f2" if dtype == "float16" else "<f4")
    return [stored], stored.astype(np.float32)


def write_pack(checkpoint: Checkpoint, out: Path, dtype: str) -> Table:
    """Write the pack folder `out`, whole or not at all.

    Returns sizes in bytes, and each weight's errors: the largest, and the root mean square of all
    over that of the weight. Raises ModelError for a weight that does not fit the type, for a target
    that exists, and where there is no room.
    """
    out = out.absolute()
    if out.exists():
        raise ModelError(f"{out}: expected nothing there, found something; move it away")
    blobs, sums, tensors = lay_out(checkpoint.config, dtype), list[str](), list[Table]()
    with drafted(out, "a pack") as draft:
        for blob in blobs:
            data = bytearray(blob["size"])
            for tensor in blob["tensors"]:
                values = checkpoint.weights[tensor["name"]]
                try:
                    stored, found = narrow(values, tensor["dtype"])
                except ModelError as error:
                    raise ModelError(f"{tensor['name']}: {error}") from None
                for array, place in zip(stored, (tensor, tensor.get("scales")), strict=False):
                    data[place["offset"] : place["offset"] + place["size"]] = array.tobytes()
                lost, size = found - values, float(np.sqrt(np.mean(values**2))) or 1.0
                errors = {
                    "max_abs_error": float(np.abs(lost).max()),
                    "relative_rms_error": float(np.sqrt(np.mean(lost**2))) / size,
                }
                tensors.append({"name": tensor["name"], "dtype": tensor["dtype"]} | errors)
            (draft / blob["file"]).write_bytes(data)
            sums.append(hashlib.sha256(data).hexdigest())
        index = {
            "format": "roomscribe pack",
            "schema": 1,
            "dtype": dtype,
            "byte_order": "little",
            "alignment": ALIGNMENT,
            "checkpoint_sha256": checkpoint.sha256,
            "config": asdict(checkpoint.config),
            "blobs": [blob | {"sha256": found} for blob, found in zip(blobs, sums, strict=True)],
        }
        write_json(draft / INDEX, index, indent=1)
    size = sum(blob["size"] for blob in blobs)
    return {"folder": str(out), "dtype": dtype, "size": size, "tensors": tensors}
