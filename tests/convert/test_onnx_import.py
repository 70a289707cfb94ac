"""Weights are found in exported ONNX files, whatever the exporter called them."""

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
from appliance.convert.shapes import sinusoids
from appliance.convert.tensors import Weights

SIZES = sized(12, (2, 2), 3, 40, 20, 9, n_mels=5, feed_forward=10)
"""Matrices between layers are square, so that a turned one is not seen by its shape."""
WEIGHTS = random_weights(SIZES, 11)
TABLE = "model.encoder.embed_positions.weight"
STYLES = {
    "as optimum writes it": Style(),
    "with named matrices": Style(linear="named", table="named"),
    "with named matrices stored turned": Style(linear="stored"),
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
    table = WEIGHTS[TABLE] if style.table == "named" else sinusoids(20, 12)  # which it always is
    assert_same(load_checkpoint(folder), {**WEIGHTS, TABLE: table})


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


def test_weights_beside_the_graph_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path) / "decoder_model.onnx"
    onnx.save(onnx.load(str(file)), str(file), save_as_external_data=True, size_threshold=0)
    assert "with its numbers elsewhere than in this file; get the file again" in refusal(tmp_path)
