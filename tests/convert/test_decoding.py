"""What a checkpoint says of its tokens is read as transformers reads it, or refused in one line."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rigs.checkout import shared
from rigs.models import SPECIALS, sized
from rigs.vocabularies import letters_of, published_ranks

from appliance.convert.decoding import Decoding, read_decoding, read_vocabulary
from appliance.errors import ModelError
from appliance.infer.tokenizer import Tokenizer

MULTILINGUAL = 51_865
TEXT = 40
"""Pieces of the small vocabularies; the special tokens are behind them."""
LANGUAGES = ("en", "de", "fr")
START, EN, DE, FR, TRANSLATE, TRANSCRIBE, NO_TIMESTAMPS = 41, 42, 43, 44, 45, 46, 50
SPECIAL = (*SPECIALS[:2], *(f"<|{code}|>" for code in LANGUAGES), *SPECIALS[3:])
VOCABULARY = {letters_of(bytes([65 + i])): i for i in range(TEXT)}
ADDED = {name: TEXT + i for i, name in enumerate(SPECIAL)}


def tokenizer_json(vocabulary: dict[str, int], added: dict[str, int]) -> dict[str, Any]:
    """A tokenizer.json by its documented format, as transformers 5 writes it."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": name, **flags, "special": True} for name, i in added.items()
        ],
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": True},
        "post_processor": None,
        "decoder": level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [["A", "B"]],
        },
    }


