"""The full-NPU path: the decoder as a HEF writes what the CPU's does, or the CPU does it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.hailo import LENGTHS, PATIENT, looked_after
from rigs.hailo_simulator.control import Simulator, write_decoder_hef
from rigs.models import never_ending
from rigs.records import differences
from rigs.steps import start, step

from appliance.config import EncoderSettings, Settings
from appliance.errors import ConfigError, DeviceError, ModelError
from appliance.infer.decoder import Decoder
from appliance.infer.hailo.decoder import HailoDecoder, open_on_npu
from appliance.infer.hailo.decoder_network import DecoderFiles
from appliance.infer.hailo.failover import FailoverEncoder
from appliance.infer.hailo.npu import NpuLimits, open_npu
from appliance.infer.opening import open_transcriber
from appliance.model.bundle import HEF_FILE, PLACE_TABLE, TOKEN_TABLE, Bundle
from appliance.records import States, Window

ON_HAILO = EncoderSettings(threads=1)
LONG_S = 60.0
"""Of sound: more than any limit but the sequence's."""


@dataclass
class Way:
    """A bundle on the CPU and on the NPU."""

    cpu: Decoder
    encoder: FailoverEncoder
    npu: HailoDecoder

    def close(self) -> None:
        self.encoder.close()


def both(bundle: Bundle, limits: NpuLimits = PATIENT) -> Way:
    cpu = Decoder(bundle, 1)
    cpu.positions = bundle.positions  # as a HEF has them
    return Way(cpu, *open_on_npu(bundle, ON_HAILO, cpu, limits))


def states_of(bundle: Bundle, seed: int) -> States:
    rng = np.random.Generator(np.random.PCG64(seed))
    return (rng.random((bundle.positions, bundle.d_model)) * 4 - 2).astype(np.float32)


def logits_of(bundle: Bundle, way: Way, seed: int, tokens: list[int]) -> NDArray[np.float32]:
    assert way.encoder.npu and way.encoder.npu.decoder
    way.encoder.npu.decoder.begin(states_of(bundle, seed), bundle.positions)
    every = range(len(tokens))
    step = way.encoder.npu.decoder.advance(tokens, every, every)
    logits = np.empty((len(tokens), bundle.vocabulary_size), np.float32)
    logits[:, bundle.kept], logits[:, bundle.left_out] = step.logits, step.left_out
    return logits


@pytest.mark.parametrize("name", ["home", "odd"])
def test_the_logits_are_those_of_the_cpu(
    simulator: Simulator, npu_bundles: dict[str, Bundle], name: str
) -> None:
    simulator.plug()
    bundle = npu_bundles[name]
    way = both(bundle)
    tokens = [*bundle.prompt, 40, 50, 60, 7, 7, 9]
    start(way.cpu, states_of(bundle, 2))
    wanted = step(way.cpu, tokens)
    assert np.abs(logits_of(bundle, way, 2, tokens) - wanted).max() < 1e-3
    way.close()


@pytest.mark.parametrize("name", ["home", "odd"])
def test_the_tokens_are_those_of_the_cpu_where_the_sequence_is_long_enough(
    simulator: Simulator, npu_bundles: dict[str, Bundle], name: str
) -> None:
    simulator.plug()
    bundle = npu_bundles[name]
    way = both(bundle)
    for seed in range(4):
        states = states_of(bundle, seed)
        wanted = way.cpu.decode(states, 0.4)
        found = way.npu.decode(states, 0.4)
        assert way.encoder.npu and way.encoder.npu.fault is None
        assert found.tokens == wanted.tokens and found.ended == wanted.ended
        assert np.allclose(found.logprobs, wanted.logprobs, atol=1e-3)
        assert found.no_speech_prob == pytest.approx(wanted.no_speech_prob, rel=1e-3)
    way.close()


def test_every_step_is_one_job_and_the_prompt_is_the_models_own(
    simulator: Simulator, npu_bundle: Bundle
) -> None:
    simulator.plug()
    way = both(never_ending(npu_bundle))
    before = len(simulator.inner.history)
    decoded = way.npu.decode(states_of(npu_bundle, 1), 0.4)
    assert len(simulator.inner.history) - before == len(decoded.tokens) == 24 + 6
    other = replace(npu_bundle, prompt=npu_bundle.prompt[:1])
    fresh = HailoDecoder(Decoder(other, 1), way.encoder)
    assert fresh.decode(states_of(npu_bundle, 1), 0.4).tokens != decoded.tokens
    way.close()


