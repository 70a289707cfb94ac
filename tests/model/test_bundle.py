"""A bundle is whole and right, or it is refused with a message that says what to do."""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rigs.waiting import PATIENCE_S

from appliance.config import Settings
from appliance.errors import ModelError
from appliance.infer.encoder import CpuEncoder
from appliance.infer.opening import open_transcriber
from appliance.model.bundle import (
    DEFAULT_PHRASE_CALIBRATION,
    Bundle,
    installed_bundles,
    load_bundle,
)

FILES = (
    *("encoder.onnx", "cross.onnx", "step.onnx"),
    *("embedding.bin", "silence.bin", "vocabulary.json"),
)


@pytest.fixture
def folder(bundle_folder: Path, tmp_path: Path) -> Path:
    """A copy of the random bundle, to be damaged."""
    return Path(shutil.copytree(bundle_folder, tmp_path / "copy"))


def edit(folder: Path, **changes: Any) -> None:
    """Changes keys of bundle.json; a dotted key is inside a table, None takes a key out."""
    file = folder / "bundle.json"
    manifest = json.loads(file.read_text())
    for dotted, value in changes.items():
        *tables, key = dotted.split("__")
        table = manifest
        for name in tables:
            table = table[name]
        table[key] = value
    file.write_text(json.dumps(manifest))


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """Another file with a manifest that vouches for it."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "bundle.json").read_text())
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "bundle.json").write_text(json.dumps(manifest))


def test_a_bundle_says_what_it_was_built_from(bundle: Bundle) -> None:
    assert bundle.name == "random"
    assert (bundle.d_model, bundle.heads, bundle.head_size) == (128, 4, 32)
    assert (bundle.frames, bundle.positions, bundle.window_s) == (1000, 500, 10.0)
    assert bundle.prompt == (513, 514, 516, 520)
    assert bundle.tokens.end_of_text == 512 and bundle.tokens.no_speech == 519
    assert bundle.suppressed == tuple(range(513, 521))


def test_a_calibration_weighs_mean_and_sum(folder: Path) -> None:
    edit(folder, calibration={"offset": 2.0, "mean": 3.0, "total": 0.5, "low": 0.4})
    bundle = load_bundle(folder)
    score = 2.0 - 3.0 * 0.2 - 0.5 * 0.4
    assert bundle.calibration.confidence([-0.1, -0.3]) == pytest.approx(1 / (1 + math.exp(-score)))
    assert (bundle.calibration.low, bundle.calibration.act) == (0.4, 0.0)
    assert bundle.calibration.confidence([-math.inf]) < 1e-300
    assert 0 < bundle.calibration.confidence([-9.0] * 100) < 1e-9


def test_a_model_without_a_fit_has_the_confidence_of_every_whisper(folder: Path) -> None:
    assert "calibration" not in json.loads((folder / "bundle.json").read_text())
    bundle = load_bundle(folder)
    limits = bundle.calibration
    assert bundle.calibration.confidence([-0.01] * 8) > limits.act > limits.low
    assert bundle.calibration.confidence([-0.5] * 8) < limits.low


def test_a_phrase_calibration_weighs_what_it_names(folder: Path) -> None:
    edit(folder, phrase_calibration={"offset": 1.0, "share": 2.0, "mean": 3.0, "lead": -0.5})
    found = load_bundle(folder).phrase_calibration
    assert found.confidence({}) == pytest.approx(1 / (1 + math.exp(-1.0)))
    assert found.confidence({"share": -1.0, "lead": -2.0}) == pytest.approx(0.5)
    assert found.confidence({"mean": -1.0}) == pytest.approx(1 / (1 + math.exp(2.0)))
    assert found.confidence({"mean": -2000.0}) == pytest.approx(0.0, abs=1e-300)


def test_an_earlier_phrase_calibration_weighs_words_as_every_whisper_does(folder: Path) -> None:
    edit(folder, phrase_calibration={"offset": 1.0, "share": 2.0, "mean": 3.0})
    found = load_bundle(folder).phrase_calibration
    assert found.added == DEFAULT_PHRASE_CALIBRATION.added < 0
    for name in ("added", "missing", "changed", "sense", "report"):
        assert found.confidence({name: 1.0}) < found.confidence({}) < found.confidence({"text": 1})


@pytest.mark.parametrize("name", [name for name in FILES if name != "silence.bin"])
def test_one_flipped_bit_in_a_file_is_found(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(bytes(data))
    with pytest.raises(ModelError, match=rf"bundle.json: files.{name}.sha256: expected \w+, found"):
        load_bundle(folder)


def test_a_truncated_file_is_found_by_its_size(folder: Path) -> None:
    size = (folder / "step.onnx").stat().st_size
    os.truncate(folder / "step.onnx", size - 1)
    found = rf"step.onnx.size: expected {size} bytes, found {size - 1} bytes; .*install it again"
    with pytest.raises(ModelError, match=found):
        load_bundle(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "cross.onnx").unlink()
    with pytest.raises(
        ModelError, match=r"files\.cross\.onnx: expected a readable file, found No such"
    ):
        load_bundle(folder)


def test_a_file_that_the_manifest_does_not_list_is_not_trusted(folder: Path) -> None:
    manifest = json.loads((folder / "bundle.json").read_text())
    del manifest["files"]["encoder.onnx"]
    (folder / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=r"files\.encoder\.onnx: expected a table, found nothing"):
        load_bundle(folder)


def test_a_manifest_cannot_name_files_elsewhere(folder: Path) -> None:
    edit(folder, files={"../encoder.onnx": {"size": 1, "sha256": "0"}})
    manifest = json.loads((folder / "bundle.json").read_text())
    genuine = {
        name: {
            "size": (folder / name).stat().st_size,
            "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
        }
        for name in FILES
    }
    edit(folder, files={**genuine, **manifest["files"]})
    with pytest.raises(ModelError, match=r"\.\./encoder\.onnx: expected the name of a file"):
        load_bundle(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"schema": 2},
            "schema: expected 3, found 2; another version made this model: add it again",
        ),
        ({"d_model": "128"}, "d_model: expected a whole number, found '128'"),
        ({"d_model": True}, "d_model: expected a whole number, found True"),
        ({"suppressed": 5}, "suppressed: expected a list of token ids, found 5"),
        ({"languages": 5}, "languages: expected a list of texts, found 5"),
        ({"name": None}, "name: expected a text, found None"),
        ({"tokens": []}, r"tokens: expected a table, found \[\]"),
        ({"calibration": 1}, "calibration: expected a table, found 1"),
        ({"calibration": {"offset": 0}}, "calibration.mean: expected a value, found nothing"),
        (
            {"phrase_calibration": {"offset": 0, "share": float("nan")}},
            "phrase_calibration.share: expected a number, found nan",
        ),
    ],
)
def test_a_wrong_value_in_the_manifest_is_named(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    edit(folder, **change)
    with pytest.raises(ModelError, match=message) as caught:
        load_bundle(folder)
    assert str(folder / "bundle.json") in str(caught.value)
    assert "roomscribe model add tiny" in str(caught.value)
    assert "\n" not in str(caught.value) and caught.value.exit_status == 78


def test_a_disk_that_fails_is_no_damaged_bundle(folder: Path) -> None:
    (folder / "bundle.json").unlink()
    (folder / "bundle.json").symlink_to("/proc/self/mem")  # opens, and cannot be read: EIO
    with pytest.raises(ModelError, match="see that the disk is there and works") as caught:
        load_bundle(folder)
    assert "damaged" not in str(caught.value)
    assert caught.value.status == 75


def test_a_choice_that_cannot_be_read_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOMSCRIBE_MODELS", str(tmp_path))
    (tmp_path / "in-use").symlink_to("/proc/self/mem")
    with pytest.raises(ModelError, match=r"in-use: .*Input/output error") as caught:
        load_bundle("")
    assert caught.value.status == 75


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00\xff"])
def test_a_manifest_that_is_no_json_table_is_refused(folder: Path, text: str) -> None:
    (folder / "bundle.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"bundle.json: expected (JSON|a JSON table), found"):
        load_bundle(folder)


def test_a_missing_key_is_named(folder: Path) -> None:
    manifest = json.loads((folder / "bundle.json").read_text())
    del manifest["prompt"]
    (folder / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match="prompt: expected a value, found nothing"):
        load_bundle(folder)


def test_a_folder_without_a_bundle_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="found no such file in it"):
        load_bundle(tmp_path)
    with pytest.raises(ModelError, match="found no such folder"):
        load_bundle(str(tmp_path / "nowhere"))


def test_an_unknown_name_lists_the_places_and_the_installed_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOMSCRIBE_MODELS", str(folder.parent))
    with pytest.raises(ModelError) as caught:
        load_bundle("hom-en")
    assert str(folder.parent) in str(caught.value) and "copy" in str(caught.value)


def test_a_bundle_is_found_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOMSCRIBE_MODELS", str(folder.parent))
    assert installed_bundles()["copy"] == folder
    assert load_bundle("copy").folder == folder


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"n_mels": 64}, "encoder.onnx: running the graph failed"),
        ({"d_model": 64}, "encoder.onnx: running the graph failed|embedding.bin: expected 521"),
        ({"decoder_layers": 2}, "cross.onnx: running the graph failed"),
        ({"vocabulary_size": 522}, "embedding.bin: expected 522 rows of 128 numbers of 4 bytes"),
        ({"suppressed": [513]}, "step.onnx: running the graph failed"),
        ({"window_s": 5, "positions": 250}, "silence.bin: expected 50 rows"),
        ({"heads": 8}, "cross.onnx: running the graph failed"),
    ],
)
def test_a_manifest_that_does_not_fit_the_graphs_is_refused_when_opened(
    folder: Path, change: dict[str, Any], wrong: str
) -> None:
    edit(folder, **change)
    with pytest.raises(ModelError, match=wrong) as caught:
        open_transcriber(Settings(), bundle=load_bundle(folder)).warm_up()
    assert "\n" not in str(caught.value) and caught.value.exit_status == 78


@pytest.mark.parametrize("data", [b"", b"no graph", b"\x08\x07" * 50])
def test_a_file_that_is_no_graph_is_refused_in_one_line(folder: Path, data: bytes) -> None:
    replace_file(folder, "encoder.onnx", data)
    bundle = load_bundle(folder)
    with pytest.raises(
        ModelError, match=r"encoder\.onnx: expected a graph that onnxruntime"
    ) as caught:
        CpuEncoder(bundle, 1)
    assert "\n" not in str(caught.value)


def test_standard_error_works_again_after_the_first_session(bundle_folder: Path) -> None:
    program = (
        "import os, sys\n"
        "from appliance.model.bundle import load_bundle\n"
        "from appliance.infer.encoder import CpuEncoder\n"
        "from appliance.infer.decoder import Decoder\n"
        "before = os.fstat(2).st_ino\n"
        "bundle = load_bundle(sys.argv[1])\n"
        "CpuEncoder(bundle, 1); Decoder(bundle, 1)\n"
        "assert os.fstat(2).st_ino == before\n"
        "print('heard', file=sys.stderr); os.write(2, b'raw\\n')\n"
    )
    command = [sys.executable, "-c", program, str(bundle_folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "heard\nraw\n"
