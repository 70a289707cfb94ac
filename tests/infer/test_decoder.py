"""The decoder writes the likeliest tokens of its logits, within its limits."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.models import never_ending
from rigs.records import differences
from rigs.steps import logits_of, start, step

from appliance.convert.build import Recipe, build_bundle
from appliance.errors import ModelError
from appliance.infer.decoder import Decoder, suppress
from appliance.infer.network import log_sum
from appliance.model.bundle import Bundle, load_bundle
from appliance.records import Logits


@pytest.fixture(scope="module")
def decoder(bundle: Bundle) -> Decoder:
    return Decoder(bundle, threads=1)


@pytest.fixture(scope="module")
def states(bundle: Bundle) -> NDArray[np.float32]:
    rng = np.random.Generator(np.random.PCG64(5))
    return (rng.random((bundle.positions, bundle.d_model)) * 4 - 2).astype(np.float32)


def test_a_token_at_a_time_gives_the_logits_of_all_at_once(
    decoder: Decoder, bundle: Bundle, states: NDArray[np.float32]
) -> None:
    tokens = [*bundle.prompt, 40, 50, 60, 70, 80]
    start(decoder, states)
    rows = [step(decoder, bundle.prompt)]
    rows += [step(decoder, (token,)) for token in tokens[len(bundle.prompt) :]]
    whole = logits_of(decoder, states, tokens)
    assert np.abs(np.vstack(rows) - whole).max() < 1e-4
    assert whole.std() > 0.5


def test_log_odds_are_the_logarithm_of_the_softmax_of_what_may_be_written(
    decoder: Decoder, bundle: Bundle, states: NDArray[np.float32]
) -> None:
    text = (*bundle.prompt, 40, 50, 60)
    logits = logits_of(decoder, states, text)[-2:].astype(np.float64)
    barred = sorted({*range(bundle.vocabulary_size)} - set(bundle.kept.ravel().tolist()))
    logits[:, barred] = -np.inf
    expected = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    start(decoder, states)
    odds = decoder.odds(text, 2)
    assert barred
    for row in (0, 1):
        every = range(bundle.vocabulary_size)
        np.testing.assert_allclose(odds.at(row, every), expected[row], atol=2e-5)


def test_a_token_cannot_see_those_after_it(
    decoder: Decoder, bundle: Bundle, states: NDArray[np.float32]
) -> None:
    one = logits_of(decoder, states, [*bundle.prompt, 40, 50])
    other = logits_of(decoder, states, [*bundle.prompt, 40, 51])
    assert np.array_equal(one[:-1], other[:-1])
    assert np.abs(one[-1] - other[-1]).max() > 0.1


def test_the_order_of_tokens_and_the_states_matter(
    decoder: Decoder, bundle: Bundle, states: NDArray[np.float32]
) -> None:
    here = logits_of(decoder, states, [*bundle.prompt, 40, 50, 60])[-1]
    swapped = logits_of(decoder, states, [*bundle.prompt, 50, 40, 60])[-1]
    deaf = logits_of(decoder, states * 0, [*bundle.prompt, 40, 50, 60])[-1]
    assert np.abs(here - swapped).max() > 0.01
    assert np.abs(here - deaf).max() > 0.01


def test_one_window_does_not_change_the_next(decoder: Decoder, states: NDArray[np.float32]) -> None:
    first = decoder.decode(states, 2.0)
    decoder.decode(states[::-1].copy(), 2.0)
    assert not differences(decoder.decode(states, 2.0), first)


def test_a_context_that_is_full_takes_no_more(
    decoder: Decoder, bundle: Bundle, states: NDArray[np.float32]
) -> None:
    start(decoder, states)
    step(decoder, [7] * bundle.max_tokens)
    with pytest.raises(ValueError, match="at most 112 tokens"):
        step(decoder, [7])


def test_the_log_probabilities_are_those_of_the_suppressed_logits(
    bundle: Bundle, states: NDArray[np.float32]
) -> None:
    decoder = Decoder(bundle, threads=1)
    decoded = decoder.decode(states, 0.5)
    rows = logits_of(decoder, states, [*bundle.prompt, *decoded.tokens])
    rows = rows[len(bundle.prompt) - 1 :]
    rows[:, list(bundle.suppressed)] = -np.inf
    chosen = [*decoded.tokens, bundle.tokens.end_of_text][: len(decoded.logprobs)]
    expected = [row[token] - log_sum(row) for row, token in zip(rows, chosen, strict=False)]
    assert np.allclose(decoded.logprobs, expected, atol=1e-4)
    assert decoded.avg_logprob == pytest.approx(sum(expected) / (len(decoded.tokens) + 1), abs=1e-4)


def test_the_no_speech_probability_is_taken_after_the_start_token(
    decoder: Decoder, bundle: Bundle, states: NDArray[np.float32]
) -> None:
    row = logits_of(decoder, states, bundle.prompt[:1])[0]
    odds = np.exp(row - row.max())
    assert bundle.tokens.no_speech is not None
    expected = odds[bundle.tokens.no_speech] / odds.sum()
    assert decoder.decode(states, 1.0).no_speech_prob == pytest.approx(expected, rel=1e-3)


def test_a_model_without_a_no_speech_token_never_says_so(
    bundle: Bundle, states: NDArray[np.float32]
) -> None:
    mute = replace(bundle, tokens=replace(bundle.tokens, no_speech=None))
    assert Decoder(mute, threads=1).decode(states, 1.0).no_speech_prob == 0.0


def test_a_decode_that_never_ends_stops_at_the_limit_that_the_sound_sets(
    decoder: Decoder, bundle: Bundle, states: NDArray[np.float32]
) -> None:
    endless = Decoder(never_ending(bundle), threads=1)
    short, long = endless.decode(states, 0.5), endless.decode(states, 30.0)
    assert not short.ended and not long.ended
    assert len(short.tokens) == len(short.logprobs) == endless.token_limit(0.5) == 24 + 8
    assert len(long.tokens) == bundle.max_tokens - len(bundle.prompt)
    assert decoder.token_limit(1.0) < decoder.token_limit(2.0)


def test_end_of_text_ends_and_is_not_among_the_tokens(
    bundle: Bundle, states: NDArray[np.float32]
) -> None:
    others = (token for token in bundle.kept.tolist() if token != bundle.tokens.end_of_text)
    ending = replace(bundle, suppressed_first=tuple(others))
    decoded = Decoder(ending, threads=1).decode(states, 5.0)
    assert decoded.ended and decoded.tokens == () and len(decoded.logprobs) == 1


def test_suppressed_tokens_are_never_written(
    checkpoint_folder: Path, tmp_path: Path, bundle: Bundle, states: NDArray[np.float32]
) -> None:
    free = Decoder(bundle, threads=1).decode(states, 5.0).tokens
    banned = frozenset(free)
    copy = Path(shutil.copytree(checkpoint_folder, tmp_path / "copy"))
    generation = {"suppress_tokens": sorted(banned), "is_multilingual": True}
    (copy / "generation_config.json").write_text(json.dumps(generation))
    build_bundle(copy, tmp_path / "strict", Recipe("strict", 10.0))
    strict = Decoder(load_bundle(tmp_path / "strict"), threads=1)
    decoded = strict.decode(states, 5.0)
    assert len(decoded.tokens) > 3 and not banned & set(decoded.tokens)
    tokens = [*bundle.prompt, *free]
    rows = logits_of(strict, states, tokens)
    whole = Decoder(bundle, threads=1)
    assert np.abs(rows - logits_of(whole, states, tokens)).max() < 1e-4


def test_tokens_suppressed_first_come_later_only(
    bundle: Bundle, states: NDArray[np.float32]
) -> None:
    first = Decoder(bundle, threads=1).decode(states, 5.0).tokens[0]
    barred = replace(bundle, suppressed_first=tuple(i for i in range(512) if i != 7))
    tokens = Decoder(barred, threads=1).decode(states, 5.0).tokens
    assert first != 7 and tokens[0] == 7 and set(tokens[1:]) - {7}


def test_nan_from_the_encoder_is_an_error_not_a_text(
    decoder: Decoder, states: NDArray[np.float32]
) -> None:
    broken = states.copy()
    broken[3, 5] = np.nan
    with pytest.raises(ModelError, match="expected finite encoder states, found NaN"):
        decoder.decode(broken, 1.0)


def test_states_of_another_shape_are_refused(decoder: Decoder) -> None:
    for shape in ((500, 64), (501, 128)):
        with pytest.raises(ModelError, match=r"expected shape \(500, 128\), found"):
            start(decoder, np.zeros(shape, np.float32))


def test_the_number_of_threads_does_not_change_the_tokens(
    bundle: Bundle, decoder: Decoder, states: NDArray[np.float32]
) -> None:
    assert Decoder(bundle, threads=0).decode(states, 1.0).tokens == (
        decoder.decode(states, 1.0).tokens
    )


def logits(*values: float) -> Logits:
    return np.array(values, np.float32)


def test_suppressed_tokens_become_impossible_and_the_input_stays() -> None:
    given = logits(1, 2, 3)
    assert suppress(given, np.array([0, 2])).tolist() == [-np.inf, 2, -np.inf]
    assert suppress(given, np.array([], np.intp)).tolist() == [1, 2, 3]
    assert given.tolist() == [1, 2, 3]


def test_the_logarithm_of_the_sum_survives_large_and_impossible_logits() -> None:
    assert log_sum(logits(1000.0, 1000.0, -np.inf)) == pytest.approx(1000.6931, abs=1e-3)
    assert log_sum(logits(0.0, 0.0, 0.0, 0.0, 0.0)) == pytest.approx(np.log(5))
