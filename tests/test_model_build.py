"""A checkpoint becomes a bundle, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from random_whisper import HOME, random_mel, random_weights, sized, write_checkpoint
from safetensors.numpy import load_file, save_file

from appliance.errors import ModelError
from appliance.infer.bundle import Tokens, load_bundle
from appliance.infer.cpu import CpuEncoder
from appliance.infer.decoder import Decoder
from appliance.infer.tokenizer import Tokenizer
from appliance.model.build import Recipe, build_bundle, main
from appliance.model.checkpoint import expected_shapes, load_checkpoint

RECIPE = Recipe("home", 10.0)


@pytest.fixture
def checkpoint(checkpoint_folder: Path, tmp_path: Path) -> Path:
    """A copy of the random checkpoint, to be damaged."""
    return Path(shutil.copytree(checkpoint_folder, tmp_path / "copy"))


def edit_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_checkpoint_has_the_weights_of_whisper() -> None:
    shapes = expected_shapes(HOME)
    assert len(shapes) == 7 + 4 * 15 + 24 + 4
    assert shapes["model.encoder.layers.3.self_attn_layer_norm.bias"] == (128,)
    assert shapes["model.decoder.layers.0.encoder_attn.k_proj.weight"] == (128, 128)
    assert "model.decoder.layers.0.self_attn.k_proj.bias" not in shapes


def test_everything_wrong_with_the_weights_is_told_at_once(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    del weights["model.encoder.conv1.bias"]
    weights["model.decoder.layers.0.self_attn.k_proj.bias"] = np.zeros(128, np.float32)
    weights["model.encoder.layer_norm.weight"] = np.ones(127, np.float32)
    weights["model.encoder.conv2.bias"][5] = np.nan
    weights["model.decoder.layer_norm.bias"] = np.zeros(128, np.int64)
    save_file(weights, checkpoint / "model.safetensors")
    with pytest.raises(ModelError) as caught:
        load_checkpoint(checkpoint)
    message = str(caught.value)
    assert "5 wrong weights" in message and str(checkpoint / "model.safetensors") in message
    for fault in (
        "model.encoder.conv1.bias: missing",
        "model.decoder.layers.0.self_attn.k_proj.bias: not expected",
        "model.encoder.layer_norm.weight: expected shape (128,), found (127,)",
        "model.encoder.conv2.bias: expected finite numbers, found NaN",
        "model.decoder.layer_norm.bias: expected floating point, found int64",
    ):
        assert fault in message


def test_half_precision_weights_and_a_written_out_tied_output_are_taken(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    weights["proj_out.weight"] = weights["model.decoder.embed_tokens.weight"].copy()
    save_file(
        {name: array.astype(np.float16) for name, array in weights.items()},
        checkpoint / "model.safetensors",
    )
    loaded = load_checkpoint(checkpoint).weights
    assert "proj_out.weight" not in loaded
    assert {array.dtype for array in loaded.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": None}, "d_model: expected a whole number from 1, found None"),
        ({"activation_function": "relu"}, "activation_function: expected gelu, found relu"),
        ({"encoder_attention_heads": 2}, "decoder_attention_heads: expected as many as"),
        ({"scale_embedding": True}, "scale_embedding: expected false"),
        ({"max_source_positions": 400}, r"embed_positions.weight: expected shape \(400, 128\)"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    checkpoint: Path, changes: dict[str, object], message: str
) -> None:
    edit_json(checkpoint / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocab.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty"])
def test_a_damaged_checkpoint_leaves_nothing_behind(
    checkpoint: Path, tmp_path: Path, name: str, damage: str
) -> None:
    file = checkpoint / name
    if damage == "missing":
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size // 2 if damage == "truncated" else 0)
    with pytest.raises(ModelError, match=name):
        build_bundle(checkpoint, tmp_path / "out" / "home", RECIPE)
    assert not list((tmp_path / "out").glob("*"))


def test_the_bundle_that_is_there_survives_a_failed_build(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundles" / "home"
    build_bundle(checkpoint, out, RECIPE)
    before = load_bundle(out)
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(ModelError):
        build_bundle(checkpoint, out, RECIPE)
    assert load_bundle(out) == before
    assert [file.name for file in out.parent.iterdir()] == ["home"]


def test_building_again_replaces_the_bundle(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundles" / "home"
    build_bundle(checkpoint, out, RECIPE)
    build_bundle(checkpoint, out, Recipe("second", 5.0))
    assert load_bundle(out).name == "second"
    assert [file.name for file in out.parent.iterdir()] == ["home"]


def test_what_is_no_bundle_is_never_replaced(checkpoint: Path, tmp_path: Path) -> None:
    precious = tmp_path / "photos"
    precious.mkdir()
    (precious / "cat.jpg").write_text("cat")
    for out in (precious, precious / "cat.jpg"):
        with pytest.raises(ModelError, match="expected a bundle to replace or nothing"):
            build_bundle(checkpoint, out, RECIPE)
    assert (precious / "cat.jpg").read_text() == "cat"


def test_the_same_checkpoint_gives_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        build_bundle(checkpoint, tmp_path / name, RECIPE)
    one, two = (tmp_path / name / "bundle.json" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_the_embedded_models_shape_stays_under_eight_megabytes(bundle_folder: Path) -> None:
    assert sum(file.stat().st_size for file in bundle_folder.iterdir()) < 8_000_000


def test_graphs_load_on_debians_onnxruntime(bundle_folder: Path) -> None:
    for file in bundle_folder.glob("*.onnx"):
        graph = onnx.load(str(file))
        assert graph.ir_version <= 10
        assert [(used.domain, used.version) for used in graph.opset_import] == [("", 17)]


def test_the_vocabulary_matrix_is_stored_once(bundle_folder: Path) -> None:
    graph = onnx.load(str(bundle_folder / "step.onnx")).graph
    large = [tensor.name for tensor in graph.initializer if 521 in tensor.dims]
    assert large == ["model.decoder.embed_tokens.weight"]


def test_weights_stored_as_half_give_nearly_the_same(checkpoint: Path, tmp_path: Path) -> None:
    build_bundle(checkpoint, tmp_path / "whole", RECIPE)
    build_bundle(checkpoint, tmp_path / "half", Recipe("home", 10.0, half=True))
    whole, half = load_bundle(tmp_path / "whole"), load_bundle(tmp_path / "half")
    sizes = [(each.folder / "encoder.onnx").stat().st_size for each in (whole, half)]
    assert sizes[1] < 0.6 * sizes[0]
    mel = random_mel(HOME, 1000, 3)
    states = [CpuEncoder(each, 1).encode(mel) for each in (whole, half)]
    assert np.abs(states[0] - states[1]).max() < 0.05
    rows = []
    for each in (whole, half):
        decoder = Decoder(each, each.guards, 1)
        rows.append(decoder.step(decoder.start(states[0]), each.prompt))
    assert 0 < np.abs(rows[0] - rows[1]).max() < 0.05


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe("x", 10.02), "window: expected a multiple of 0.02 s up to 10 s, found 10.02"),
        (Recipe("x", 0.0), "window: expected"),
        (Recipe("x", 5.01), "window: expected a multiple"),
        (Recipe("x", 10.0, padded_positions=400), "padded positions: expected at least 500"),
        (Recipe("x", 10.0, language="de"), r"expected the tokens <\|de\|>"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(
    checkpoint: Path, tmp_path: Path, recipe: Recipe, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        build_bundle(checkpoint, tmp_path / "home", recipe)


def test_special_tokens_before_the_text_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    edit_json(checkpoint / "vocab.json", **{"<|endoftext|>": 0})
    added = json.loads((checkpoint / "added_tokens.json").read_text())
    del added["<|endoftext|>"]
    (checkpoint / "added_tokens.json").write_text(json.dumps(added))
    with pytest.raises(ModelError, match="expected every special token behind the text"):
        build_bundle(checkpoint, tmp_path / "home", RECIPE)


def test_suppression_comes_from_the_generation_config_where_there_is_one(
    checkpoint: Path, tmp_path: Path
) -> None:
    generation = {"suppress_tokens": [3, 9, 514], "begin_suppress_tokens": [5, 512]}
    (checkpoint / "generation_config.json").write_text(json.dumps(generation))
    build_bundle(checkpoint, tmp_path / "home", RECIPE)
    bundle = load_bundle(tmp_path / "home")
    assert bundle.suppressed == (3, 9, *range(513, 521))
    assert bundle.suppressed_first == (5, 512)


def test_an_english_only_model_is_prompted_without_language_and_task(
    checkpoint: Path, tmp_path: Path
) -> None:
    (checkpoint / "generation_config.json").write_text('{"is_multilingual": false}')
    build_bundle(checkpoint, tmp_path / "home", RECIPE)
    bundle = load_bundle(tmp_path / "home")
    assert bundle.prompt == (513, 520) and bundle.languages == ("en",)


def test_timestamps_begin_behind_the_no_timestamps_token(tmp_path: Path) -> None:
    config = sized(16, (1, 1), 2, 60, 50, 20)
    folder = write_checkpoint(tmp_path / "checkpoint", config, random_weights(config, 2))
    added = json.loads((folder / "added_tokens.json").read_text())
    vocabulary = json.loads((folder / "vocab.json").read_text())
    shifted = {name: number - 10 for name, number in added.items()}
    (folder / "added_tokens.json").write_text(json.dumps(shifted))
    kept = {piece: number for piece, number in vocabulary.items() if number < 41}
    (folder / "vocab.json").write_text(json.dumps(kept))
    build_bundle(folder, tmp_path / "stamped", Recipe("stamped", 1.0))
    bundle = load_bundle(tmp_path / "stamped")
    assert bundle.tokens.timestamp_begin == 50
    assert set(range(50, 60)) <= set(bundle.suppressed)


def test_whispers_own_vocabulary_and_generation_config_are_understood(tmp_path: Path) -> None:
    if not (shared := os.environ.get("ROOMSCRIBE_SHARED")):
        pytest.skip("ROOMSCRIBE_SHARED is not set: no published vocabulary to build with")
    published = Path(shared) / "data" / "whisper" / "whisper_tiny_multilingual_hf"
    config = sized(8, (1, 1), 2, 51865, 1500, 448)
    folder = write_checkpoint(tmp_path / "checkpoint", config, random_weights(config, 4))
    for name in ("vocab.json", "added_tokens.json", "generation_config.json"):
        (folder / name).write_bytes((published / name).read_bytes())
    build_bundle(folder, tmp_path / "tiny", Recipe("tiny", 10.0, language="de"))
    bundle = load_bundle(tmp_path / "tiny")
    assert bundle.prompt == (50258, 50261, 50359, 50363)
    assert bundle.tokens == Tokens(50258, 50257, 50362, 50363, 50257, 50364)
    assert bundle.suppressed_first == (220, 50257) and 50257 not in bundle.suppressed
    assert {1, 2, 7, 50258, 50362, 50364, 51864} <= set(bundle.suppressed)
    assert len(bundle.languages) == 99 and bundle.guards.positions == 1500
    assert Tokenizer.open(bundle).detokenize([2425, 11, 1002, 50257]) == " Hello, world"


def test_the_command_builds_a_bundle_and_says_its_size(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "home-en"
    options = ["--name", "home-en", "--window", "10", "--demo", "--positions", "700"]
    assert main([str(checkpoint), str(out), *options, "--licence", "Apache-2.0"]) == 0
    bundle = load_bundle(out)
    assert bundle.demo_model and bundle.guards.positions == 700 and bundle.licence == "Apache-2.0"
    assert "MB" in capsys.readouterr().out


def test_the_command_says_in_one_line_why_it_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([str(tmp_path), str(tmp_path / "out"), "--name", "x", "--window", "10"])
    assert status == 78
    assert capsys.readouterr().err.count("\n") == 1
