"""The graphs compute what transformers' Whisper computes: against golden values, and live."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.checkout import GOLDEN
from rigs.models import ODD, fingerprint, random_mel, random_weights, write_checkpoint
from rigs.parity_cases import CASES, INPUTS, STEPS, Case, distance, log_sum
from rigs.steps import logits_of, start, step

from appliance.convert.build import Recipe, build_bundle
from appliance.convert.tensors import Weights
from appliance.infer.decoder import Decoder
from appliance.infer.encoder import CpuEncoder
from appliance.model.bundle import Bundle, load_bundle

TOLERANCE = 1e-4
THREADS = 2
EVERY = 1 if os.environ.get("ROOMSCRIBE_FUZZ") else 4
"""Distance of the inputs of a large shape that are compared; all take a minute and a half."""
INT8_INPUTS = 4


@dataclass(frozen=True, slots=True)
class Built:
    """One case's bundle, open."""

    case: Case
    weights: Weights
    bundle: Bundle
    encoder: CpuEncoder
    decoder: Decoder
    checkpoint: Path

    def positions(self, kind: str) -> int:
        """Those of the golden values: bare or padded."""
        return self.case.padded if kind == "padded" else self.case.positions

    def mel(self, index: int) -> NDArray[np.float32]:
        """The case's input of that number."""
        return random_mel(self.case.config, 2 * self.case.positions, 1000 * self.case.seed + index)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Built]:
    """The bundle of one case, through the real build; taken away afterwards, for it is large."""
    case: Case = request.param
    folder = tmp_path_factory.mktemp(case.name)
    weights = random_weights(case.config, case.seed)
    checkpoint = write_checkpoint(folder / "checkpoint", case.config, weights)
    build_bundle(checkpoint, folder / "bundle", Recipe(case.name, case.window_s))
    bundle = load_bundle(folder / "bundle")
    decoder = Decoder(bundle, THREADS)
    yield Built(case, weights, bundle, CpuEncoder(bundle, THREADS), decoder, checkpoint)
    shutil.rmtree(folder)


def write(
    decoder: Decoder, states: NDArray[np.float32], prompt: tuple[int, ...]
) -> tuple[NDArray[np.float32], list[int]]:
    """Logits (len(prompt) - 1 + STEPS, vocabulary) and STEPS greedy tokens, none suppressed."""
    start(decoder, states)
    rows = [step(decoder, prompt)]
    tokens = [int(rows[-1][-1].argmax())]
    while len(tokens) < STEPS:
        rows.append(step(decoder, tokens[-1:]))
        tokens.append(int(rows[-1][-1].argmax()))
    return np.vstack(rows), tokens


def test_the_model_of_the_golden_values_is_built_again(built: Built) -> None:
    provenance = (GOLDEN / f"parity_{built.case.name}.txt").read_text()
    assert f"weights sha256: {fingerprint(built.weights)}\n" in provenance
    assert built.bundle.prompt == tuple(built.case.prompt)


def test_golden_logits_are_of_a_sensible_size_and_the_tokens_differ(built: Built) -> None:
    golden = built.case.golden()
    assert 1.0 < golden["bare_logits"].std() < 10.0
    assert len(np.unique(golden["bare_tokens"])) > 30
    assert len(np.unique(golden["padded_tokens"])) > 30
    assert not np.array_equal(golden["bare_tokens"], golden["padded_tokens"])


def test_states_logits_and_tokens_equal_the_golden_ones(
    built: Built, record_property: Callable[[str, object], None]
) -> None:
    golden, case = built.case.golden(), built.case
    worst = {"states": 0.0, "bare": 0.0, "padded": 0.0}
    for index in range(0, INPUTS, 1 if case.config == ODD else EVERY):
        states = built.encoder.encode(built.mel(index))
        worst["states"] = max(
            worst["states"], distance(case.kept_states(states), golden["states"][index])
        )
        for kind in ("bare", "padded"):
            built.decoder.positions = built.positions(kind)
            logits, tokens = write(built.decoder, states, built.bundle.prompt)
            assert tokens == golden[f"{kind}_tokens"][index].tolist(), f"{kind}, input {index}"
            worst[kind] = max(
                worst[kind],
                distance(logits[:, case.kept_ids], golden[f"{kind}_logits"][index]),
                distance(logits.max(axis=-1), golden[f"{kind}_peak"][index]),
                distance(log_sum(logits), golden[f"{kind}_log_sum"][index]),
            )
    print(f"{case.name}: largest differences {worst}")
    record_property(f"parity_{case.name}", worst)
    assert max(worst.values()) < TOLERANCE, worst


def test_int8_keeps_near_the_golden_logits_and_tiny_under_80_mb(
    built: Built, tmp_path: Path
) -> None:
    case, golden = built.case, built.case.golden()
    recipe = Recipe(case.name, case.window_s, quantize="int8")
    build_bundle(built.checkpoint, tmp_path / "int8", recipe)
    bundle = load_bundle(tmp_path / "int8")
    size = sum(file.stat().st_size for file in bundle.folder.iterdir())
    assert case.name != "tiny" or size < 80e6
    encoder, decoder = CpuEncoder(bundle, THREADS), Decoder(bundle, THREADS)
    decoder.positions = case.padded
    off = []
    for index in range(INT8_INPUTS):
        states = encoder.encode(built.mel(index))
        expected = golden["padded_logits"][index][len(case.prompt) - 1]
        row = logits_of(decoder, states, bundle.prompt)[-1]
        off.append(float((row[case.kept_ids] - expected).std() / expected.std()))
        first = golden["padded_tokens"][index][0]
        if first not in bundle.suppressed:
            chosen = decoder.decode(states, 0.01).tokens[0]
            assert chosen == first or row[chosen] <= row[first], (chosen, first)
    shutil.rmtree(bundle.folder)
    print(f"{case.name}: {size / 1e6:.1f} MB, logits {np.mean(off):.1%} of their spread off")
    assert np.mean(off) < 0.1  # most logits have 4 bits
