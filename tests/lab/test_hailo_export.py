"""An export holds all that Hailo's compiler needs, whole or not at all, and checks itself."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from rigs.checkout import SPEECH
from rigs.command import captured
from rigs.models import ODD, random_mel, random_weights, write_checkpoint
from rigs.weights import find_weights

from appliance.convert.checkpoint import Checkpoint
from appliance.convert.whisper import write_encoder
from appliance.errors import AudioError, ModelError
from appliance.lab.hailo import export
from appliance.lab.hailo.calibration import recorded_mels
from appliance.lab.hailo.export import Report, export_for_hailo
from appliance.lab.hailo.graphs import sizes

WINDOW_S, FRAMES, POSITIONS, LENGTH, WIDTH = 0.6, 60, 30, 32, ODD.d_model
WEIGHTS = random_weights(ODD, 25)

FAKE_HAILO = """\
#!/bin/sh
printf '%s\\n' "$*" >> "$HAILO_LOG"
"""
FAKE_SDK = '''
"""Takes the calls of the compiler's Python interface, and looks at what it is given."""

import onnx


class ClientRunner:
    def __init__(self, hw_arch):
        self.hw_arch = hw_arch

    def translate_onnx_model(self, path, name, start_node_names, end_node_names):
        graph = onnx.load(path).graph
        names = {node.name for node in graph.node} | {tensor.name for tensor in graph.input}
        assert not {*start_node_names, *end_node_names} - names
        assert [node.name for node in graph.node][-4:] == end_node_names
        self.name = name

    def save_har(self, path):
        open(path, "w").close()

    def load_model_script(self, path):
        open(path).close()

    def optimize(self, calibration):
        assert {name: array.shape for name, array in calibration.items()} == {
            f"{self.name}/input_layer1": (3, 1, 30, 48),
            f"{self.name}/input_layer2": (3, 32, 1, 48),
        }

    def compile(self):
        return f"{self.hw_arch} {self.name}".encode()
