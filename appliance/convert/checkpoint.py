"""Read a Whisper checkpoint: the network's sizes and its verified, named weights.

Beside config.json lie model.safetensors, or encoder_model.onnx and decoder_model.onnx, also in a
folder onnx, or CTranslate2's model.bin. A folder of the hub's cache stands for the snapshot in it.
Nothing of a checkpoint is ever executed.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.convert.ctranslate2 import MODEL_FILE, open_ctranslate2
from appliance.convert.onnx_import import find_onnx, open_onnx_weights
from appliance.convert.shapes import (
    CONFIG_FILE,
    EMBEDDING,
    SOUND_POSITIONS,
    TIED_OUTPUT,
    WEIGHTS_FILE,
    WhisperConfig,
    expected_shapes,
    find_snapshot,
    read_config,
    sinusoids,
)
from appliance.convert.tensors import (
    DTYPES,
    LazyWeights,
    StoredTensor,
    Weights,
    digest,
    listed,
    open_safetensors,
    shown,
)
from appliance.errors import ModelError
from appliance.model import MANIFEST, read_json, unreadable

FIRST = "encoder.conv1.weight"
"""A tensor that every Whisper has."""
HALVES = ("encoder.", "decoder.")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A network's sizes and weights."""

    config: WhisperConfig
    weights: Weights
    """Lazy: each access reads the tensor from its file; nothing is kept."""
    sha256: str
    """Of model.safetensors or model.bin; for several files see `tensors.digest`."""


def load_checkpoint(folder: Path) -> Checkpoint:
    """Return the checkpoint in `folder`. Raises ModelError listing everything that is wrong.

    Every number is read once, tensor by tensor, to check that it is finite.
    """
    require_checkpoint(folder)
    folder = find_snapshot(folder)
    if _is_ctranslate2(folder):
        model, files = open_ctranslate2(folder / MODEL_FILE), [folder / MODEL_FILE]
        config, tensors, tied = model.config, model.tensors, True
    else:
        config = read_config(folder / CONFIG_FILE)
        tied = read_json(folder / CONFIG_FILE).get("tie_word_embeddings") is not False
        found, files = _open_weights(folder, config)
        tensors = _by_usual_names(found)
    path = files[0] if len(files) == 1 else folder
    troubles, readers = _check(tensors, config, tied=tied)
    if troubles:
        raise ModelError(f"{path}: {listed('wrong weights', troubles)}")
    return Checkpoint(config, LazyWeights(readers), digest(files))


def _by_usual_names(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """Return the tensors without what a wrapper put before all names (torch.compile's `_orig_mod.`,
    a merged adapter's `base_model.model.`), and with "model.", which WhisperModel leaves out."""
    first = next((name for name in tensors if name.endswith(FIRST)), FIRST)
    names = {name.removeprefix(first.removesuffix(FIRST).removesuffix("model.")): tensor
             for name, tensor in tensors.items()}  # fmt: skip
    return {f"model.{name}" if name.startswith(HALVES) else name: tensor
            for name, tensor in names.items()}  # fmt: skip


def read_sizes(folder: Path) -> WhisperConfig:
    """Return the network's sizes. `folder` has passed `require_checkpoint`. Raises ModelError."""
    folder = find_snapshot(folder)
    if _is_ctranslate2(folder):
        return open_ctranslate2(folder / MODEL_FILE).config
    return read_config(folder / CONFIG_FILE)


def _is_ctranslate2(folder: Path) -> bool:
    """Return True if model.bin has the weights of `folder`: one of safetensors goes before it."""
    return not (folder / WEIGHTS_FILE).exists() and (folder / MODEL_FILE).exists()


Reader = Callable[[], NDArray[np.float32]]


def _open_weights(
    folder: Path, config: WhisperConfig
) -> tuple[Mapping[str, StoredTensor], list[Path]]:
    """Return the tensors in `folder`, which has passed `require_checkpoint`, and their files."""
    if (file := folder / WEIGHTS_FILE).exists():
        return open_safetensors(file), [file]
    return open_onnx_weights(find_onnx(folder), config)


def require_checkpoint(path: Path) -> None:
    """Raise ModelError, with the fix, unless `path` is a folder with the files of a checkpoint.

    The content of the files is not checked.
    """
    try:
        if not path.is_dir():
            found = "a file; give the folder that it lies in" if path.exists() else "none"
            raise ModelError(f"{path}: expected a folder with a checkpoint, found {found}")
        path = find_snapshot(path)
        if (path / MANIFEST).is_file():
            raise ModelError(
                f"{path}: expected a checkpoint, found a bundle, which is already built; "
                "name it as it is under [model]"
            )
        found = explain_missing(path, {file.name for file in path.iterdir()})
    except OSError as error:
        raise unreadable(path, error) from error
    if found:
        raise ModelError(f"{path}: {found}")


def explain_missing(folder: Path, names: set[str]) -> str:
    """Return what a folder or repository with the files `names` lacks, and the fix; or ""."""
    weights = bool({WEIGHTS_FILE, MODEL_FILE} & names) or bool(find_onnx(folder))
    weights = weights or names >= {f"onnx/{half}_model.onnx" for half in ("encoder", "decoder")}
    if weights and CONFIG_FILE in names:
        return ""
    return (
        f"expected {CONFIG_FILE} with {WEIGHTS_FILE} or {MODEL_FILE}, or with encoder_model.onnx "
        f"and decoder_model.onnx, found {', '.join(map(shown, sorted(names)[:8])) or 'nothing'}; "
        "pickles (.bin, .pt), adapters, several files of weights and models of other programs "
        "cannot be read: add the published model that it was made from, such as base"
    )


def _check(
    tensors: Mapping[str, StoredTensor], config: WhisperConfig, *, tied: bool
) -> tuple[list[str], dict[str, Reader]]:
    """Return everything missing, surplus or wrong, and how to read each weight."""
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
    """Return what is wrong with the output projection, which must equal the token embedding."""
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
    """Return what is wrong with a tensor; empty if nothing is. Reads it."""
    if tensor.dtype not in DTYPES:
        return f"expected {', '.join(DTYPES)}, found {tensor.dtype}"
    if tensor.shape != shape:
        return f"expected shape {shape}, found {tensor.shape}"
    array = tensor.read()
    if not np.isfinite(array.min()) or not np.isfinite(array.max()):
        return "expected finite numbers, found NaN or infinity"
    return ""


def _hash(tensor: StoredTensor) -> bytes:
    """Return the numbers' SHA-256, so that two large matrices are never in memory together."""
    return hashlib.sha256(tensor.read().data).digest()
