"""A checkpoint folder is loaded with every number as it is, or refused in one line."""

import hashlib
import json
import os
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.models import random_weights, refusal, sized, write_checkpoint
from safetensors.numpy import load_file, save_file

from appliance.convert.checkpoint import load_checkpoint
from appliance.convert.shapes import sinusoids
from appliance.convert.tensors import Weights
from appliance.errors import ModelError

SMALL = sized(8, (1, 2), 2, 30, 12, 10, n_mels=4)
TABLE = "model.encoder.embed_positions.weight"
EMBEDDING = "model.decoder.embed_tokens.weight"
NORM = "model.decoder.layer_norm.weight"


@pytest.fixture
def weights() -> dict[str, NDArray[np.float32]]:
    """Of a network of a few hundred numbers."""
    return dict(random_weights(SMALL, 7))


@pytest.fixture
def folder(tmp_path: Path, weights: Weights) -> Path:
    """The same as a checkpoint, to be damaged."""
    return write_checkpoint(tmp_path / "checkpoint", SMALL, weights)


def write_safetensors(
    file: Path,
    weights: Weights,
    dtype: str = "F32",
    change: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """A file by the format's description, its header changed at will."""
    encode: dict[str, Callable[[NDArray[np.float32]], bytes]] = {
        "F32": lambda array: array.astype("<f4").tobytes(),
        "F16": lambda array: array.astype("<f2").tobytes(),
        "F64": lambda array: array.astype("<f8").tobytes(),
        "BF16": lambda array: (array.view(np.uint32) >> 16).astype("<u2").tobytes(),
        "I64": lambda array: array.astype("<i8").tobytes(),
    }
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, array in weights.items():
        data = encode[dtype](array)
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        body += data
    if change:
        change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def assert_same(loaded: Weights, wanted: Weights) -> None:
    assert set(loaded) == set(wanted)
    for name, array in loaded.items():
        assert array.dtype == np.float32 and array.flags.c_contiguous
        assert np.array_equal(array, wanted[name]), name


def test_every_number_arrives_and_the_file_is_identified(folder: Path, weights: Weights) -> None:
    checkpoint = load_checkpoint(folder)
    assert checkpoint.config == SMALL
    assert_same(checkpoint.weights, weights)
    data = (folder / "model.safetensors").read_bytes()
    assert checkpoint.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F64"])
def test_other_precisions_become_float32(folder: Path, weights: Weights, dtype: str) -> None:
    write_safetensors(folder / "model.safetensors", weights, dtype)
    precisions: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
        "F16": lambda array: array.astype(np.float16).astype(np.float32),
        "BF16": lambda array: (array.view(np.uint32) & 0xFFFF0000).view(np.float32),
        "F64": lambda array: array,
    }
    rounded = precisions[dtype]
    wanted = {name: rounded(array) for name, array in weights.items()}
    assert_same(load_checkpoint(folder).weights, wanted)
    assert not dtype.endswith("16") or not np.array_equal(wanted[NORM], weights[NORM])


def test_weights_are_read_when_asked_for_and_not_kept(folder: Path) -> None:
    loaded = load_checkpoint(folder).weights
    first = loaded[NORM]
    first[:] = 5.0
    assert not np.array_equal(loaded[NORM], first)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors: expected a readable file"):
        loaded[NORM]


def test_loading_needs_the_memory_of_one_tensor_and_not_of_all(tmp_path: Path) -> None:
    config = sized(64, (6, 6), 2, 2000, 100, 50)
    weights = random_weights(config, 3)
    folder = write_checkpoint(tmp_path / "checkpoint", config, weights)
    largest = max(array.nbytes for array in weights.values())
    everything = sum(array.nbytes for array in weights.values())
    del weights
    tracemalloc.start()
    loaded = load_checkpoint(folder).weights
    for name in loaded:
        loaded[name].sum()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * largest + 500_000 < everything / 2


@pytest.mark.parametrize("prefix", ["_orig_mod.", "base_model.model."])
def test_weights_that_a_wrapper_saved_are_read(folder: Path, weights: Weights, prefix: str) -> None:
    wrapped = {f"{prefix}{name}": array for name, array in weights.items()}
    save_file(wrapped, folder / "model.safetensors")
    assert_same(load_checkpoint(folder).weights, weights)


