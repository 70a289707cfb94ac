"""Read a Whisper checkpoint: the network's sizes and its verified, named weights.

Beside config.json lie model.safetensors, or its shards and model.safetensors.index.json, or
encoder_model.onnx and decoder_model.onnx, also in a folder onnx, or CTranslate2's model.bin. A
folder of the hub's cache stands for the snapshot in it. Nothing of a checkpoint is ever executed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.convert.ctranslate2 import MODEL_FILE, open_ctranslate2
from appliance.convert.onnx_import import find_onnx, open_onnx_weights
from appliance.convert.shapes import (
    CONFIG_FILE,
    EMBEDDING,
    INDEX_FILE,
    SOUND_POSITIONS,
    TIED_OUTPUT,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    WhisperConfig,
    checkpoint_name,
    expected_shapes,
    find_snapshot,
    read_config,
    sinusoids,
)
from appliance.convert.tensors import (
    DTYPES,
    LazyWeights,
    ReadableTensor,
    StoredTensor,
    Weights,
    digest,
    listed,
    open_safetensors,
    open_shards,
    shown,
)
from appliance.errors import ModelError
from appliance.model import MANIFEST, read_json, require_regular, unreadable

ADAPTER_FILE = "adapter_config.json"
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}
TRAINERS = {"training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt"}
"""Pickles that a training leaves beside the weights."""
OTHER_KINDS = {".h5", ".msgpack", ".tflite", ".onnx"}
HELD = (WEIGHTS_FILE, INDEX_FILE, MODEL_FILE, "pytorch_model.bin")
GGML = {b"lmgg", b"GGUF"}
"""First bytes of whisper.cpp's files, old and new."""
SIZES = re.compile(r"(tiny|base|small|medium)(\.en)?|large(-v[123])?(-turbo)?|turbo")
"""The published Whispers."""
LATEST = {"large": "large-v3", "turbo": "large-v3-turbo", "large-turbo": "large-v3-turbo"}
CONVERT = (
    f"get {WEIGHTS_FILE} in its place, or make it where you trust the pickle: "
    "convert_openai_to_hf.py of the transformers repository (src/transformers/models/whisper) "
    "with --checkpoint_path FILE --pytorch_dump_folder_path FOLDER --convert_preprocessor True",
    f"get {WEIGHTS_FILE} in its place, or make it where you trust the pickle: "
    "WhisperForConditionalGeneration.from_pretrained(...).save_pretrained(FOLDER)",
)
"""Fixes for OpenAI's pickles, and for Hugging Face's."""
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
        find = _find(folder)
        config = read_config(folder / CONFIG_FILE)
        tied = read_json(folder / CONFIG_FILE).get("tie_word_embeddings") is not False
        found, files = find(config)
        tensors = _unwrapped(found)
    path = files[0] if len(files) == 1 else folder
    troubles, readers = _check(tensors, config, tied=tied)
    if troubles:
        raise ModelError(f"{path}: {listed('wrong weights', troubles)}")
    return Checkpoint(config, LazyWeights(readers), digest(files))


def _unwrapped(tensors: Mapping[str, ReadableTensor]) -> Mapping[str, ReadableTensor]:
    """Return the tensors without what a wrapper put before all names: torch.compile's `_orig_mod.`,
    a merged adapter's `base_model.model.`."""
    wrapped = (name.removesuffix(FIRST) for name in tensors if name.endswith(f".{FIRST}"))
    prefix = next(wrapped, "")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def read_sizes(folder: Path) -> tuple[WhisperConfig, str]:
    """Return the network's sizes, and as what its weights are quantised (int8, int16), if at all.

    `folder` has passed `require_checkpoint`. Raises ModelError.
    """
    folder = find_snapshot(folder)
    if _is_ctranslate2(folder):
        model = open_ctranslate2(folder / MODEL_FILE)
        return model.config, model.quantized
    return read_config(folder / CONFIG_FILE), ""


