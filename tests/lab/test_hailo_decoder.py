"""The full-NPU path: the decoder as a HEF writes what the CPU's does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from rigs.checkout import SPEECH
from rigs.hailo import LENGTHS, PATIENT
from rigs.hailo_simulator.control import DECODER_TABLES, Simulator, write_decoder_hef
from rigs.models import never_ending
from rigs.steps import start, step

from appliance.config import Settings
from appliance.errors import DeviceError, ModelError
from appliance.infer.decoder import Decoder
from appliance.infer.hailo.npu import Npu, open_npu
from appliance.lab.benchmark.measure import measure
from appliance.lab.benchmark.rows import make_rows
from appliance.lab.hailo.decoder import DecoderFiles, NpuDecoder, open_on_npu
from appliance.lab.words import Recorded
from appliance.model.bundle import Bundle
from appliance.records import States, Window

TOKEN_TABLE, PLACE_TABLE = DECODER_TABLES
LONG_S = 60.0
"""Of sound: more than any limit but the sequence's."""


@contextmanager
def chip(bundle: Bundle) -> Iterator[Npu]:
    """The chip with the bundle's encoder."""
    npu = open_npu(bundle, share=False, **PATIENT)
    try:
        yield npu
    finally:
        npu.close()


@contextmanager
def both(bundle: Bundle) -> Iterator[tuple[Decoder, NpuDecoder]]:
    """The CPU's decoder, with a HEF's positions, and the network on the chip."""
    cpu = Decoder(bundle, 1)
    cpu.positions = bundle.positions
    with chip(bundle) as npu:
        yield cpu, NpuDecoder(npu, DecoderFiles(bundle, bundle.folder), 30_000)


def states_of(bundle: Bundle, seed: int) -> States:
    rng = np.random.Generator(np.random.PCG64(seed))
    return (rng.random((bundle.positions, bundle.d_model)) * 4 - 2).astype(np.float32)


def logits_of(bundle: Bundle, network: NpuDecoder, tokens: list[int]) -> NDArray[np.float32]:
    every = range(len(tokens))
    found = network.advance(tokens, every, every)
    logits = np.empty((len(tokens), bundle.vocabulary_size), np.float32)
    logits[:, bundle.kept], logits[:, bundle.left_out] = found.logits, found.left_out
    return logits


@pytest.mark.parametrize("name", ["home", "odd"])
def test_logits_and_tokens_are_those_of_the_cpu(
    simulator: Simulator, npu_bundles: dict[str, Bundle], name: str
) -> None:
    simulator.plug()
    bundle = npu_bundles[name]
    with both(bundle) as (cpu, network):
        tokens = [*bundle.prompt, 40, 50, 60, 7, 7, 9]
        start(cpu, states_of(bundle, 2))
        network.begin(states_of(bundle, 2), bundle.positions)
        assert np.abs(logits_of(bundle, network, tokens) - step(cpu, tokens)).max() < 1e-3
        for seed in range(4):
            states = states_of(bundle, seed)
            wanted, found = cpu.decode(states, 0.4), cpu.decode(states, 0.4, network)
            assert found.tokens == wanted.tokens and found.ended == wanted.ended
            assert np.allclose(found.logprobs, wanted.logprobs, atol=1e-3)
            assert found.no_speech_prob == pytest.approx(wanted.no_speech_prob, rel=1e-3)


def test_every_step_is_one_job_and_a_text_ends_with_the_sequence(
    simulator: Simulator, npu_bundle: Bundle
) -> None:
    simulator.plug()
    bundle = never_ending(npu_bundle)
    with both(bundle) as (cpu, network):
        states, before = states_of(bundle, 1), len(simulator.history)
        found, wanted = cpu.decode(states, LONG_S, network), cpu.decode(states, LONG_S)
        jobs = len(simulator.history) - before
    assert jobs == len(found.tokens) == LENGTHS["home"] - len(bundle.prompt) and not found.ended
    assert len(wanted.tokens) > jobs and wanted.tokens[:jobs] == found.tokens