def test_everything_wrong_with_the_weights_is_told_at_once(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.encoder.conv1.bias"]
    weights["model.decoder.layers.0.self_attn.k_proj.bias"] = np.zeros(8, np.float32)
    weights["model.encoder.layer_norm.weight"] = np.ones(7, np.float32)
    weights["model.encoder.conv2.bias"][5] = np.nan
    weights["model.encoder.conv2.weight"][1, 1, 1] = -np.inf
    weights["model.decoder.layer_norm.bias"] = np.zeros(8, np.int64)
    save_file(weights, folder / "model.safetensors")
    message = refusal(folder)
    assert f"{folder / 'model.safetensors'}: 6 wrong weights: " in message
    for fault in (
        "model.encoder.conv1.bias: missing",
        "model.decoder.layers.0.self_attn.k_proj.bias: not expected",
        "model.encoder.layer_norm.weight: expected shape (8,), found (7,)",
        "model.encoder.conv2.bias: expected finite numbers, found NaN or infinity",
        "model.encoder.conv2.weight: expected finite numbers, found NaN or infinity",
        "model.decoder.layer_norm.bias: expected F32, F16, BF16, F64, found I64",
    ):
        assert fault in message


def test_names_without_the_models_prefix_are_understood(folder: Path, weights: Weights) -> None:
    short = {name.removeprefix("model."): array for name, array in weights.items()}
    save_file(short, folder / "model.safetensors")
    assert_same(load_checkpoint(folder).weights, weights)


def test_an_output_projection_equal_to_the_embedding_is_left_out(
    folder: Path, weights: dict[str, NDArray[np.float32]]
) -> None:
    edit_config(folder, tie_word_embeddings=False)
    save_file(
        weights | {"proj_out.weight": weights[EMBEDDING].copy()}, folder / "model.safetensors"
    )
    assert_same(load_checkpoint(folder).weights, weights)


def test_an_untied_model_without_its_output_projection_is_refused(folder: Path) -> None:
    edit_config(folder, tie_word_embeddings=False)
    assert "proj_out.weight: missing, though tie_word_embeddings is false" in refusal(folder)


def test_a_missing_position_table_is_computed_as_whisper_does(
    folder: Path, weights: dict[str, NDArray[np.float32]]
) -> None:
    del weights[TABLE]
    save_file(weights, folder / "model.safetensors")
    table = load_checkpoint(folder).weights[TABLE]
    assert np.array_equal(table, sinusoids(12, 8))
    # frequencies 1, 10000^(-1/3), 10000^(-2/3), 1/10000: first the sines, then the cosines
    angles = 11 * np.array([1.0, 0.0464158883, 0.00215443469, 0.0001])
    assert np.allclose(table[11], [*np.sin(angles), *np.cos(angles)], atol=1e-6)
    assert np.array_equal(table[0], [0, 0, 0, 0, 1, 1, 1, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": None}, "d_model: expected a whole number from 1, found None"),
        ({"encoder_layers": 10**9}, "encoder_layers: expected at most 256, found more"),
        ({"vocab_size": True}, "vocab_size: expected a whole number from 1, found True"),
        ({"activation_function": "relu"}, "activation_function: expected gelu, found relu"),
        ({"encoder_attention_heads": 4}, "decoder_attention_heads: expected as many as"),
        ({"scale_embedding": True}, "scale_embedding: expected false"),
        ({"max_source_positions": 9}, f"{TABLE}: expected shape (9, 8), found (12, 8)"),
        ({"model_type": "bert", "d_model": 0}, "model_type: expected whisper, found bert; only"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    folder: Path, changes: dict[str, object], message: str
) -> None:
    edit_config(folder, **changes)
    assert message in refusal(folder)


def test_a_configuration_without_model_type_is_taken(folder: Path, weights: Weights) -> None:
    (folder / "config.json").write_text(json.dumps(asdict(SMALL)))
    assert_same(load_checkpoint(folder).weights, weights)


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"[" * 200_000, b"\xff\xfe", b"9" * 5000])
def test_a_damaged_configuration_is_refused(folder: Path, text: bytes) -> None:
    (folder / "config.json").write_bytes(text)
    assert "config.json: expected " in refusal(folder)


@pytest.mark.parametrize("size", [0, 7, 8, 500, -1])
def test_half_a_file_is_refused(folder: Path, size: int) -> None:
    file = folder / "model.safetensors"
    os.truncate(file, size if size >= 0 else file.stat().st_size - 1)
    assert "model.safetensors: " in refusal(folder) and "get the file again" in refusal(folder)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<Q", 100_000_000_000) + b"{}", "the header would take 100000000000"),
        (
            struct.pack("<Q", 5_000_000) + b" " * 5_000_000,
            "a header of 5000000 bytes where 4000000",
        ),
        (struct.pack("<Q", 300_000) + b"[" * 300_000, "too deep a table"),
        (struct.pack("<Q", 4) + b"[{}]", "a header that is no JSON table"),
        (struct.pack("<Q", 2) + b"\xff\xff", "expected weights in safetensors, found"),
        (b"PK\x03\x04" + b"\0" * 100, "a pickle (PyTorch's own format) under this name"),
        (b"\x80\x04" + b"\0" * 100, "a pickle (PyTorch's own format) under this name"),
        (b"version https://git-lfs.github.com/spec/v1\n", "expected weights in safetensors, found"),
    ],
)
def test_a_hostile_header_is_refused(folder: Path, data: bytes, message: str) -> None:
    (folder / "model.safetensors").write_bytes(data)
    assert message in refusal(folder)


