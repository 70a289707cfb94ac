"""A Whisper checkpoint folder -> the network's sizes and its verified, named weights.

Beside config.json lie model.safetensors, or its shards and model.safetensors.index.json, or
encoder_model.onnx and decoder_model.onnx, also in a folder onnx. Nothing of a checkpoint is ever
executed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.model.bundle import MANIFEST
from appliance.model.onnx_import import find_onnx, open_onnx_weights
from appliance.model.shapes import (
    CONFIG_FILE,
    EMBEDDING,
    INDEX_FILE,
    SOUND_POSITIONS,
    TIED_OUTPUT,
    WEIGHTS_FILE,
    WhisperConfig,
    expected_shapes,
    read_config,
    sinusoids,
)
from appliance.model.tensors import (
    DTYPES,
    LazyWeights,
    StoredTensor,
    Weights,
    digest,
    listed,
    open_safetensors,
    open_shards,
    read_json,
    shown,
    unreadable,
)

ADAPTER_FILE = "adapter_model.safetensors"
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}
OTHER_KINDS = {".h5", ".msgpack", ".gguf", ".tflite", ".onnx"}
HALVES = ("encoder.", "decoder.")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A network's sizes and weights."""

    config: WhisperConfig
    weights: Weights
    """Lazy: each access reads the tensor from its file; nothing is kept."""
    sha256: str
    """Of model.safetensors; of several files as `tensors.digest` says."""


def load_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`. Raises ModelError listing everything that is wrong with it.

    Every number is read once, tensor by tensor, to see that it is finite.
    """
    try:
        find = _find(folder)
    except OSError as error:
        raise unreadable(folder, error) from error
    config = read_config(folder / CONFIG_FILE)
    tied = read_json(folder / CONFIG_FILE).get("tie_word_embeddings") is not False
    tensors, files = find(config)
    place = files[0] if len(files) == 1 else folder
    troubles, readers = _check(tensors, config, tied=tied)
    if troubles:
        raise ModelError(f"{place}: {listed('wrong weights', troubles)}")
    return Checkpoint(config, LazyWeights(readers), digest(files))


Found = tuple[Mapping[str, StoredTensor], list[Path]]
"""Tensors by name, and the files they lie in."""
Reader = Callable[[], NDArray[np.float32]]


def _find(folder: Path) -> Callable[[WhisperConfig], Found]:
    """How to open the weights in `folder`. Raises ModelError where there are none to be read."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: expected a folder with a checkpoint, found none")
    if (folder / MANIFEST).is_file():
        raise ModelError(
            f"{folder}: expected a checkpoint, found a bundle, which is already built; "
            "name it as it is under [model]"
        )
    if (file := folder / WEIGHTS_FILE).exists():
        return lambda _: (_with_prefix(open_safetensors(file)), [file])
    if (index := folder / INDEX_FILE).exists():
        return lambda _: _open_index(index)
    if files := find_onnx(folder):
        return partial(open_onnx_weights, files)
    raise ModelError(f"{folder}: {_what_instead(folder)}")


def _open_index(index: Path) -> Found:
    tensors, files = open_shards(index)
    return _with_prefix(tensors), files


def _with_prefix(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """Names as WhisperForConditionalGeneration has them; WhisperModel leaves "model." out."""
    if any(name.startswith("model.") for name in tensors):
        return tensors
    return {
        f"model.{name}" if name.startswith(HALVES) else name: tensor
        for name, tensor in tensors.items()
    }


def _what_instead(folder: Path) -> str:
    """What a folder without weights to be read has, and the cure."""
    names = sorted(file.name for file in folder.iterdir() if file.is_file())
    expected = f"expected {WEIGHTS_FILE}, or encoder_model.onnx and decoder_model.onnx, found"
    pickles = [shown(name) for name in names if Path(name).suffix in PICKLES]
    others = [shown(name) for name in names if Path(name).suffix in OTHER_KINDS]
    if pickles:
        return (
            f"{expected} {pickles[0]}, a pickle, which could run code of its author and is never "
            f"opened; get {WEIGHTS_FILE} in its place, or make it where you trust the pickle: "
            "WhisperForConditionalGeneration.from_pretrained(...).save_pretrained(..., "
            "safe_serialization=True)"
        )
    if ADAPTER_FILE in names:
        return f"{expected} {ADAPTER_FILE}, an adapter; merge it into its model and save that"
    if others:
        return f"{expected} {others[0]}; get the model in one of the two kinds"
    return f"{expected} {'neither' if names else 'an empty folder'}; get the model again"


def _check(
    tensors: Mapping[str, StoredTensor], config: WhisperConfig, *, tied: bool
) -> tuple[list[str], dict[str, Reader]]:
    """Everything missing, surplus or wrong, and how to get each weight."""
    shapes = expected_shapes(config)
    present = {name: tensor for name, tensor in tensors.items() if name != TIED_OUTPUT}
    readers: dict[str, Reader] = {name: tensor.read for name, tensor in present.items()}
    if SOUND_POSITIONS not in present and config.d_model % 2 == 0 and config.d_model > 2:
        readers[SOUND_POSITIONS] = partial(sinusoids, config.max_source_positions, config.d_model)
    troubles = [f"{name}: missing" for name in sorted(shapes.keys() - readers.keys())]
    troubles += [f"{shown(name)}: not expected" for name in sorted(present.keys() - shapes.keys())]
    for name in sorted(shapes.keys() & present.keys()):
        if trouble := _trouble(present[name], shapes[name]):
            troubles.append(f"{name}: {trouble}")
    troubles += _check_output(tensors, shapes[EMBEDDING], tied=tied)
    return troubles, readers


def _check_output(
    tensors: Mapping[str, StoredTensor], shape: tuple[int, ...], *, tied: bool
) -> list[str]:
    """What is wrong with the output projection, which is to be the token embedding."""
    output, embedding = tensors.get(TIED_OUTPUT), tensors.get(EMBEDDING)
    if output is None:
        missing = f"{TIED_OUTPUT}: missing, though tie_word_embeddings is false"
        return [] if tied else [missing]
    if trouble := _trouble(output, shape):
        return [f"{TIED_OUTPUT}: {trouble}"]
    if embedding is None or _trouble(embedding, shape) or _hash(output) == _hash(embedding):
        return []
    return [
        f"{TIED_OUTPUT}: expected the same numbers as {EMBEDDING}, found others; a model with an "
        "output projection of its own is not supported"
    ]


def _trouble(tensor: StoredTensor, shape: tuple[int, ...]) -> str:
    """What is wrong with a tensor; empty where nothing is. Reads it."""
    if tensor.dtype not in DTYPES:
        return f"expected {', '.join(DTYPES)}, found {tensor.dtype}"
    if tensor.shape != shape:
        return f"expected shape {shape}, found {tensor.shape}"
    array = tensor.read()
    if not np.isfinite(array.min()) or not np.isfinite(array.max()):
        return "expected finite numbers, found NaN or infinity"
    return ""


def _hash(tensor: StoredTensor) -> bytes:
    """SHA-256 of the numbers, so that two large matrices are never in memory at once."""
    return hashlib.sha256(tensor.read().data).digest()
