"""Beam search finds what is at least as likely as the greedy text, by the decoder's own numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from rigs.checkout import TINY_EN

from appliance.infer.beam import BeamSearch
from appliance.infer.decoder import Decoder, preset_guards
from appliance.model.bundle import Bundle, load_bundle
from appliance.records import States

DURATION_S = 2.0


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle(str(TINY_EN))


@pytest.fixture(scope="module")
def decoder(bundle: Bundle) -> Decoder:
    return Decoder(bundle, preset_guards(bundle, "bundle"), 1)


def murmur(bundle: Bundle, seed: int) -> States:
    """States of which the decoder is not sure."""
    shape = (bundle.positions, bundle.d_model)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_beam_of_one_is_at_least_as_likely_as_the_greedy_text(
    bundle: Bundle, decoder: Decoder
) -> None:
    compared = 0
    for seed in range(8):
        greedy = decoder.decode(murmur(bundle, seed), DURATION_S)
        found = BeamSearch(bundle, decoder, 1).best(decoder.restart(), DURATION_S)
        assert found is not None
        if greedy.tokens and greedy.ended:
            assert greedy.tokens[: len(found[0])] == found[0], "it may end where that is likelier"
            assert sum(found[1]) >= sum(greedy.logprobs) - 1e-4
            compared += 1
    assert compared


def test_a_wider_beam_finds_likelier_texts(bundle: Bundle, decoder: Decoder) -> None:
    gained = []
    for seed in range(8):
        states = murmur(bundle, seed)
        found = []
        for width in (1, 4, 16):
            cache = decoder.start(states)
            one = BeamSearch(bundle, decoder, width).best(cache, DURATION_S)
            assert one is not None
            found.append(sum(one[1]))
        gained += [later - earlier for earlier, later in itertools.pairwise(found)]
    assert np.mean(gained) > 0.1
    assert np.mean(np.array(gained) >= -1e-4) > 0.8, "a wider beam is rarely worse"


def test_its_numbers_are_those_of_the_text_scored_alone(bundle: Bundle, decoder: Decoder) -> None:
    for seed in range(4):
        cache = decoder.start(murmur(bundle, seed))
        found = BeamSearch(bundle, decoder, 4).best(cache, DURATION_S)
        assert found is not None
        tokens, logprobs = found
        assert len(logprobs) == len(tokens) + 1
        assert np.allclose(decoder.logprobs(tokens, 0), logprobs, atol=1e-4)
        again = BeamSearch(bundle, decoder, 4).best(decoder.restart(), DURATION_S)
        assert again == found


def test_what_may_not_be_written_is_not_and_the_limit_holds(
    bundle: Bundle, decoder: Decoder
) -> None:
    barred = {*bundle.suppressed, bundle.tokens.end_of_text}
    for seed in range(8):
        cache = decoder.start(murmur(bundle, seed))
        found = BeamSearch(bundle, decoder, 4).best(cache, DURATION_S)
        assert found is not None
        assert not barred & set(found[0])
        assert found[0][0] not in bundle.suppressed_first
        assert 0 < len(found[0]) < decoder.token_limit(DURATION_S)
