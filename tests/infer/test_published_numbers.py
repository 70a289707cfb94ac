"""What others published about Whisper and needs no weights: values of the mel, ids, lists.

Beside these test_mel.py compares the filters and the mel of one recording, test_infer_tokenizer.py
the bytes of all tokens, and test_model_build.py the tokens of a German bundle.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from rigs import published
from rigs.checkout import require_model, shared
from rigs.models import random_weights, sized, write_checkpoint

from appliance.convert.build import Recipe, build_bundle
from appliance.infer.mel import log_mel
from appliance.infer.tokenizer import Tokenizer
from appliance.model.bundle import BUILT_IN, Bundle, load_bundle
from appliance.records import FULL_SCALE

MULTILINGUAL = "data/whisper/whisper_tiny_multilingual_hf"
TIMESTAMPS = 1501
"""<|0.00|> to <|30.00|> in steps of 0.02 s, the last ids of every Whisper."""


@pytest.fixture(scope="module")
def generation() -> dict[str, Any]:
    """generation_config.json of whisper-tiny."""
    read: dict[str, Any] = json.loads(shared(MULTILINGUAL, "generation_config.json").read_text())
    return read


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle with the words of whisper-tiny, as its checkpoint would give it, and a few random
    weights."""
    place = tmp_path_factory.mktemp("multilingual")
    config = sized(8, (1, 1), 2, 51865, 1500, 448)
    folder = write_checkpoint(place / "checkpoint", config, random_weights(config, 4))
    for name in ("vocab.json", "added_tokens.json", "generation_config.json"):
        (folder / name).write_bytes(shared(MULTILINGUAL, name).read_bytes())
    build_bundle(folder, place / "tiny", Recipe("tiny", 10.0))
    return load_bundle(place / "tiny")


@pytest.fixture(scope="module")
def english() -> Bundle:
    """The built-in tiny.en."""
    require_model()
    return load_bundle(BUILT_IN)


def waveform(name: str) -> Any:
    """A published recording, (n,) float32 at 16 kHz."""
    return np.load(shared(f"data/whisper/ctranslate2/{name}.npy"))


def test_the_published_recordings_lose_nothing_in_the_windows_samples() -> None:
    for name in published.RECORDINGS:
        samples = (waveform(name) * FULL_SCALE).astype(np.int16)
        assert np.array_equal(samples.astype(np.float32) / FULL_SCALE, waveform(name))


def test_a_window_of_10_s_hears_the_published_mel_as_one_of_30_s_does() -> None:
    sound = waveform("mr_quilter")
    whole, part = log_mel(sound, 80, 3000), log_mel(sound, 80, 1000)
    assert np.abs(whole[:30, 0] - published.MEL).max() < published.MEL_ATOL
    assert np.abs(whole[:1000] - part).max() < 1e-6


def test_suppressed_tokens_are_the_published_ones_and_every_special_one(
    multilingual: Bundle, generation: dict[str, Any]
) -> None:
    text = {number for number in multilingual.suppressed if number < 50257}
    known = set(generation["suppress_tokens"])
    assert len(text) == 82 and text == {number for number in known if number < 50257}
    assert known <= set(multilingual.suppressed)
    assert set(multilingual.suppressed) - known == set(range(50259, 51865)) - known
    assert list(multilingual.suppressed_first) == generation["begin_suppress_tokens"]


def test_the_prompt_is_the_published_one(multilingual: Bundle, generation: dict[str, Any]) -> None:
    added = json.loads(shared(MULTILINGUAL, "added_tokens.json").read_text())
    prompt = [added.get(name) for name in published.TINY_PROMPT]
    assert list(multilingual.prompt) == prompt
    assert tuple(prompt[:3]) == published.TINY_PROMPT_IDS
    assert prompt[0] == generation["decoder_start_token_id"] == multilingual.tokens.start
    assert prompt[1] == generation["lang_to_id"]["<|en|>"]
    assert [2, prompt[2]] in generation["forced_decoder_ids"]
    assert prompt[3] == generation["no_timestamps_token_id"] == multilingual.tokens.no_timestamps
    assert multilingual.tokens.end_of_text == generation["eos_token_id"]


def test_every_published_language_can_be_prompted(
    multilingual: Bundle, generation: dict[str, Any]
) -> None:
    assert {f"<|{name}|>" for name in multilingual.languages} == set(generation["lang_to_id"])


@pytest.mark.parametrize("model", ["multilingual", "english"])
def test_timestamps_are_the_last_ids(model: str, request: pytest.FixtureRequest) -> None:
    bundle: Bundle = request.getfixturevalue(model)
    assert bundle.tokens.timestamp_begin == bundle.vocabulary_size - TIMESTAMPS
    assert bundle.tokens.timestamp_begin == bundle.tokens.no_timestamps + 1


def test_the_english_only_prompt_is_how_the_published_ids_begin(english: Bundle) -> None:
    assert english.prompt == published.TINY_EN_IDS[:2] == (50257, 50362)
    assert english.tokens.end_of_text == english.tokens.first_special == 50256
    assert not set(published.TINY_EN_IDS[2:]) & set(english.suppressed)


def test_the_published_ids_are_the_published_text(english: Bundle) -> None:
    whole = published.TINY_EN_TEXTS["mr_quilter"]
    text = Tokenizer.open(english).detokenize(published.TINY_EN_IDS)
    assert text == whole[: len(text)] and whole[len(text) :] == " welcome his gospel."


@pytest.mark.parametrize(
    ("model", "texts"),
    [("multilingual", published.TINY_TEXTS), ("english", published.TINY_EN_TEXTS)],
)
def test_published_texts_can_be_written_with_the_words_that_are_not_suppressed(
    model: str, texts: dict[str, str], request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(model)
    tokenizer = Tokenizer.open(bundle)
    allowed = {
        tokenizer.token_bytes(number): number
        for number in set(range(bundle.tokens.first_special)) - set(bundle.suppressed)
    }
    for text in texts.values():
        tokens, rest = [], text.encode()
        while rest:
            length = max(n for n in range(1, len(rest) + 1) if rest[:n] in allowed)
            tokens.append(allowed[rest[:length]])
            rest = rest[length:]
        assert tokenizer.detokenize(tokens) == text
