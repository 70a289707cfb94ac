"""The encoder on the CPU computes what was said, and the decoder notices no difference."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from rigs.checkout import BUILT_IN

from appliance.convert.whisper import accept_short_windows
from appliance.errors import ModelError
from appliance.infer.encoder import SILENT_MEL, CpuEncoder, positions_of_sound
from appliance.infer.mel import window_mel
from appliance.model.bundle import ENCODER_FILE, Bundle, load_bundle
from appliance.records import SAMPLE_RATE, Mel, Samples


@pytest.fixture(scope="module")
def tiny_en() -> Bundle:
    return load_bundle(BUILT_IN)


def noise(duration_s: float) -> Samples:
    rng = np.random.default_rng(3)
    return rng.normal(0, 2000, round(duration_s * SAMPLE_RATE)).astype(np.int16)


def mel_of(samples: Samples) -> Mel:
    return window_mel(samples, 80, 1000)


@pytest.mark.parametrize(
    ("duration_s", "positions"),
    [(0.0, 20), (0.1, 30), (0.55, 50), (3.0, 180), (9.3, 490), (9.5, 500), (9.9, 500), (10, 500)],
)
def test_a_window_is_as_long_as_its_sound(duration_s: float, positions: int) -> None:
    mel = mel_of(noise(duration_s))
    assert positions_of_sound(mel) == positions


def test_silence_within_and_before_the_sound_counts() -> None:
    samples = np.concatenate((np.zeros(32_000, np.int16), noise(0.2), np.zeros(8000, np.int16)))
    assert positions_of_sound(mel_of(samples)) == 140
    assert positions_of_sound(mel_of(np.concatenate((samples, noise(0.2))))) == 170


def test_behind_the_sound_are_the_states_of_a_silent_window(tiny_en: Bundle) -> None:
    assert tiny_en.short_windows
    whole, short = CpuEncoder(replace(tiny_en, short_windows=False), 1), CpuEncoder(tiny_en, 1)
    silence = whole.encode(np.full((1000, 80), SILENT_MEL, np.float32))
    states = short.encode(mel_of(noise(3.0)))
    assert states.shape == (500, 128)
    assert np.allclose(states[180:], silence[180:], atol=1e-5)
    assert not np.allclose(states[:180], silence[:180], atol=0.1)
    full = mel_of(noise(10.0))
    assert np.array_equal(short.encode(full), whole.encode(full))
    assert np.array_equal(states, short.encode(mel_of(noise(3.0)))), "no trace of other windows"


@pytest.fixture
def earlier(tmp_path: Path) -> Bundle:
    """The built-in model with the encoder of earlier versions, for windows of 10 s only."""
    folder = Path(shutil.copytree(BUILT_IN, tmp_path / "earlier"))
    model = onnx.load(folder / ENCODER_FILE)
    graph = model.graph
    cut = next(node for node in graph.node if node.op_type == "Slice")
    count = next(node for node in graph.node if node.op_type == "Shape")
    add = next(node for node in graph.node if cut.output[0] in node.input)
    add.input[1] = cut.input[0]
    graph.node.remove(cut)
    graph.node.remove(count)
    graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1000
    graph.output[0].type.tensor_type.shape.dim[1].dim_value = 500
    del graph.initializer[[each.name for each in graph.initializer].index(cut.input[1])]
    onnx.save(model, folder / ENCODER_FILE)
    return replace(load_bundle(BUILT_IN), folder=folder)


def test_an_encoder_of_an_earlier_version_works_as_before_and_can_be_rewritten(
    earlier: Bundle, tiny_en: Bundle
) -> None:
    mel, file = mel_of(noise(3.0)), earlier.folder / ENCODER_FILE
    states = CpuEncoder(replace(earlier, short_windows=False), 1).encode(mel)
    with pytest.raises(ModelError, match=r"input mel: expected shape \(1, any, 80\), found \(1, 1"):
        CpuEncoder(earlier, 1)
    accept_short_windows(file)
    rewritten = file.read_bytes()
    assert np.array_equal(CpuEncoder(earlier, 1).encode(mel), CpuEncoder(tiny_en, 1).encode(mel))
    whole = CpuEncoder(replace(earlier, short_windows=False), 1)
    assert np.allclose(whole.encode(mel), states, atol=1e-5)
    accept_short_windows(file)
    assert file.read_bytes() == rewritten
    assert sorted(path.name for path in earlier.folder.glob("encoder.*")) == [ENCODER_FILE]


def test_the_manifest_says_whether_windows_may_be_short(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BUILT_IN, tmp_path / "copy"))
    manifest = json.loads((folder / "bundle.json").read_text())
    for value, wanted in ((None, False), (False, False), (True, True)):
        manifest.pop("short_windows", None)
        manifest |= {} if value is None else {"short_windows": value}
        (folder / "bundle.json").write_text(json.dumps(manifest))
        assert load_bundle(folder).short_windows is wanted
    manifest["short_windows"] = "yes"
    (folder / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match="short_windows: expected true or false, found 'yes'"):
        load_bundle(folder)