@pytest.mark.parametrize("name", ["home", "odd"])
def test_a_text_longer_than_the_sequence_is_cut_there_and_says_so(
    simulator: Simulator, npu_bundles: dict[str, Bundle], name: str
) -> None:
    simulator.plug()
    bundle = npu_bundles[name]
    way = both(never_ending(bundle))
    states = states_of(bundle, 1)
    found, wanted = way.npu.decode(states, LONG_S), way.cpu.decode(states, LONG_S)
    assert not found.ended and len(found.tokens) == LENGTHS[name] - len(bundle.prompt)
    assert len(wanted.tokens) > len(found.tokens)
    assert wanted.tokens[: len(found.tokens)] == found.tokens
    way.close()


def test_a_table_with_fewer_places_than_the_sequence_is_refused(
    simulator: Simulator, copied: Bundle
) -> None:
    simulator.plug()
    np.save(copied.folder / PLACE_TABLE, np.zeros((24, 128), np.float32))
    with pytest.raises(DeviceError, match=r"L from 5 to 24, .*\(40, 1, 128\)"):
        both(copied)


def transposed(bundle: Bundle) -> dict[str, Any]:
    """Edges of as many bytes, whose numbers lie otherwise."""
    length, width, positions = LENGTHS["home"], bundle.d_model, bundle.positions
    return {
        "inputs": {
            "decoder/input_layer1": ((1, positions, width), "encoder_hidden_states"),
            "decoder/input_layer2": ((1, width, length), "token_embeddings"),
        }
    }


def test_numbers_that_lie_otherwise_are_refused_though_they_are_as_many(
    simulator: Simulator, copied: Bundle
) -> None:
    simulator.plug()
    write_decoder_hef(copied, LENGTHS["home"], **transposed(copied))
    with pytest.raises(DeviceError, match=r"expected inputs .*found .*\(1, 128, 40\).*= cpu"):
        both(copied)


