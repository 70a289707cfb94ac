"""pack.json: written from a pack's layout, and read only if every value of it is as written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from appliance.errors import ModelError
from appliance.model.packs.layout import ALIGNMENT, DTYPES, Array, Blob, lay_out
from appliance.model.shapes import WhisperConfig
from appliance.model.tensors import read_json

INDEX = "pack.json"
FORMAT, SCHEMA = "roomscribe pack", 1
LARGEST_SIZE = 100_000
"""Twice the largest number in any Whisper's config."""
CURE = "the pack is damaged: write it again with roomscribe model pack"


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
        """All files, in the order of the signal's way."""
        return lay_out(self.config, self.dtype)


def write_index(folder: Path, index: Index) -> None:
    """Writes pack.json."""
    text = json.dumps(_to_json(index), indent=1) + "\n"
    (folder / INDEX).write_text(text, "utf-8")


def _to_json(index: Index) -> dict[str, Any]:
    """What pack.json says."""
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
    """pack.json, every value of it as `write_index` would write it for these sizes and this type.

    Raises ModelError naming the first value that is not.
    """
    file = folder / INDEX
    found = read_json(file)
    try:
        index = _from_json(found)
        _compare(_to_json(index), found, "")
    except ModelError as fault:
        raise ModelError(f"{file}: {fault}; {CURE}") from None
    return index


def _from_json(found: dict[str, Any]) -> Index:
    """The index by its free values, as far as is needed to say what all others must be."""
    _compare(FORMAT, found.get("format"), "format")
    _compare(SCHEMA, found.get("schema"), "schema")
    dtype = found.get("dtype")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ModelError(f"dtype: expected one of {', '.join(DTYPES)}, found {_short(dtype)}")
    sizes, names = found.get("config"), [field.name for field in fields(WhisperConfig)]
    for name in names:
        size = sizes.get(name) if isinstance(sizes, dict) else None
        if type(size) is not int or not 1 <= size <= LARGEST_SIZE:
            raise ModelError(
                f"config.{name}: expected a whole number from 1 to {LARGEST_SIZE}, "
                f"found {_short(size)}"
            )
    config = WhisperConfig(**{name: found["config"][name] for name in names})
    blobs, count = found.get("blobs"), config.encoder_layers + 3
    if not isinstance(blobs, list) or len(blobs) != count:
        raise ModelError(
            f"blobs: expected {count} for {config.encoder_layers} layers, "
            f"found {len(blobs) if isinstance(blobs, list) else _short(blobs)}"
        )
    sums = [
        _checksum(blob.get("sha256") if isinstance(blob, dict) else None, f"blobs[{at}].sha256")
        for at, blob in enumerate(blobs)
    ]
    files = [blob.file for blob in lay_out(config, dtype)]
    origin = _checksum(found.get("checkpoint_sha256"), "checkpoint_sha256")
    return Index(dtype, config, origin, dict(zip(files, sums, strict=True)))


def _checksum(value: object, key: str) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise ModelError(
            f"{key}: expected a SHA-256 in 64 hexadecimal digits, found {_short(value)}"
        )
    return value


def _compare(expected: Any, found: Any, key: str) -> None:
    """Raises ModelError at the first place where two JSON values differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in [*expected, *(found.keys() - expected.keys())]:
            inner = f"{key}.{name}" if key else name
            _compare(expected.get(name, "nothing"), found.get(name, "nothing"), inner)
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            raise ModelError(f"{key}: expected {len(expected)} entries, found {len(found)}")
        for at, (one, other) in enumerate(zip(expected, found, strict=True)):
            _compare(one, other, f"{key}[{at}]")
    elif type(expected) is not type(found) or expected != found:
        raise ModelError(f"{key}: expected {_short(expected)}, found {_short(found)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
