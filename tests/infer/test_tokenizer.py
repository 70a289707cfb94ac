"""Token ids become text, byte by byte."""

import json
from pathlib import Path

import pytest
from rigs.checkout import shared
from rigs.vocabularies import letters_of, published_ranks

from appliance.errors import ModelError
from appliance.infer.tokenizer import Tokenizer
from appliance.model.bundle import Bundle


@pytest.fixture
def plain() -> Tokenizer:
    """Token n is byte n; 256 is end-of-text."""
    vocabulary = {letters_of(bytes([byte])): byte for byte in range(256)}
    return Tokenizer({**vocabulary, "<|endoftext|>": 256}, first_special=256)


@pytest.fixture
def published() -> Path:
    """The published vocabularies, which are not part of the repository."""
    return shared("data/whisper")


@pytest.mark.parametrize("text", [" Hello, world", "naïve café", "日本語", "👩‍🚀", "می‌خواهم"])
def test_every_language_comes_back_from_its_bytes(plain: Tokenizer, text: str) -> None:
    assert plain.detokenize(text.encode()) == text


@pytest.mark.parametrize(
    "text", [" Hello, world", " naïve  café", "日本語", "\tit's 1½ _", "", " "]
)
def test_a_text_comes_back_from_its_tokens(plain: Tokenizer, text: str) -> None:
    assert plain.tokenize(text) == tuple(text.encode())


def test_the_lowest_id_is_joined_first_and_no_token_reaches_over_a_word() -> None:
    joined = ["ab", "bc", "abc", "c a"]
    vocabulary = {letters_of(bytes([byte])): byte for byte in range(256)}
    vocabulary |= {letters_of(text.encode()): 256 + at for at, text in enumerate(joined)}
    tokenizer = Tokenizer(vocabulary, first_special=260)
    assert tokenizer.tokenize("abc") == (258,)
    assert tokenizer.tokenize("bcabc") == (257, 258)
    assert tokenizer.tokenize("c a") == (*b"c a",)


def test_of_two_equal_pairs_the_first_is_joined_first() -> None:
    vocabulary = {letters_of(bytes([byte])): byte for byte in range(256)}
    tokenizer = Tokenizer({**vocabulary, "aa": 256, "aaaa": 257}, first_special=258)
    assert tokenizer.tokenize("aaa") == (256, ord("a"))
    assert tokenizer.tokenize("a" * 11) == (257, 257, 256, ord("a"))


def test_a_byte_without_a_token_is_refused() -> None:
    with pytest.raises(ModelError, match="found none for b'b'"):
        Tokenizer({"a": 0}, first_special=1).tokenize("ab")


def test_special_tokens_are_left_out(plain: Tokenizer) -> None:
    assert plain.detokenize([256, 72, 256, 105, 999]) == "Hi"


def test_bytes_that_are_no_utf_8_are_marked(plain: Tokenizer) -> None:
    assert plain.detokenize([72, 0xFF, 105]) == "H\ufffdi"


def test_a_text_is_one_line_without_control_characters(plain: Tokenizer) -> None:
    assert plain.detokenize(b"a\nb\x1b[31m\0c\x7f") == "a b [31m c "


def test_the_tokenizer_of_a_bundle_knows_its_tokens(bundle: Bundle) -> None:
    tokenizer = Tokenizer.open(bundle)
    assert tokenizer.detokenize([0, 9, 1]) == "a b"
    assert tokenizer.detokenize(bundle.prompt) == ""


def test_all_tokens_of_whispers_vocabulary_have_the_published_bytes(published: Path) -> None:
    vocabulary = json.loads((published / "whisper_tiny_multilingual_hf" / "vocab.json").read_text())
    tokenizer = Tokenizer(vocabulary, first_special=50257)
    ranks = published_ranks(published / "openai" / "multilingual.tiktoken")
    assert len(ranks) == 50257
    wrong = [number for number, data in ranks.items() if tokenizer.token_bytes(number) != data]
    assert wrong == []


def test_the_published_english_tokens_are_the_published_sentence(published: Path) -> None:
    ranks = published_ranks(published / "openai" / "gpt2.tiktoken")
    vocabulary = {letters_of(data): number for number, data in ranks.items()}
    values = json.loads((published / "expected_reference_values.json").read_text())
    tokens = values["whisper_tiny_en_greedy_ids"]["values"]
    text = Tokenizer(vocabulary, first_special=50256).detokenize(tokens)
    whole = values["whisper_tiny_en_transcripts"]["mr_quilter"]["text"]
    assert len(text) > 40 and whole.startswith(text)


def test_the_published_english_sentence_has_the_published_tokens(published: Path) -> None:
    ranks = published_ranks(published / "openai" / "gpt2.tiktoken")
    vocabulary = {letters_of(data): number for number, data in ranks.items()}
    values = json.loads((published / "expected_reference_values.json").read_text())
    tokens = values["whisper_tiny_en_greedy_ids"]["values"][2:]
    tokenizer = Tokenizer(vocabulary, first_special=50256)
    whole = values["whisper_tiny_en_transcripts"]["mr_quilter"]["text"]
    assert list(tokenizer.tokenize(whole)[: len(tokens)]) == tokens
