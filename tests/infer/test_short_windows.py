"""The encoder on the CPU computes what was said, and the decoder notices no difference."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rigs.checkout import BUILT_IN

from appliance.errors import ModelError
from appliance.infer.encoder import CpuEncoder, positions_of_sound
from appliance.infer.mel import window_mel
from appliance.model.bundle import SILENT_MEL, Bundle, load_bundle
from appliance.records import SAMPLE_RATE, Mel, Samples


def noise(duration_s: float) -> Samples:
    rng = np.random.default_rng(3)
    return rng.normal(0, 2000, round(duration_s * SAMPLE_RATE)).astype(np.int16)


def mel_of(samples: Samples) -> Mel:
    return window_mel(samples, 80, 1000)


@pytest.mark.parametrize(
    ("duration_s", "positions"),
    [(0.0, 50), (0.1, 60), (0.55, 80), (3.0, 210), (8.7, 490), (8.9, 500), (9.9, 500), (10, 500)],
)
def test_a_window_is_as_long_as_its_sound(duration_s: float, positions: int) -> None:
    mel = mel_of(noise(duration_s))
    assert positions_of_sound(mel) == positions


def test_silence_within_and_before_the_sound_counts() -> None:
    samples = np.concatenate((np.zeros(32_000, np.int16), noise(0.2), np.zeros(8000, np.int16)))
    assert positions_of_sound(mel_of(samples)) == 170
    assert positions_of_sound(mel_of(np.concatenate((samples, noise(0.2))))) == 200


def test_behind_the_sound_are_the_states_of_a_silent_window(built_in: Bundle) -> None:
    whole = CpuEncoder(built_in, 1)
    short = CpuEncoder(replace(built_in, short_windows=True), 1)
    silence = whole.encode(np.full((1000, 80), SILENT_MEL, np.float32))
    states = short.encode(mel_of(noise(3.0)))
    assert states.shape == (500, 384)
    assert np.allclose(states[210:], silence[210:], atol=1e-5)
    assert not np.allclose(states[:210], silence[:210], atol=0.1)
    full = mel_of(noise(10.0))
    assert np.array_equal(short.encode(full), whole.encode(full))
    assert np.array_equal(states, short.encode(mel_of(noise(3.0)))), "no trace of other windows"


def test_the_manifest_says_whether_windows_may_be_short(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BUILT_IN, tmp_path / "copy"))
    manifest = json.loads((folder / "bundle.json").read_text())
    for value in (False, True):
        manifest["short_windows"] = value
        (folder / "bundle.json").write_text(json.dumps(manifest))
        assert load_bundle(folder).short_windows is value
    manifest["short_windows"] = "yes"
    (folder / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match="short_windows: expected true or false, found 'yes'"):
        load_bundle(folder)