def write(file: Path, values: object) -> None:
    file.write_text(json.dumps(values), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A fine-tune's files as transformers 5 writes them, without its weights."""
    write(tmp_path / "tokenizer.json", tokenizer_json(VOCABULARY, ADDED))
    write(tmp_path / "config.json", {"model_type": "whisper"})
    write(tmp_path / "generation_config.json", {"is_multilingual": True})
    return tmp_path


def read(folder: Path, language: str = "", size: int = MULTILINGUAL) -> Decoding:
    return read_decoding(folder, sized(8, (1, 1), 2, size, 50, 20), language)


def refusal(folder: Path, language: str = "", size: int = MULTILINGUAL) -> str:
    """The one line with which a folder is refused."""
    with pytest.raises(ModelError) as caught:
        read(folder, language, size)
    message = str(caught.value)
    assert message.isprintable() and str(folder) in message
    return message


def test_tokenizer_json_alone_is_the_same_table(folder: Path) -> None:
    found = read(folder)
    assert found.vocabulary == VOCABULARY | ADDED
    (folder / "tokenizer.json").unlink()
    write(folder / "vocab.json", VOCABULARY)
    write(folder / "added_tokens.json", ADDED)
    assert asdict(read(folder)) == asdict(found)


@pytest.mark.parametrize("name", ["multilingual", "gpt2"])
def test_published_vocabularies_come_back_from_tokenizer_json(tmp_path: Path, name: str) -> None:
    ranks = published_ranks(shared(f"data/whisper/openai/{name}.tiktoken"))
    table = {letters_of(data): i for i, data in ranks.items() if data}
    first = len(table)
    added = {special: first + i for i, special in enumerate(SPECIAL)}
    write(tmp_path / "tokenizer.json", tokenizer_json(table, added))
    tokenizer = Tokenizer(read_vocabulary(tmp_path), first)
    assert [tokenizer.token_bytes(i) for i in range(first)] == [ranks[i] for i in range(first)]


def test_a_missing_vocabulary_says_where_it_is(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "found neither; a training saves it with its processor" in refusal(folder)


def test_without_generation_config_json_the_keys_of_config_json_count(folder: Path) -> None:
    old = {"is_multilingual": True, "suppress_tokens": [3, 9], "begin_suppress_tokens": [5, 40]}
    write(folder / "config.json", old)
    (folder / "generation_config.json").unlink()
    found = read(folder, size=60)
    assert found.suppressed == (3, 9, *range(41, 60))
    assert found.suppressed_first == (5, 40)
    write(folder / "generation_config.json", {"is_multilingual": True, "suppress_tokens": [7]})
    found = read(folder, size=60)
    assert found.suppressed == (7, *range(41, 60)) and found.suppressed_first == ()


@pytest.mark.parametrize(
    ("size", "generation", "prompt"),
    [
        (51_864, None, (START, NO_TIMESTAMPS)),
        (51_865, None, (START, EN, TRANSCRIBE, NO_TIMESTAMPS)),
        (51_866, None, (START, EN, TRANSCRIBE, NO_TIMESTAMPS)),
        (51_864, {"is_multilingual": True}, (START, EN, TRANSCRIBE, NO_TIMESTAMPS)),
        (51_865, {"is_multilingual": False}, (START, NO_TIMESTAMPS)),
        (51_864, {"forced_decoder_ids": [[1, NO_TIMESTAMPS]]}, (START, NO_TIMESTAMPS)),
    ],
)
def test_a_small_vocabulary_is_english_unless_the_checkpoint_says_more(
    folder: Path, size: int, generation: dict[str, Any] | None, prompt: tuple[int, ...]
) -> None:
    if generation is None:
        (folder / "generation_config.json").unlink()
    else:
        write(folder / "generation_config.json", generation)
    found = read(folder, size=size)
    assert found.prompt == prompt
    assert found.languages == (("en",) if len(prompt) == 2 else ("de", "en", "fr"))


@pytest.mark.parametrize(
    ("generation", "config", "language", "source"),
    [
        ({"language": "german"}, {}, "de", "generation_config.json"),
        ({"language": "German", "task": "transcribe"}, {}, "de", "generation_config.json"),
        ({"language": "de"}, {}, "de", "generation_config.json"),
        ({"language": "<|de|>"}, {}, "de", "generation_config.json"),
        ({"language": ["de"]}, {}, "de", "generation_config.json"),
        (
            {}, {"language": "de"},
            "en", "nothing in the checkpoint names one; --language for another",
        ),
    ],
)  # fmt: skip
def test_the_language_is_the_checkpoints_and_says_where_it_is_from(
    folder: Path, generation: dict[str, Any], config: dict[str, Any], language: str, source: str
) -> None:
    write(folder / "generation_config.json", {"is_multilingual": True} | generation)
    write(folder / "config.json", config)
    found = read(folder)
    assert (found.language, found.language_from) == (language, source)
    assert found.prompt == (START, ADDED[f"<|{language}|>"], TRANSCRIBE, NO_TIMESTAMPS)


@pytest.mark.parametrize("wanted", ["fr", "French", "<|fr|>", " FR "])
def test_the_users_language_goes_before(folder: Path, wanted: str) -> None:
    write(folder / "generation_config.json", {"is_multilingual": True, "language": "klingon"})
    found = read(folder, wanted)
    assert (found.language, found.language_from) == ("fr", "--language")


def test_a_language_that_the_model_does_not_know_is_refused(folder: Path) -> None:
    assert "--language: 'sw': expected one of de en fr; give --language" in refusal(folder, "sw")
    write(folder / "generation_config.json", {"is_multilingual": True, "language": "klingon"})
    assert "language: 'klingon': expected one of de en fr; give --language" in refusal(folder)
    write(folder / "generation_config.json", {"is_multilingual": True, "language": 5})
    assert "language: 5: expected one of" in refusal(folder)
    write(folder / "generation_config.json", {"is_multilingual": False})
    assert "--language: 'de': this model is English-only; leave" in refusal(folder, "de")
    assert read(folder, "english").language_from == "--language"


@pytest.mark.parametrize("key", ["suppress_tokens", "begin_suppress_tokens"])
@pytest.mark.parametrize("value", [[99_999_999], ["a"], [-1], [True], [1.0], [[1]], "abc", 5, {}])
@pytest.mark.parametrize("place", ["generation_config.json", "config.json"])
def test_token_ids_that_cannot_be_are_refused(
    folder: Path, key: str, value: object, place: str
) -> None:
    (folder / "generation_config.json").unlink()
    write(folder / place, {"is_multilingual": True, key: value})
    message = refusal(folder)
    assert f"{place}: {key}: expected token ids from 0 to 51864, found" in message
    assert "correct it, or remove that key" in message


def test_end_of_text_can_always_be_written(folder: Path) -> None:
    generation = {"is_multilingual": True, "suppress_tokens": [TEXT]}
    write(folder / "generation_config.json", generation)
    assert "expected a list without end-of-text, found 40" in refusal(folder)
    write(folder / "generation_config.json", {"begin_suppress_tokens": [TEXT]})
    assert read(folder).suppressed_first == (TEXT,)
