"""A checkpoint becomes a bundle, whole or not at all."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from rigs.models import SMALL_SHAPE, random_mel, random_weights, sized, write_checkpoint

from appliance.convert.build import Recipe, build_bundle
from appliance.errors import ModelError
from appliance.infer.encoder import CpuEncoder
from appliance.model.bundle import load_bundle

RECIPE = Recipe("home", 10.0)


@pytest.fixture
def checkpoint(checkpoint_folder: Path, tmp_path: Path) -> Path:
    """A copy of the random checkpoint, to be damaged."""
    return Path(shutil.copytree(checkpoint_folder, tmp_path / "copy"))


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


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_the_constants_of_a_large_graph_lie_beside_it_and_are_the_same(
    checkpoint: Path, tmp_path: Path, quantize: str
) -> None:
    recipe = Recipe("home", 10.0, quantize=quantize)
    build_bundle(checkpoint, tmp_path / "small", recipe)
    build_bundle(checkpoint, tmp_path / "large", recipe, inline=0)
    files = load_bundle(tmp_path / "large").files
    beside = {"encoder.bin", "cross.bin"} | ({"step.bin"} if quantize == "none" else set())
    assert set(files) - set(load_bundle(tmp_path / "small").files) == beside
    for name in ("encoder.onnx", "cross.onnx", "step.onnx"):
        small, large = (onnx.load(str(tmp_path / each / name)) for each in ("small", "large"))
        assert small.graph.node == large.graph.node
        one, other = (
            [(each.name, each.data_type, each.dims, each.raw_data) for each in model.initializer]
            for model in (small.graph, large.graph)
        )
        assert one == other
        assert (tmp_path / "large" / name).stat().st_size < 60_000
    bundles = [load_bundle(tmp_path / each) for each in ("small", "large")]
    mel = random_mel(SMALL_SHAPE, bundles[0].frames, 3)
    states = [CpuEncoder(bundle, 1).encode(mel) for bundle in bundles]
    assert np.array_equal(states[0], states[1])
    with (tmp_path / "large" / "encoder.bin").open("r+b") as file:
        file.write(b"damaged")
    with pytest.raises(ModelError, match=r"files\.encoder\.bin\.sha256"):
        load_bundle(tmp_path / "large")


def test_a_build_holds_a_few_weights_in_memory_and_not_all(tmp_path: Path) -> None:
    wide = sized(1024, (3, 1), 16, 500, 100, 60)
    write_checkpoint(tmp_path / "wide", wide, random_weights(wide, 5))
    size = (tmp_path / "wide" / "model.safetensors").stat().st_size
    program = (
        "import re, sys; from pathlib import Path\n"
        "from appliance.convert.build import Recipe, build_bundle\n"
        "def kilobytes(key):\n"
        "    status = Path('/proc/self/status').read_text()\n"
        "    return int(re.search(key + r':\\s+(\\d+)', status)[1])\n"
        "before = kilobytes('VmRSS')\n"
        "checkpoint, out = map(Path, sys.argv[1:])\n"
        "build_bundle(checkpoint, out, Recipe('x', 2.0), inline=10**6)\n"
        "print(kilobytes('VmHWM') - before)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "wide"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken_kb = int(done.stdout)
    assert size > 220e6 and taken_kb * 1024 < 0.6 * size, taken_kb


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe("x", 10.02), "window: expected a multiple of 0.02 s up to 10 s, found 10.02"),
        (Recipe("x", 0.0), "window: expected"),
        (Recipe("x", 5.01), "window: expected a multiple"),
        (Recipe("x", 10.0, language="de"), "--language: 'de': this model is English-only"),
        (Recipe("x", float("nan")), "window: expected a multiple of 0.02 s up to 10 s, found nan"),
        (Recipe("x", float("inf")), "window: expected a multiple of 0.02 s up to 10 s, found inf"),
        (Recipe("x", 10.0, quantize="int2"), "quantize: expected none or int8, found int2"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(
    checkpoint: Path, tmp_path: Path, recipe: Recipe, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        build_bundle(checkpoint, tmp_path / "home", recipe)


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