'''


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("from") / "odd", ODD, WEIGHTS)


@pytest.fixture(scope="module")
def exported(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """An export with three windows in both calibration sets."""
    out = tmp_path_factory.mktemp("export") / "odd-for-hailo"
    return export_for_hailo(checkpoint, out, window_s=WINDOW_S, mels=mels(3))


def mels(count: int) -> Iterator[NDArray[np.float32]]:
    return (random_mel(ODD, FRAMES, seed) for seed in range(count))


def test_an_export_has_every_part_and_its_report_their_checksums(exported: Report) -> None:
    report = json.loads((exported.folder / "report.json").read_bytes())
    assert sorted(report["files"]) == [
        "README.txt",
        "calib_set.npy",
        "compile_decoder.py",
        "compile_encoder.sh",
        "decoder.onnx",
        "decoder_assets/onnx_add_input_odd.npy",
        "decoder_assets/token_embedding_weight_odd.npy",
        "decoder_calib_set.npz",
        "encoder.onnx",
    ]
    for name, entry in report["files"].items():
        content = (exported.folder / name).read_bytes()
        assert entry == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert report["calibration_windows"] == {"encoder": 3, "decoder": 3}
    *facts, states = report["checks"]["encoder.onnx"]
    assert "every tensor between them has a fixed size and is float32" in facts
    assert "states of recordings are the product's within" in states
    assert "input mel: (1, 128, 1, 60) float32" in report["checks"]["encoder.onnx"]
    assert any("3 windows in the calibration set" in remark for remark in report["remarks"])


def test_a_row_of_the_encoders_calibration_set_is_its_input_with_channels_last(
    exported: Report, tmp_path: Path
) -> None:
    rows = np.load(exported.folder / "calib_set.npy")
    assert (rows.shape, rows.dtype) == ((3, 1, FRAMES, 128), np.float32)
    write_encoder(Checkpoint(ODD, WEIGHTS, ""), POSITIONS, tmp_path / "cpu.onnx", int8=False)
    for row, mel in zip(rows, mels(3), strict=True):
        states = run(exported.folder / "encoder.onnx", row.transpose(2, 0, 1)[None])
        expected = run(tmp_path / "cpu.onnx", mel[None])
        assert np.abs(states[0] - expected[0]).max() < 1e-5


def test_the_decoders_calibration_set_is_made_by_the_checkpoint_itself(exported: Report) -> None:
    assets = exported.folder / "decoder_assets"
    embedding = np.load(assets / "token_embedding_weight_odd.npy")
    places = np.load(assets / "onnx_add_input_odd.npy")
    assert np.array_equal(embedding, WEIGHTS["model.decoder.embed_tokens.weight"])
    assert np.array_equal(places, WEIGHTS["model.decoder.embed_positions.weight"][:LENGTH])
    with np.load(exported.folder / "decoder_calib_set.npz") as arrays:
        heard, written = arrays["odd_decoder/input_layer1"], arrays["odd_decoder/input_layer2"]
    assert (heard.shape, written.shape) == ((3, 1, POSITIONS, WIDTH), (3, LENGTH, 1, WIDTH))
    logits = run(exported.folder / "decoder.onnx", heard[0], written[0].transpose(1, 0, 2))
    assert sum(part.shape[-1] for part in logits) == ODD.vocab_size
    for states, embeddings, mel in zip(heard, written, mels(3), strict=True):
        expected = run(exported.folder / "encoder.onnx", mel.T[None, :, None])[0]
        assert np.abs(states - expected).max() < 1e-4 * np.ptp(expected)
        rows = embeddings[:, 0] - places
        tokens = [int(np.abs(embedding - row).sum(axis=1).argmin()) for row in rows]
        assert np.allclose(embedding[tokens], rows, atol=1e-5)
        start, language, task, no_timestamps, *text = tokens
        assert [start, language, task, no_timestamps] == [1001, 1002, 1004, 1008]
        assert text[0] not in (0, *range(1000, 1009))
    folders = [file.name for file in exported.folder.iterdir() if file.is_dir()]
    assert folders == ["decoder_assets"]


def test_real_weights_are_compared_on_recordings_by_the_range_of_their_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (weights := find_weights()) is None:
        pytest.skip("no weights of tiny.en: run scripts/setup.sh")
    mels = recorded_mels([str(SPEECH / "00.flac")], 4.0, 80)
    report = export_for_hailo(weights, tmp_path / "out", window_s=4.0, mels=mels)
    fact = re.search(
        r"the product's within (\S+) of their range", report.checks["encoder.onnx"][-1]
    )
    assert fact and float(fact[1]) < 1e-4
    monkeypatch.setattr(export, "RANGE_TOLERANCE", 1e-9)
    mels = recorded_mels([str(SPEECH / "00.flac")], 4.0, 80)
    with pytest.raises(ModelError, match="of their range, found"):
        export_for_hailo(weights, tmp_path / "other", window_s=4.0, mels=mels)
    assert not (tmp_path / "other").exists()


def test_the_encoders_script_calls_the_three_steps_in_order(
    exported: Report, tmp_path: Path
) -> None:
    log, script = tmp_path / "log", exported.folder / "compile_encoder.sh"
    hailo = tmp_path / "bin" / "hailo"
    hailo.parent.mkdir()
    hailo.write_text(FAKE_HAILO)
    hailo.chmod(0o755)
    environment = {"PATH": f"{hailo.parent}:/usr/bin:/bin", "HAILO_LOG": str(log)}
    subprocess.run([script, "hailo8l", "my script.alls"], env=environment, check=True)
    assert log.read_text().splitlines() == [
        "parser onnx encoder.onnx --net-name odd_encoder --hw-arch hailo8l "
        "--har-path hailo8l/odd_encoder.har",
        "optimize hailo8l/odd_encoder.har --hw-arch hailo8l --calib-set-path calib_set.npy "
        "--model-script my script.alls --output-har-path hailo8l/odd_encoder_optimized.har",
        "compiler hailo8l/odd_encoder_optimized.har --hw-arch hailo8l --output-dir hailo8l",
    ]
    told = "chip: expected hailo8, hailo8l, hailo10h, found hailo9\n"
    assert refusal(64, environment, script, "hailo9") == told
    missing = refusal(69, {"PATH": "/usr/bin:/bin"}, script, "hailo8")
    assert missing.startswith("hailo: command not found; activate")


def refusal(status: int, environment: dict[str, str], *command: object) -> str:
    """Return the errors of a command that ends with this status."""
    done = captured(*command, env=environment)
    assert done.returncode == status
    return done.stderr


def test_the_decoders_script_names_nodes_that_are_in_the_graph(
    exported: Report, tmp_path: Path
) -> None:
    script = exported.folder / "compile_decoder.py", "hailo10h"
    told = "hailo_sdk_client: not installed; activate the Dataflow Compiler's environment\n"
    assert refusal(1, dict(os.environ), sys.executable, *script) == told
    (tmp_path / "hailo_sdk_client.py").write_text(FAKE_SDK)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, *script], env=environment, check=True)
    made = exported.folder / "hailo10h"
    assert (made / "odd_decoder.hef").read_bytes() == b"hailo10h odd_decoder"
    assert (made / "odd_decoder_optimized.har").exists()


def test_without_recordings_the_graphs_are_written_and_the_lack_is_told(
    checkpoint: Path, tmp_path: Path
) -> None:
    out, folder = tmp_path / "out", shutil.copytree(checkpoint, tmp_path / "my model 2")
    report = export_for_hailo(folder, out, window_s=WINDOW_S)
    assert report.windows == (0, 0)
    assert "no calibration sets: give recordings" in str(report)
    assert not list(out.glob("*calib*"))
    assert "output logits_3: (1, 32, 253) float32" in report.checks["decoder.onnx"]
    assert "opset 13, IR version 8" in report.checks["encoder.onnx"]
    assert (out / "decoder_assets" / "onnx_add_input_my-model-2.npy").exists()
    assert "--net-name my_model_2_encoder" in (out / "compile_encoder.sh").read_text()


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON", None])
def test_what_is_not_an_export_is_left_alone(
    checkpoint: Path, tmp_path: Path, content: str | None
) -> None:
    out = tmp_path / "out"
    if content is None:
        out.write_text("a file")
    else:
        out.mkdir()
        (out / "report.json").write_text(content)
    with pytest.raises(ModelError, match="expected an earlier export to replace or nothing"):
        export_for_hailo(checkpoint, out, window_s=WINDOW_S)
    assert out.is_file() if content is None else (out / "report.json").read_text() == content


def unreadable() -> Iterator[NDArray[np.float32]]:
    yield from mels(1)
    raise AudioError("b.wav: expected sound")


def test_nothing_is_left_of_an_export_that_fails(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(AudioError, match=r"b\.wav: expected sound"):
        export_for_hailo(checkpoint, tmp_path / "out", window_s=WINDOW_S, mels=unreadable())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("window_s", [0.0, 0.02, 0.61, 6.68])
def test_a_window_that_the_model_does_not_have_is_refused(
    checkpoint: Path, tmp_path: Path, window_s: float
) -> None:
    with pytest.raises(ModelError, match=r"expected a multiple of 0\.02 s up to 6\.66 s"):
        export_for_hailo(checkpoint, tmp_path / "out", window_s=window_s)


OPERATORS = {
    *("Conv", "MatMul", "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Erf", "Softmax"),
    *("ReduceMean", "LayerNormalization", "Reshape", "Transpose", "Unsqueeze", "Split"),
}
"""Those of the exports that were compiled. Gather, Shape, Cast and other arithmetic on shapes and
indices are what the compiler is known to refuse."""


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_graph_has_only_what_the_compiler_is_known_to_read(exported: Report, name: str) -> None:
    model = onnx.load(exported.folder / f"{name}.onnx")
    assert {node.op_type for node in model.graph.node} <= OPERATORS
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 13)]
    inner = [*model.graph.value_info, *model.graph.output]
    for tensor in (*model.graph.input, *inner):
        assert sizes(tensor) and tensor.type.tensor_type.elem_type == TensorProto.FLOAT, tensor
    outputs = {name for node in model.graph.node for name in node.output}
    assert outputs == {tensor.name for tensor in inner}


def run(file: Path, *inputs: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in session.get_inputs()]
    outputs: list[NDArray[np.float32]] = session.run(None, dict(zip(names, inputs, strict=True)))
    return outputs