def _is_ctranslate2(folder: Path) -> bool:
    """Return True if model.bin has the weights of `folder`: one of safetensors goes before it."""
    others = any((folder / name).exists() for name in (WEIGHTS_FILE, INDEX_FILE))
    return not others and (folder / MODEL_FILE).exists()


FIRST = "model.encoder.conv1.weight"
"""A tensor that every Whisper has, by Hugging Face's name."""
Found = tuple[Mapping[str, ReadableTensor], list[Path]]
"""Tensors by name, and the files they lie in."""
Reader = Callable[[], NDArray[np.float32]]


def _find(folder: Path) -> Callable[[WhisperConfig], Found]:
    """Return how to open the weights in `folder`, which has passed `require_checkpoint`."""
    if (file := folder / WEIGHTS_FILE).exists():
        return lambda _: (_with_prefix(open_safetensors(file)), [file])
    if (index := folder / INDEX_FILE).exists():
        return lambda _: _open_index(index)
    if files := find_onnx(folder):
        return partial(open_onnx_weights, files)
    raise ModelError(f"{folder}: expected {WEIGHTS_FILE}, found none; get the model again")


def _open_index(index: Path) -> Found:
    tensors, files = open_shards(index)
    return _with_prefix(tensors), files


def _with_prefix(tensors: Mapping[str, StoredTensor]) -> Mapping[str, StoredTensor]:
    """Return names as in WhisperForConditionalGeneration; WhisperModel leaves out "model."."""
    if any(name.startswith("model.") for name in tensors):
        return tensors
    return {
        f"model.{name}" if name.startswith(HALVES) else name: tensor
        for name, tensor in tensors.items()
    }


def require_checkpoint(path: Path) -> None:
    """Raise ModelError, with the fix, unless `path` is a folder with the files of a checkpoint.

    The content of the files is not checked.
    """
    try:
        if not path.is_dir():
            found = _file_instead(path) if path.exists() else "none"
            raise ModelError(f"{path}: expected a folder with a checkpoint, found {found}")
        path = find_snapshot(path)
        if (path / MANIFEST).is_file():
            raise ModelError(
                f"{path}: expected a checkpoint, found a bundle, which is already built; "
                "name it as it is under [model]"
            )
        names = {file.name for file in path.iterdir()}
        found = explain_missing(path, names, checkpoint_name(path))
    except OSError as error:
        raise unreadable(path, error) from error
    if found:
        raise ModelError(
            f"{path}: expected {CONFIG_FILE} with {WEIGHTS_FILE} or {MODEL_FILE}, or with "
            f"encoder_model.onnx and decoder_model.onnx, found {found}"
        )


def explain_missing(folder: Path, names: set[str], title: str) -> str:
    """Return what a folder or repository `title` has instead of a checkpoint, and the fix; or "".

    `names` are its files. Of a repository, config.json (or an adapter's) is in `folder`.
    """
    described = [name for name in (CONFIG_FILE, ADAPTER_FILE) if name in names]
    config = read_json(folder / described[0]) if described else {}
    return _foreign(names, config, title) or _folder_instead(folder, names)


def _foreign(names: Collection[str], config: Mapping[str, Any], title: str) -> str:
    """Return what a folder of another program is, and the fix; "" if unknown."""
    whole = {WEIGHTS_FILE, INDEX_FILE} & {*names}
    if ADAPTER_FILE in names and not whole:
        base = shown(config.get("base_model_name_or_path", "BASE"))
        return (
            "an adapter (LoRA), which is no model without the one that it was trained on; merge "
            "them where PEFT is: PeftModel.from_pretrained(WhisperForConditionalGeneration"
            f".from_pretrained({base!r}), FOLDER).merge_and_unload().save_pretrained(OUT), and "
            f"give OUT with {TOKENIZER_FILE} of {base} in it"
        )
    if any(name.startswith("openvino_") for name in names) and not whole:
        return f"a model for OpenVINO; {_original(title)}"
    if "n_audio_state" in config:
        return f"a model for MLX; {_original(title)}"
    for name in sorted(names):
        if name.endswith(".gguf") or (name.startswith("ggml") and name.endswith(".bin")):
            return f"{shown(name)}, a model for whisper.cpp; {_original(name)}"
    return ""