def transposed(bundle: Bundle) -> dict[str, Any]:
    """Edges of as many bytes, whose numbers lie otherwise."""
    length, width, positions = LENGTHS["home"], bundle.d_model, bundle.positions
    return {
        "inputs": {
            "decoder/input_layer1": ((1, positions, width), "encoder_hidden_states"),
            "decoder/input_layer2": ((1, width, length), "token_embeddings"),
        }
    }


@pytest.mark.parametrize(
    ("places", "hef", "words"),
    [
        (40, transposed, r"expected inputs .*found .*\(1, 128, 40\)"),
        (40, lambda _: {"chip": "HAILO10H"}, "it is for another chip"),
        (24, lambda _: {}, r"L from 5 to 24, .*\(40, 1, 128\)"),
    ],
)
def test_a_decoder_that_does_not_fit_is_refused(
    simulator: Simulator, copied: Bundle, places: int, hef: Callable[[Bundle], Any], words: str
) -> None:
    simulator.plug()
    np.save(copied.folder / PLACE_TABLE, np.zeros((places, 128), np.float32))
    write_decoder_hef(copied, LENGTHS["home"], **hef(copied))
    with pytest.raises(DeviceError, match=words), both(copied):
        pass


def test_inputs_are_told_apart_by_their_names_not_by_how_they_are_listed(
    simulator: Simulator, npu_bundle: Bundle
) -> None:
    simulator.plug()
    with both(npu_bundle) as (_, network):
        assert list(network.model.inputs) == ["decoder/input_layer2", "decoder/input_layer1"]
        network.begin(states_of(npu_bundle, 1), npu_bundle.positions)
        given = network.model.inputs["decoder/input_layer1"]
        assert np.array_equal(given[0], states_of(npu_bundle, 1))


@pytest.mark.parametrize(
    ("name", "table", "words"),
    [
        (TOKEN_TABLE, np.zeros((520, 128), np.float32), "the token embedding is not that of home"),
        (TOKEN_TABLE, np.array([[None] * 128] * 521), "expected rows of 128 numbers"),
        (PLACE_TABLE, np.zeros((5, 65), np.float32), "expected rows of 128 numbers"),
        (PLACE_TABLE, b"no table", "expected rows of 128 numbers"),
        (PLACE_TABLE, None, r"expected one onnx_add_input\*\.npy, found 0; .*--npu-decoder"),
    ],
)
def test_tables_that_do_not_fit_are_refused_by_their_headers(
    copied: Bundle, name: str, table: NDArray[Any] | bytes | None, words: str
) -> None:
    if table is None:
        (copied.folder / name).unlink()
    elif isinstance(table, bytes):
        (copied.folder / name).write_bytes(table)
    else:
        np.save(copied.folder / name, table)
    with pytest.raises(ModelError, match=words) as caught:
        DecoderFiles(copied, copied.folder)
    assert "\n" not in str(caught.value)


def test_the_benchmarks_row_has_both_on_the_chip(
    simulator: Simulator, npu_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.plug()
    settings = replace(Settings(), model=replace(Settings().model, bundle=str(npu_bundle.folder)))
    window = Window("", 1, True, (np.arange(16000) % 700 * 40).astype(np.int16), 0.0, 1.0, 1.0)
    with open_on_npu(settings, npu_bundle) as transcriber:
        before = len(simulator.history)
        text = transcriber.transcribe(window)
        jobs = len(simulator.history) - before
    assert jobs == 1 + len(text.tokens) + text.ended and text.encoder == "hailo8"
    monkeypatch.setenv("PYTHONPATH", simulator.environment["PYTHONPATH"])
    [row] = make_rows(["npu"], None, settings, 1, tmp_path)
    sound = [Recorded(soundfile.read(SPEECH / "00.flac", dtype="int16")[0], "")]
    found = measure(row, sound)
    assert not isinstance(found, str), found
    assert found.heard[0].encoder == "hailo8"
    reason = measure(replace(row, decoder=tmp_path), sound)
    assert "expected one *decoder*.hef, found 0" in str(reason)
