"""What others published about Whisper and needs no weights: values of the mel, ids, lists.

Beside these test_mel.py compares the filters and the mel of one recording, test_infer_tokenizer.py
the bytes of all tokens, and test_model_build.py the tokens of a German bundle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rigs.checkout import shared
from rigs.models import random_weights, sized, write_checkpoint
from rigs.vocabularies import letters_of, published_ranks

from appliance.convert.build import Recipe, build_bundle
from appliance.infer.mel import log_mel
from appliance.infer.tokenizer import Tokenizer
from appliance.model.bundle import Bundle, load_bundle
from appliance.records import FULL_SCALE

WHISPER = shared("data/whisper")
MULTILINGUAL = WHISPER / "whisper_tiny_multilingual_hf"
PUBLISHED = json.loads((WHISPER / "expected_reference_values.json").read_text())
GENERATION = json.loads((MULTILINGUAL / "generation_config.json").read_text())
TIMESTAMPS = 1501
"""<|0.00|> to <|30.00|> in steps of 0.02 s, the last ids of every Whisper."""


def folder_of(place: Path, vocabulary_size: int, files: dict[str, Any]) -> Path:
    """A checkpoint with a few random weights and the published files beside them."""
    config = sized(8, (1, 1), 2, vocabulary_size, 1500, 448)
    folder = write_checkpoint(place / "checkpoint", config, random_weights(config, 4))
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle with the words of whisper-tiny, as its checkpoint would give it."""
    place = tmp_path_factory.mktemp("multilingual")
    names = ("vocab.json", "added_tokens.json", "generation_config.json")
    files = {name: json.loads((MULTILINGUAL / name).read_text()) for name in names}
    folder = folder_of(place, 51865, files)
    build_bundle(folder, place / "tiny", Recipe("tiny", 10.0))
    return load_bundle(place / "tiny")


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle with the words of whisper-tiny.en: GPT-2's, then the special tokens."""
    place = tmp_path_factory.mktemp("english")
    ranks = published_ranks(WHISPER / "openai" / "gpt2.tiktoken")
    multilingual = json.loads((MULTILINGUAL / "added_tokens.json").read_text())
    added = {name: number - 1 for name, number in multilingual.items()} | {"<|endoftext|>": 50256}
    files = {
        "vocab.json": {letters_of(data): number for number, data in ranks.items()},
        "added_tokens.json": added,
        "generation_config.json": {"is_multilingual": False},
    }
    folder = folder_of(place, 51864, files)
    build_bundle(folder, place / "tiny.en", Recipe("tiny.en", 10.0))
    return load_bundle(place / "tiny.en")


def test_the_published_recordings_lose_nothing_in_the_windows_samples() -> None:
    for name in ("mr_quilter", "jfk"):
        waveform = np.load(WHISPER / "ctranslate2" / f"{name}.npy")
        samples = (waveform * FULL_SCALE).astype(np.int16)
        assert np.array_equal(samples.astype(np.float32) / FULL_SCALE, waveform)


def test_a_window_of_10_s_hears_the_published_mel_as_one_of_30_s_does() -> None:
    published = PUBLISHED["log_mel_1x80x3000"]
    waveform = np.load(WHISPER / "ctranslate2" / "mr_quilter.npy")
    whole, part = log_mel(waveform, 80, 3000), log_mel(waveform, 80, 1000)
    assert np.abs(part[:30, 0] - published["values"]).max() < published["atol"]
    assert np.abs(whole[:1000] - part).max() < 1e-6


def test_suppressed_tokens_are_the_published_ones_and_every_special_one(
    multilingual: Bundle,
) -> None:
    text = {number for number in multilingual.suppressed if number < 50257}
    published = set(GENERATION["suppress_tokens"])
    assert len(text) == 82 and text == {number for number in published if number < 50257}
    assert published <= set(multilingual.suppressed)
    assert set(multilingual.suppressed) - published == set(range(50259, 51865)) - published
    assert list(multilingual.suppressed_first) == GENERATION["begin_suppress_tokens"]


def test_the_prompt_is_the_published_one(multilingual: Bundle) -> None:
    added = json.loads((MULTILINGUAL / "added_tokens.json").read_text())
    published = PUBLISHED["whisper_tiny_transcripts"]["mr_quilter"]["prompt"]
    prompt = [added.get(name) for name in published]
    assert list(multilingual.prompt) == prompt
    assert prompt[:3] == PUBLISHED["whisper_tiny_head_logits"]["decoder_input_ids"]
    assert prompt[0] == GENERATION["decoder_start_token_id"] == multilingual.tokens.start
    assert prompt[1] == GENERATION["lang_to_id"]["<|en|>"]
    assert [2, prompt[2]] in GENERATION["forced_decoder_ids"]
    assert prompt[3] == GENERATION["no_timestamps_token_id"] == multilingual.tokens.no_timestamps
    assert multilingual.tokens.end_of_text == GENERATION["eos_token_id"]


def test_every_published_language_can_be_prompted(multilingual: Bundle) -> None:
    published = GENERATION["lang_to_id"]
    assert {f"<|{name}|>" for name in multilingual.languages} == set(published)


def test_timestamps_are_the_last_ids(multilingual: Bundle, english: Bundle) -> None:
    for bundle in (multilingual, english):
        assert bundle.tokens.timestamp_begin == bundle.vocabulary_size - TIMESTAMPS
        assert bundle.tokens.timestamp_begin == bundle.tokens.no_timestamps + 1


def test_the_english_only_prompt_is_how_the_published_ids_begin(english: Bundle) -> None:
    published = PUBLISHED["whisper_tiny_en_greedy_ids"]["values"]
    assert list(english.prompt) == published[:2] == [50257, 50362]
    assert english.tokens.end_of_text == english.tokens.first_special == 50256
    assert not set(published[2:]) & set(english.suppressed)


def test_the_published_ids_are_the_published_text(english: Bundle) -> None:
    published = PUBLISHED["whisper_tiny_en_greedy_ids"]["values"]
    whole = PUBLISHED["whisper_tiny_en_transcripts"]["mr_quilter"]["text"]
    text = Tokenizer.open(english).detokenize(published)
    assert text == whole[: len(text)] and whole[len(text) :] == " welcome his gospel."


def test_published_texts_can_be_written_with_the_words_that_are_not_suppressed(
    multilingual: Bundle, english: Bundle
) -> None:
    for bundle, key in (
        (multilingual, "whisper_tiny_transcripts"),
        (english, "whisper_tiny_en_transcripts"),
    ):
        tokenizer = Tokenizer.open(bundle)
        allowed = {
            tokenizer.token_bytes(number): number
            for number in set(range(bundle.tokens.first_special)) - set(bundle.suppressed)
        }
        for published in PUBLISHED[key].values():
            tokens, rest = [], published["text"].encode()
            while rest:
                length = max(n for n in range(1, len(rest) + 1) if rest[:n] in allowed)
                tokens.append(allowed[rest[:length]])
                rest = rest[length:]
            assert tokenizer.detokenize(tokens) == published["text"]