def _number(folder: Path) -> int:
    """Return the step of a training's checkpoint-500; -1 for another folder."""
    match = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(match[1]) if match else -1


def _original(name: str) -> str:
    """Return the fix for a model that was made from another one, by its name."""
    match = SIZES.search(name.lower())
    published = f"openai/whisper-{LATEST.get(match[0], match[0])}" if match else "HUB_ID"
    return f"add the model that it was made from in place of it: roomscribe model add {published}"


def _file_instead(file: Path) -> str:
    """Return what a file is that was given instead of a folder, and the fix."""
    require_regular(file)
    with file.open("rb") as stream:
        magic = stream.read(4)
    if magic in GGML:
        return f"a model for whisper.cpp; {_original(file.name)}"
    if magic[:2] == b"PK" or magic[:1] == b"\x80":
        return _pickle(file.name)
    if file.suffix in {".safetensors", ".json", ".onnx"}:
        return f"one file; give the folder that it lies in, {file.absolute().parent}"
    return "a file"


def _pickle(name: str) -> str:
    """Return what to do with PyTorch's own format."""
    published = SIZES.fullmatch(Path(name).stem)  # as OpenAI calls its own
    return (
        f"{shown(name)}, a pickle, which could run code of its author and is never opened; "
        f"{_original(name) if published else CONVERT[Path(name).suffix == '.bin']}"
    )


def _folder_instead(folder: Path, names: set[str]) -> str:
    """Return what a folder without weights or config.json has, and the fix; "" if it has both."""
    weights = bool({WEIGHTS_FILE, INDEX_FILE, MODEL_FILE} & names) or bool(find_onnx(folder))
    weights = weights or names >= {f"onnx/{half}_model.onnx" for half in ("encoder", "decoder")}
    if weights and CONFIG_FILE in names:
        return ""
    inner = [
        file.parent
        for depth in ("*", "*/*")
        for file in folder.glob(f"{depth}/{CONFIG_FILE}")
        if any((file.parent / name).is_file() for name in HELD)
    ]
    if inner:
        last = max(inner, key=_number)
        several = f"{len(inner)} folders with one in it, as a training leaves them"
        return f"{several if len(inner) > 1 else '1 folder with one in it'}; give {last}"
    pickles = sorted(name for name in {*names} - TRAINERS if Path(name).suffix in PICKLES)
    others = sorted(name for name in names if Path(name).suffix in OTHER_KINDS)
    if weights:
        return f"no {CONFIG_FILE}; get the model again, with all its files"
    if pickles:
        return _pickle(pickles[0])
    if others:
        return f"{shown(others[0])}; get the model in one of the two kinds"
    rest = f"only {', '.join(map(shown, sorted(names)[:8]))}" if names else "an empty folder"
    return f"{rest}; get the model again, with all its files"


def _check(
    tensors: Mapping[str, ReadableTensor], config: WhisperConfig, *, tied: bool
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
    tensors: Mapping[str, ReadableTensor], shape: tuple[int, ...], *, tied: bool
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


def _trouble(tensor: ReadableTensor, shape: tuple[int, ...]) -> str:
    """Return what is wrong with a tensor; empty if nothing is. Reads it."""
    if tensor.dtype not in DTYPES:
        return f"expected {', '.join(DTYPES)}, found {tensor.dtype}"
    if tensor.shape != shape:
        return f"expected shape {shape}, found {tensor.shape}"
    array = tensor.read()
    if not np.isfinite(array.min()) or not np.isfinite(array.max()):
        return "expected finite numbers, found NaN or infinity"
    return ""


def _hash(tensor: ReadableTensor) -> bytes:
    """Return the numbers' SHA-256, so that two large matrices are never in memory together."""
    return hashlib.sha256(tensor.read().data).digest()
