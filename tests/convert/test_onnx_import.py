"""Weights are found in exported ONNX files, whatever the exporter called them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rigs.exported_onnx import Style, write_export
from rigs.models import random_weights, refusal, sized, write_checkpoint

from appliance.convert.checkpoint import Checkpoint, load_checkpoint
from appliance.convert.onnx_import import find_onnx, open_onnx_weights
from appliance.convert.shapes import sinusoids
from appliance.convert.tensors import Weights

SIZES = sized(12, (2, 2), 3, 40, 20, 9, n_mels=5, feed_forward=10)
"""Matrices between layers are square, so that a turned one is not seen by its shape."""
WEIGHTS = random_weights(SIZES, 11)
TABLE = "model.encoder.embed_positions.weight"
EMBEDDING = "model.decoder.embed_tokens.weight"
STYLES = {
    "as optimum writes it": Style(),
    "with Gemm": Style(linear="gemm"),
    "with named matrices": Style(linear="named", table="named"),
    "with named matrices stored turned": Style(linear="stored"),
    "with weights in nodes": Style(in_nodes=True),
    "merged": Style(merged=True),
    "with other prefixes": Style(
        encoder_prefix="wrapper.model.encoder.", decoder_prefix="decoder.", table="named"
    ),
}


def write(folder: Path, weights: Weights = WEIGHTS, style: Style | None = None) -> Path:
    """A folder with an exported model and its configuration."""
    write_export(folder, SIZES, weights, style)
    values = {"model_type": "whisper", **asdict(SIZES)}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def edit(file: Path, change: Callable[[Any], None]) -> None:
    """Changes a model in its file."""
    model = onnx.load(str(file))
    change(model)
    onnx.save(model, str(file))


def assert_same(checkpoint: Checkpoint, wanted: Weights) -> None:
    assert set(checkpoint.weights) == set(wanted)
    for name, array in checkpoint.weights.items():
        assert array.dtype == np.float32 and array.flags.c_contiguous
        assert np.array_equal(array, wanted[name]), name


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES.keys())
def test_every_weight_is_found_as_it_was(tmp_path: Path, style: Style) -> None:
    folder = write(tmp_path, style=style)
    assert_same(load_checkpoint(folder), WEIGHTS)


def test_safetensors_go_before_onnx(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", SIZES, WEIGHTS)
    write_export(folder, SIZES, random_weights(SIZES, 12))
    assert_same(load_checkpoint(folder), WEIGHTS)


def test_the_checksum_covers_every_file(tmp_path: Path) -> None:
    write(tmp_path)
    names = ("decoder_model.onnx", "encoder_model.onnx")
    lines = [f"{hashlib.sha256((tmp_path / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
    expected = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert load_checkpoint(tmp_path).sha256 == expected


def test_a_position_table_that_was_left_out_is_computed(tmp_path: Path) -> None:
    write(tmp_path, style=Style(table="gone"))
    computed = {**WEIGHTS, TABLE: sinusoids(20, 12)}
    assert_same(load_checkpoint(tmp_path), computed)


def test_everything_wrong_with_the_weights_is_told_at_once(tmp_path: Path) -> None:
    wrong = {name: array.copy() for name, array in WEIGHTS.items()}
    wrong["model.decoder.layers.1.encoder_attn.k_proj.weight"][0, 0] = np.nan
    wrong["model.encoder.layers.0.fc1.weight"] = np.ones((11, 12), np.float32)
    write(tmp_path, wrong)
    message = refusal(tmp_path)
    assert "2 wrong weights" in message
    assert "layers.1.encoder_attn.k_proj.weight: expected finite numbers, found NaN" in message
    assert "layers.0.fc1.weight: expected shape (10, 12), found (11, 12)" in message


def test_quantised_models_are_refused_with_the_fix(tmp_path: Path) -> None:
    def quantise(model: Any) -> None:
        model.graph.node[0].op_type = "MatMulInteger"

    edit(write(tmp_path) / "decoder_model.onnx", quantise)
    message = refusal(tmp_path)
    assert "decoder_model.onnx: expected an export as it comes, found one that was quan" in message
    assert "(MatMulInteger); get the float32 or float16 files" in message


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["encoder_model.onnx"], "expected encoder_model.onnx and decoder_model.onnx, found enc"),
        (
            ["encoder_model.onnx", "decoder_with_past_model.onnx"],
            "found decoder_with_past_model.onnx, encoder_model.onnx; get the float32",
        ),
        (["encoder_model_int8.onnx", "decoder_model_int8.onnx"], "get the float32 or float16"),
        (["tiny-encoder.onnx", "tiny-decoder.onnx"], "found tiny-decoder.onnx, tiny-encoder.onnx"),
    ],
)
def test_other_sets_of_files_are_refused(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert message in refusal(tmp_path)


@pytest.mark.parametrize("damage", ["empty", "half", "text", "json"])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    file = write(tmp_path) / "decoder_model.onnx"
    data = file.read_bytes()
    file.write_bytes(
        {
            "empty": b"",
            "half": data[: len(data) // 2],
            "text": b"version https://git-lfs.github.com/spec/v1\n",
            "json": b"{}" * 1000,
        }[damage]
    )
    message = refusal(tmp_path)
    assert "decoder_model.onnx: expected an ONNX model, found" in message


def spread(folder: Path, *, together: bool) -> None:
    """Moves the decoder's weights into files of their own."""
    file = folder / "decoder_model.onnx"
    onnx.save(
        onnx.load(str(file)),
        str(file),
        save_as_external_data=True,
        all_tensors_to_one_file=together,
        location="decoder_model.onnx_data" if together else None,
        size_threshold=0,
    )


