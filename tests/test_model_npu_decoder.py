"""`roomscribe model add tiny --hef hailo8 --npu-decoder`, against a store on this machine."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hailo_simulator.control import write_decoder_hef
from hailo_simulator.hef_files import write_hef
from random_whisper import random_weights
from test_model_commands import EDGES, SMALL, Desk, desk, one_line

from appliance.infer.hailo.decoder_network import DecoderFiles
from appliance.model.bundle import load_bundle

__all__ = ["desk"]

ADD = ("add", "tiny", "--hef", "hailo8", "--npu-decoder")
LENGTH = 32
H8 = "whisper/h8/tiny-whisper-"
DECODER = f"{H8}decoder-fixed-sequence-matmul-split.hef"
TABLES = "npy files/whisper/decoder_assets/tiny/decoder_tokenization"
TOKENS, PLACES = (
    f"{TABLES}/{name}_tiny.npy" for name in ("token_embedding_weight", "onnx_add_input")
)


def npy(table: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, table)
    return file.getvalue()


@pytest.fixture
def stocked(desk: Desk, tmp_path: Path) -> Desk:
    """A desk whose store has both HEFs and the tables."""
    weights = random_weights(SMALL, 6)
    store = desk.hub.hefs
    store[f"{H8}encoder-10s_15dB.hef"] = write_hef(tmp_path / "encoder.hef", *EDGES).read_bytes()
    assert desk.run("add", desk.checkpoint, "--name", "plain").returncode == 0
    store[DECODER] = write_decoder_hef(load_bundle(desk.models / "plain"), LENGTH).read_bytes()
    store[TOKENS] = npy(weights["model.decoder.embed_tokens.weight"])
    store[PLACES] = npy(weights["model.decoder.embed_positions.weight"][:LENGTH])
    return desk


def test_hailos_decoder_and_its_tables_are_fetched_verified_and_entered(stocked: Desk) -> None:
    done = stocked.run(*ADD)
    assert done.returncode == 0, done.stderr
    assert "for comparison only: the CPU decodes faster" in done.stdout
    bundle = load_bundle(stocked.models / "tiny")
    manifest = json.loads((bundle.folder / "bundle.json").read_text())
    for name, path in (
        ("decoder.hef", DECODER), ("token_embedding_weight.npy", TOKENS),
        ("onnx_add_input.npy", PLACES),
    ):  # fmt: skip
        content = (bundle.folder / name).read_bytes()
        assert content == stocked.hub.hefs[path]
        assert manifest["files"][name]["size"] == len(content)
    assert DecoderFiles(bundle).length == LENGTH and manifest["hef_chip"] == "hailo8"
    assert stocked.run("verify", "tiny").returncode == 0


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        (DECODER, b"<html>", "found b'<htm'"),
        (DECODER, b"\x01HEF" + bytes(600), "decoder.hef: expected"),
        (TOKENS, npy(np.zeros((139, 16), np.float32)), "expected shape (140, 16)"),
        (TOKENS, npy(np.array([[None] * 16] * 140)), "expected a table of numbers"),
        (TOKENS, b"PK\x03\x04" * 100, "begins with b'\\x93NUMPY'"),
        (PLACES, npy(np.zeros((24, 16), np.float32)), "expected inputs (1, 500, 16)"),
        (PLACES, None, "dropped it: leave --npu-decoder out"),
    ],
)
def test_what_does_not_fit_installs_nothing_and_is_one_line(
    stocked: Desk, path: str, content: bytes | None, words: str
) -> None:
    if content is None:
        del stocked.hub.hefs[path]
    else:
        stocked.hub.hefs[path] = content
    assert words in one_line(stocked.run(*ADD))
    assert not (stocked.models / "tiny").exists()


def test_a_decoder_of_another_model_is_refused(stocked: Desk) -> None:
    bundle = load_bundle(stocked.models / "plain")
    turned = {
        "decoder/input_layer1": ((1, 250, 16), "a"),
        "decoder/input_layer2": ((1, 32, 16), "b"),
    }
    stocked.hub.hefs[DECODER] = write_decoder_hef(bundle, LENGTH, inputs=turned).read_bytes()
    line = one_line(stocked.run(*ADD))
    assert "decoder/input_layer1 (1, 250, 16)" in line and "[decoder] backend = cpu" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", "tiny", "--hef", "none", "--npu-decoder"), "expected a chip"),
        (("add", "tiny", "--hef", "my.hef", "--npu-decoder"), "expected a chip"),
        (("add", "tiny", "--npu-decoder"), "found no Hailo in this machine"),
        (("add", "small", "--hef", "hailo8", "--npu-decoder"), "Hailo publishes"),
        (("add", "tiny", "--hef", "hailo8", "--npu-decoder", "--window", "5"), "Hailo publishes"),
    ],
)
def test_without_a_published_decoder_it_is_refused_at_once(
    desk: Desk, arguments: tuple[str, ...], words: str
) -> None:
    assert words in one_line(desk.run(*arguments))
    assert desk.hub.requests == []


def test_a_command_without_the_option_fetches_none(stocked: Desk) -> None:
    assert stocked.run("add", "tiny", "--hef", "hailo8").returncode == 0
    assert not (stocked.models / "tiny" / "decoder.hef").exists()
    assert stocked.hub.fetched(DECODER.rsplit("/", 1)[-1]) == []