def set_offsets(name: str, first: object, last: object) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        header[name]["data_offsets"] = [first, last]

    return change


def set_key(name: str, key: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        header[name][key] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_offsets(NORM, 10**9, 10**9 + 32), "where its shape takes 32 bytes, up to"),
        (set_offsets(NORM, -32, 0), f"{NORM} without dtype, shape and two data_offsets"),
        (set_offsets(NORM, 40, 8), f"{NORM} from 40 to 8 where its shape takes 32 bytes"),
        (set_offsets(NORM, 0, "8"), f"{NORM} without dtype, shape and two"),
        (
            set_key(NORM, "shape", [2**62, 2**62]),
            "where its shape takes 850705917302346158658436518579",
        ),
        (set_key(NORM, "dtype", 5), f"{NORM} without dtype, shape and two"),
        (set_key(NORM, "dtype", "F8\n"), f"{NORM}: expected F32, F16, BF16, F64, found F8\\n"),
        (lambda header: header.update({NORM: 5}), f"{NORM} without dtype, shape and two"),
    ],
)
def test_entries_that_lie_are_refused(
    folder: Path, weights: Weights, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    write_safetensors(folder / "model.safetensors", weights, change=change)
    assert message in refusal(folder)


class Trap:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "tiny.pt", "mine.ckpt"])
def test_a_pickle_is_refused_and_never_opened(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    (folder / name).write_bytes(trap)
    (folder / "training_args.bin").write_bytes(trap)
    message = refusal(folder)
    assert "expected config.json with model.safetensors or model.bin" in message
    assert f"{name}" in message and "pickles (.bin, .pt), adapters" in message
    (folder / "model.safetensors").write_bytes(trap)
    assert "a pickle (PyTorch's own format) under this name" in refusal(folder)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "found nothing; pickles"),
        ("README.md", "found README.md; "),
        ("model.safetensors", "found model.safetensors; "),
        ("bundle.json", "found a bundle, which is already built"),
    ],
)
def test_a_folder_without_weights_is_refused(tmp_path: Path, name: str, message: str) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    if name:
        (folder / name).write_text("{}")
    assert message in refusal(folder)


def test_a_file_in_place_of_a_folder_is_refused(folder: Path) -> None:
    assert "found a file; give the folder that it lies in" in refusal(folder / "model.safetensors")
    assert "expected a folder with a checkpoint, found none" in refusal(folder / "nowhere")


def test_a_pointer_of_git_lfs_says_how_the_file_is_got(folder: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 151061672\n"
    (folder / "model.safetensors").write_text(pointer)
    assert "found a pointer of Git LFS in its place: git lfs pull" in refusal(folder)
