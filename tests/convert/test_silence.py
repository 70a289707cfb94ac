"""Behind a window stand the states that the model's own encoder gives for silence."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from rigs.models import ODD, random_mel, random_weights, write_checkpoint

from appliance.convert.build import Recipe, build_bundle
from appliance.convert.checkpoint import load_checkpoint
from appliance.convert.silence import silent_states
from appliance.errors import ModelError
from appliance.infer.encoder import CpuEncoder
from appliance.model.bundle import SILENT_MEL, load_bundle

WHOLE_S = ODD.max_source_positions / 50


def test_numpy_and_the_graph_compute_the_same_states_of_silence(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", ODD, random_weights(ODD, 5))
    build_bundle(checkpoint, tmp_path / "whole", Recipe("whole", WHOLE_S))
    bundle = load_bundle(tmp_path / "whole")
    silent = np.full((bundle.frames, bundle.n_mels), SILENT_MEL, np.float32)
    expected = CpuEncoder(bundle, 1).encode(silent)
    found = silent_states(load_checkpoint(checkpoint))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert bundle.silences == 0 and bundle.read_silence().shape == (0, ODD.d_model)


@pytest.mark.parametrize(("positions", "silences"), [(125, 50), (300, 33), (331, 2)])
def test_each_virtual_position_is_a_mean_of_those_behind_the_window(
    tmp_path: Path, positions: int, silences: int
) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", ODD, random_weights(ODD, 5))
    build_bundle(checkpoint, tmp_path / "b", Recipe("b", positions / 50, quantize="int8"))
    bundle = load_bundle(tmp_path / "b")
    found = bundle.read_silence()
    assert (bundle.silences, bundle.attended) == (silences, positions + silences)
    states = silent_states(load_checkpoint(checkpoint))[positions:]
    parts = np.array_split(states, silences)
    np.testing.assert_allclose(found, [part.mean(axis=0) for part in parts], atol=1e-6)
    (bundle.folder / "silence.bin").write_bytes(b"1234")
    with pytest.raises(ModelError, match=f"expected {silences} rows of 48 numbers, found 1"):
        bundle.read_silence()


@pytest.mark.parametrize("graph", ["encoder", "step"])
def test_a_neuron_that_outweighs_the_others_is_multiplied_apart(tmp_path: Path, graph: str) -> None:
    weights = dict(random_weights(ODD, 5))
    block = f"model.{'encoder' if graph == 'encoder' else 'decoder'}.layers.1"
    found = []
    for factor in (1.0, 30.0):
        weights[f"{block}.fc1.weight"] = weights[f"{block}.fc1.weight"].copy()
        weights[f"{block}.fc1.weight"][7] *= factor
        folder = tmp_path / f"{factor}"
        write_checkpoint(folder / "checkpoint", ODD, weights)
        build_bundle(folder / "checkpoint", folder / "bundle", Recipe("b", 2.5, quantize="int8"))
        model = onnx.load(folder / "bundle" / f"{graph}.onnx", load_external_data=False)
        names = {each.name for each in model.graph.initializer}
        assert f"{block}.fc2.int8" in names
        found.append(f"{block}.loud.fc2.matrix.half" in names)
    assert found == [False, True]
    mel = random_mel(ODD, 250, 1)
    build_bundle(tmp_path / "30.0" / "checkpoint", tmp_path / "whole", Recipe("w", 2.5))
    exact, narrow = (
        CpuEncoder(load_bundle(each), 1).encode(mel)
        for each in (tmp_path / "whole", tmp_path / "30.0" / "bundle")
    )
    assert np.abs(exact - narrow).std() < 0.05 * exact.std()