@pytest.mark.parametrize("together", [True, False])
def test_weights_beside_the_graph_are_read(tmp_path: Path, together: bool) -> None:
    before = load_checkpoint(write(tmp_path)).sha256
    spread(tmp_path, together=together)
    assert (tmp_path / "decoder_model.onnx_data").exists() == together
    checkpoint = load_checkpoint(tmp_path)
    assert_same(checkpoint, WEIGHTS)
    assert checkpoint.sha256 != before
    known = WEIGHTS["model.decoder.layer_norm.bias"].tobytes()
    (place,) = (file for file in tmp_path.iterdir() if known in file.read_bytes())
    assert place.suffix != ".onnx"
    place.write_bytes(place.read_bytes().replace(known, bytes(48)))
    changed = load_checkpoint(tmp_path)
    assert not changed.weights["model.decoder.layer_norm.bias"].any()
    assert changed.sha256 != checkpoint.sha256


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("location", "../model", "in ../model, which is not in the same folder"),
        ("location", "/etc/passwd", "in /etc/passwd, which is not in the same folder"),
        ("location", "sub/model", "in sub/model, which is not in the same folder"),
        ("location", "..", "in .., which is not in the same folder"),
        ("location", "", "in , which is not in the same folder"),
        ("location", "gone.data", "in gone.data, which is not there"),
        ("offset", "999999999", "beyond the end of decoder_model.onnx_data"),
        ("offset", "END", "beyond the end of decoder_model.onnx_data"),
        ("offset", "-4", "at -4, 48 bytes of 48"),
        ("length", "47", ", 47 bytes of 48"),
    ],
)
def test_places_that_lie_are_refused(tmp_path: Path, key: str, value: str, message: str) -> None:
    spread(write(tmp_path), together=True)
    file = tmp_path / "decoder_model.onnx"
    end = (tmp_path / "decoder_model.onnx_data").stat().st_size
    model = onnx.load(str(file), load_external_data=False)
    (tensor,) = (
        each for each in model.graph.initializer if each.name.endswith("der.layer_norm.bias")
    )
    for entry in tensor.external_data:
        if entry.key == key:
            entry.value = value.replace("END", str(end - 47))
    file.write_bytes(model.SerializeToString())
    told = refusal(tmp_path)
    assert "expected an ONNX model, found model.decoder.layer_norm.bias " in told
    assert message in told


def test_files_of_any_size_are_opened_without_loading_them(tmp_path: Path) -> None:
    folder = write(tmp_path)
    spread(folder, together=True)
    with (folder / "decoder_model.onnx_data").open("ab") as stream:
        stream.truncate(3_000_000_000)  # a hole, which takes no room on the disk
    tensors, files = open_onnx_weights(find_onnx(folder), SIZES)
    assert np.array_equal(tensors[EMBEDDING].read(), WEIGHTS[EMBEDDING])
    assert [file.name for file in files][1] == "decoder_model.onnx_data"
