"""The graphs for Hailo's compiler compute what transformers' Whisper does, in torch's own order."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from rigs.checkout import GOLDEN
from rigs.models import ODD, random_mel, random_weights
from rigs.parity_cases import CASES, Case, distance, log_sum

from appliance.convert.checkpoint import Checkpoint
from appliance.convert.whisper import write_encoder
from appliance.lab.hailo.graphs import embed, host_tables, write_hailo_decoder, write_hailo_encoder

LENGTH = {"tiny": 32, "base": 24, "odd": 24}
INPUTS = {"tiny": 2, "base": 2, "odd": 20}
"""Of the twenty inputs that have golden values."""
STATES_TOLERANCE, LOGITS_TOLERANCE = 2e-4, 1e-4

Run = Callable[..., list[NDArray[np.float32]]]


@dataclass(frozen=True, slots=True)
class Written:
    """One case's two graphs, loaded."""

    case: Case
    checkpoint: Checkpoint
    encode: Run
    decode: Run

    def states(self, index: int) -> NDArray[np.float32]:
        """Encoder states (1, P, d_model) of the case's input of that number."""
        config, case = self.case.config, self.case
        mel = random_mel(config, 2 * case.positions, 1000 * case.seed + index)
        return self.encode(mel.T[None, :, None])[0]


def opened(file: Path) -> Run:
    """Runs a graph on positional inputs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in session.get_inputs()]
    return lambda *inputs: session.run(None, dict(zip(names, inputs, strict=True)))


def odd_checkpoint() -> Checkpoint:
    case = case_named("odd")
    return Checkpoint(case.config, random_weights(case.config, case.seed), "")


def case_named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Written]:
    case: Case = request.param
    folder = tmp_path_factory.mktemp(case.name)
    checkpoint = Checkpoint(case.config, random_weights(case.config, case.seed), "")
    write_hailo_encoder(checkpoint, case.positions, folder / "encoder.onnx")
    write_hailo_decoder(checkpoint, case.positions, LENGTH[case.name], folder / "decoder.onnx")
    yield Written(
        case, checkpoint, opened(folder / "encoder.onnx"), opened(folder / "decoder.onnx")
    )
    shutil.rmtree(folder)


def test_the_nodes_are_those_of_torchs_own_export_in_its_order(tmp_path: Path) -> None:
    positions = case_named("odd").positions
    write_hailo_encoder(odd_checkpoint(), positions, tmp_path / "encoder")
    write_hailo_decoder(odd_checkpoint(), positions, LENGTH["odd"], tmp_path / "decoder")
    for part in ("encoder", "decoder"):
        lines = (GOLDEN / f"hailo_{part}_opset13.txt").read_text().splitlines()
        nodes = [node.op_type for node in onnx.load(tmp_path / part).graph.node]
        assert nodes == [line for line in lines if not line.startswith("#")]


def test_states_equal_those_of_transformers(
    written: Written, record_property: Callable[[str, object], None]
) -> None:
    case, golden = written.case, written.case.golden()
    worst = max(
        distance(case.kept_states(written.states(index)[0]), golden["states"][index])
        for index in range(INPUTS[case.name])
    )
    print(f"{case.name}: largest difference of states {worst:.1e}")
    record_property(f"hailo_states_{case.name}", worst)
    assert worst < STATES_TOLERANCE


def test_logits_equal_those_of_transformers(
    written: Written, record_property: Callable[[str, object], None]
) -> None:
    case, golden, worst = written.case, written.case.golden(), 0.0
    length = LENGTH[case.name]
    tables = host_tables(written.checkpoint, length)
    for index in range(INPUTS[case.name]):
        tokens = [*case.prompt, *golden["bare_tokens"][index][:-1]]
        placed = embed(tables, tokens)[None]
        logits = np.concatenate(written.decode(written.states(index), placed), axis=-1)
        assert logits.shape == (1, length, case.config.vocab_size)
        rows = logits[0, : len(tokens)]
        assert rows[len(case.prompt) - 1 :].argmax(axis=-1).tolist() == (
            golden["bare_tokens"][index].tolist()
        )
        worst = max(
            worst,
            distance(rows[:, case.kept_ids], golden["bare_logits"][index]),
            distance(rows.max(axis=-1), golden["bare_peak"][index]),
            distance(log_sum(rows), golden["bare_log_sum"][index]),
        )
    print(f"{case.name}: largest difference of logits {worst:.1e}")
    record_property(f"hailo_logits_{case.name}", worst)
    assert worst < LOGITS_TOLERANCE


@pytest.mark.parametrize("positions", [1, 2, 77, 125, 250, 333])
def test_a_window_of_any_length_is_encoded_as_by_the_cpu_form(
    positions: int, tmp_path: Path
) -> None:
    checkpoint = odd_checkpoint()
    write_hailo_encoder(checkpoint, positions, tmp_path / "hailo.onnx")
    write_encoder(checkpoint, positions, tmp_path / "cpu.onnx", int8=False)
    mel = random_mel(ODD, 2 * positions, 7)
    (hailo,) = opened(tmp_path / "hailo.onnx")(mel.T[None, :, None])
    (cpu,) = opened(tmp_path / "cpu.onnx")(mel[None])
    assert hailo.shape == (1, positions, 48)
    assert distance(hailo, cpu) < 1e-5


def test_the_host_adds_places_to_embeddings_and_pads_the_sequence() -> None:
    checkpoint = odd_checkpoint()
    embedding = checkpoint.weights["model.decoder.embed_tokens.weight"]
    places = checkpoint.weights["model.decoder.embed_positions.weight"]
    placed = embed(host_tables(checkpoint, 6), [1001, 7])
    assert np.array_equal(placed[:2], embedding[[1001, 7]] + places[:2])
    assert np.array_equal(placed[2:], embedding[[0, 0, 0, 0]] + places[2:6])
    assert embed(host_tables(checkpoint, 6), range(20)).shape == (6, 48)