def test_inputs_are_told_apart_by_their_names_not_by_how_they_are_listed(
    simulator: Simulator, npu_bundle: Bundle
) -> None:
    simulator.plug()
    way = both(npu_bundle)
    assert way.encoder.npu and way.encoder.npu.decoder
    network = way.encoder.npu.decoder
    assert list(network.model.inputs) == ["decoder/input_layer2", "decoder/input_layer1"]
    network.begin(states_of(npu_bundle, 1), npu_bundle.positions)
    given = network.model.inputs["decoder/input_layer1"]
    assert np.array_equal(given[0], states_of(npu_bundle, 1))
    way.close()


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a failed job": ({"fail_jobs": "all"}, "HAILO_INTERNAL_FAILURE"),
    "a hang": ({"hang_jobs": "all"}, "did not answer in time"),
    "a dead chip": ({"dead": True}, "stream_abort"),
}
HEALTHY = {"fail_jobs": [], "hang_jobs": [], "dead": False}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_chip_lost_in_the_middle_of_a_text_gives_the_cpus_text_and_comes_back(
    simulator: Simulator, npu_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    simulator.plug()
    limits = NpuLimits(job_ms=1000, first_job_ms=2000, step_ms=1000)
    way = both(never_ending(npu_bundle), limits)
    states, settings = states_of(npu_bundle, 5), FAULTS[fault][0]
    steps: list[int] = []
    run = way.encoder.npu.decoder.model.run  # type: ignore[union-attr]

    def strike(within_ms: int) -> None:
        if len(steps) == 9:
            simulator.set(**settings)
        steps.append(within_ms)
        run(within_ms)

    monkeypatch.setattr(way.encoder.npu.decoder.model, "run", strike)  # type: ignore[union-attr]
    found = way.npu.decode(states, 0.4)
    assert len(steps) == 10 and not differences(found, way.cpu.decode(states, 0.4))
    looked_after(way.encoder, 0.0)
    assert way.encoder.name == "cpu" and way.encoder.npu is None
    assert way.encoder.trouble and FAULTS[fault][1] in way.encoder.trouble
    assert way.encoder.trouble.endswith("until then the CPU encodes and decodes")
    assert not differences(way.npu.decode(states, 0.4), found) and len(steps) == 10
    simulator.set(**HEALTHY)
    looked_after(way.encoder, 1e9)
    assert way.encoder.trouble is None and way.encoder.name == "hailo8"
    before = len(simulator.inner.history)
    assert way.npu.decode(states, 0.4).tokens == found.tokens
    assert len(simulator.inner.history) > before
    way.close()


def test_closing_frees_the_chip_whatever_happened(simulator: Simulator, copied: Bundle) -> None:
    simulator.plug()
    for _ in range(2):
        way = both(copied)
        way.npu.decode(states_of(copied, 1), 0.4)
        way.close()
    write_decoder_hef(copied, LENGTHS["home"], **transposed(copied))
    kept = []
    for _ in range(2):
        with pytest.raises(DeviceError) as caught:  # a kept error must not keep the chip
            both(copied)
        kept.append(caught.value)
    assert all("expected inputs" in str(error) for error in kept)
    open_npu(copied, copied.folder / HEF_FILE, share=False).close()


def test_without_a_chip_or_a_hef_the_start_says_why_and_what_to_do(
    simulator: Simulator, npu_bundle: Bundle, copied: Bundle
) -> None:
    with pytest.raises(DeviceError, match="no Hailo found"):
        both(npu_bundle)
    simulator.plug(busy=True)
    with pytest.raises(DeviceError, match="in use by"):
        both(npu_bundle)
    cpu = Decoder(npu_bundle, 1)
    with pytest.raises(ConfigError, match=r"\[decoder\] backend: expected cpu where \[encoder\]"):
        open_on_npu(npu_bundle, EncoderSettings(backend="cpu"), cpu)
    for name in ("encoder.hef", "decoder.hef", TOKEN_TABLE, PLACE_TABLE):
        files = tuple(file for file in npu_bundle.files if file != name)
        with pytest.raises(ModelError, match=rf"needs {name}, which is missing.*--npu-decoder"):
            both(replace(npu_bundle, files=files))
    assert simulator.inner.history == []
    write_decoder_hef(copied, LENGTHS["home"], "HAILO10H")
    simulator.set(busy=False)
    with pytest.raises(DeviceError, match=r"it is for another chip"):
        both(copied)


@pytest.mark.parametrize(
    ("name", "table", "words"),
    [
        (TOKEN_TABLE, np.zeros((521, 64), np.float32), r"expected shape \(521, 128\)"),
        (TOKEN_TABLE, np.zeros((521, 128), np.int32), "floating-point numbers, found int32"),
        (TOKEN_TABLE, np.array([[None] * 128] * 521), "expected a table of numbers"),
        (PLACE_TABLE, np.zeros((40, 64), np.float32), "expected rows of 128"),
        (PLACE_TABLE, b"PK\x03\x04", "expected a table of numbers"),
        (PLACE_TABLE, np.zeros((40, 128), np.float32).tobytes(), "expected a table of numbers"),
    ],
)
def test_tables_that_do_not_fit_are_refused_by_their_headers(
    copied: Bundle, name: str, table: NDArray[Any] | bytes, words: str
) -> None:
    if isinstance(table, bytes):
        (copied.folder / name).write_bytes(table)
    else:
        np.save(copied.folder / name, table)
    with pytest.raises(ModelError, match=words) as caught:
        DecoderFiles(copied)
    assert "\n" not in str(caught.value)


def test_a_table_cut_short_is_refused(copied: Bundle) -> None:
    content = (copied.folder / TOKEN_TABLE).read_bytes()
    (copied.folder / TOKEN_TABLE).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="expected a table of numbers"):
        DecoderFiles(copied)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Leaves no garbage of threads to later tests."""
    yield
    gc.collect()


@pytest.mark.usefixtures("quiet")
def test_a_configuration_alone_puts_the_whole_way_on_the_chip(
    simulator: Simulator, npu_bundle: Bundle
) -> None:
    simulator.plug()
    base = Settings()
    base = replace(base, model=replace(base.model, bundle=str(npu_bundle.folder)))
    window = Window("", 1, True, (np.arange(16000) % 700 * 40).astype(np.int16), 0.0, 1.0, 1.0)
    texts = []
    for backend in ("cpu", "hailo"):
        settings = replace(base, decoder=replace(base.decoder, backend=backend))
        with open_transcriber(settings) as transcriber:
            if isinstance(transcriber.decoder, Decoder):
                transcriber.decoder.positions = npu_bundle.positions  # as a HEF has them
            before = len(simulator.inner.history)
            texts.append(transcriber.transcribe(window))
            jobs = len(simulator.inner.history) - before
    assert texts[0].tokens[:30] == texts[1].tokens[:30] and texts[0].tokens
    assert jobs == 1 + len(texts[1].tokens) + texts[1].ended
    assert texts[1].encoder == "hailo8"
    assert ("token_limit" in texts[1].flags) == (not texts[1].ended)
