"""Silence behind a window is exact: against a plain decoder with every position really there."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.models import ODD, SMALL_SHAPE, random_weights, sized, write_checkpoint
from rigs.plain_decoder import PlainDecoder, pad
from rigs.steps import logits_of, start, step

from appliance.convert.build import Recipe, build_bundle
from appliance.convert.shapes import WhisperConfig
from appliance.infer.decoder import Decoder
from appliance.infer.network import Network, Step
from appliance.model.bundle import SCREENED_FILE, Bundle, load_bundle

TOLERANCE = 1e-5
"""Of the largest logit: twenty times what float32 rounds here (5e-7 against float64), a quarter of
what one position too many or too few makes out (4e-5)."""
WINDOWS = 40
STEPS = 5
LONG = sized(32, (1, 2), 2, 211, 1500, 40)
"""Trained on 30 s, as the real ones are."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The same network twice."""

    bundle: Bundle
    decoder: Decoder
    plain: PlainDecoder

    @property
    def silence(self) -> NDArray[np.float32]:
        """The states behind the window."""
        return self.bundle.read_silence()

    def states(self, seed: int) -> NDArray[np.float32]:
        """Random encoder states of a window."""
        rng = np.random.Generator(np.random.PCG64(seed))
        shape = (self.bundle.positions, self.bundle.d_model)
        return (rng.random(shape) * 4 - 2).astype(np.float32)


def build(folder: Path, config: WhisperConfig, window_s: float) -> Pair:
    weights = random_weights(config, seed=31)
    build_bundle(
        write_checkpoint(folder / "checkpoint", config, weights),
        folder / "bundle",
        Recipe("pair", window_s),
    )
    bundle = load_bundle(folder / "bundle")
    return Pair(bundle, Decoder(bundle, 1), PlainDecoder(config, weights))


def off(found: NDArray[np.float32], exact: NDArray[np.float64]) -> float:
    """The largest difference, as a part of the largest exact logit."""
    return float(np.abs(found - exact).max() / np.abs(exact).max())


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return build(tmp_path_factory.mktemp("long"), LONG, 10.0)


def test_the_likeliest_of_4_bits_have_the_logits_of_8_bits(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", LONG, random_weights(LONG, seed=31))
    build_bundle(checkpoint, tmp_path / "new", Recipe("new", 10.0, quantize="int8"))
    new = load_bundle(tmp_path / "new")
    assert new.candidates < len(new.kept)
    old = replace(new, files=tuple(file for file in new.files if file != SCREENED_FILE))
    rng, found = np.random.default_rng(7), list[Step]()
    states = rng.uniform(-2, 2, (new.positions, new.d_model)).astype(np.float32)
    for bundle in (old, new):
        network = Network(bundle, 1)
        network.begin(states, 1500)
        step = network.advance((*bundle.prompt, 60, 70), (1, 2))
        found.append(replace(step, logits=step.logits.copy()))
    exact, screened = found
    best = np.argsort(-screened.logits)[:, : new.candidates // 2]
    assert (best[:, 0] == exact.logits.argmax(axis=-1)).all()
    for row, columns in enumerate(best):
        np.testing.assert_allclose(
            screened.logits[row, columns], exact.logits[row, columns], rtol=1e-4, atol=1e-4
        )
    totals = np.logaddexp.reduce(screened.logits.astype(np.float64), axis=-1)
    np.testing.assert_allclose(screened.totals, totals, atol=1e-4)
    np.testing.assert_allclose(screened.totals, exact.totals, atol=0.1)


def test_texts_that_are_continued_together_have_the_logits_of_each_alone(long: Pair) -> None:
    network, prompt = Network(long.bundle, 1), long.bundle.prompt
    network.begin(long.states(1), 1500)
    steps = (((0, 0), (50, 51)), ((0, 1, 0, 1, 1), (60, 61, 62, 63, 64)), ((4, 1, 2), (70, 71, 72)))
    texts: list[tuple[int, ...]] = [()]
    network.advance(prompt, (0,))
    for parents, tokens in steps:
        texts = [(*texts[parent], token) for parent, token in zip(parents, tokens, strict=True)]
        together = network.advance_texts(parents, tokens).logits.copy()
    for text, logits in zip(texts, together, strict=True):
        network.rewind(0)
        alone = network.advance((*prompt, *text), (len(prompt) + len(text) - 1,)).logits[0]
        assert off(logits, alone.astype(np.float64)) < TOLERANCE


@pytest.mark.parametrize("positions", [500, 700, 1500])
def test_windows_give_the_logits_and_the_tokens_of_real_padding(long: Pair, positions: int) -> None:
    long.decoder.positions = positions
    worst, closest = 0.0, np.inf
    for seed in range(WINDOWS):
        states = long.states(seed)
        start(long.decoder, states)
        rows = [step(long.decoder, long.bundle.prompt)]
        tokens = [int(rows[-1][-1].argmax())]
        while len(tokens) < STEPS:
            rows.append(step(long.decoder, tokens[-1:]))
            tokens.append(int(rows[-1][-1].argmax()))
        whole = long.plain.logits(
            pad(states, long.silence, positions), [*long.bundle.prompt, *tokens[:-1]]
        )
        worst = max(worst, off(np.vstack(rows), whole))
        greedy = whole[len(long.bundle.prompt) - 1 :]
        assert greedy.argmax(axis=-1).tolist() == tokens, f"window {seed}"
        best = np.partition(greedy, -2, axis=-1)[:, -2:]
        closest = min(closest, float((best[:, 1] - best[:, 0]).min()))
    print(f"{positions}: largest difference {worst:.1e}, best two at least {closest:.1e} apart")
    assert worst < TOLERANCE


@pytest.mark.parametrize(
    ("config", "window_s"), [(SMALL_SHAPE, 10.0), (SMALL_SHAPE, 2.0), (ODD, 2.5)]
)
def test_every_shape_and_window_pads_exactly(
    tmp_path: Path, config: WhisperConfig, window_s: float
) -> None:
    pair = build(tmp_path, config, window_s)
    for positions in (pair.bundle.positions + times * pair.bundle.silences for times in (0, 1, 13)):
        pair.decoder.positions = positions
        tokens = [*pair.bundle.prompt, 5, 6, 7]
        found = logits_of(pair.decoder, pair.states(2), tokens)
        expected = pair.plain.logits(pad(pair.states(2), pair.silence, positions), tokens)
        assert off(found, expected) < TOLERANCE
