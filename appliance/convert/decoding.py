"""Read a checkpoint's tokens: vocabulary, language, prompt and suppressed tokens.

The vocabulary is vocab.json with added_tokens.json, or tokenizer.json alone, as transformers writes
it from version 5 on, or CTranslate2's list of all tokens, vocabulary.json or vocabulary.txt. How to
decode stands in generation_config.json; checkpoints from before there was one have the same keys in
config.json, and CTranslate2's have keys of their own there. What all leave open is decided as
transformers decides.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.config import LANGUAGES
from appliance.convert.shapes import (
    ADDED_FILE,
    CONFIG_FILE,
    GENERATION_FILE,
    TOKENIZER_FILE,
    VOCAB_FILE,
    WhisperConfig,
    find_snapshot,
)
from appliance.convert.tensors import shown
from appliance.errors import ModelError
from appliance.model import Tokens, read_bounded, read_json

END, START, NO_TIMESTAMPS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
TRANSCRIBE = "<|transcribe|>"
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")
FIRST_TIMESTAMP = "<|0.00|>"
TOKEN_LISTS = ("vocabulary.json", "vocabulary.txt")
"""CTranslate2's: a JSON list, or a line for each token."""
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
ENGLISH = "en"
LEAST_MULTILINGUAL = 51_865
"""Tokens; a Whisper with fewer is English-only (openai/whisper, model.py, is_multilingual)."""
SUPPRESSED_FIRST = (220, 50_256)
"""A space, and the end of English-only texts: transformers' WhisperConfig by default."""

NAMES = {name: code for code, name in LANGUAGES.items()}
"""Whisper's languages by their English names."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """The prompt of a model, and the tokens that it may write."""

    vocabulary: dict[str, int]
    """Every token's id, special ones included."""
    tokens: Tokens
    prompt: tuple[int, ...]
    languages: tuple[str, ...]
    """Codes of those that it knows."""
    language: str
    """The prompt's, one of them."""
    language_from: str
    """What said so, for people."""
    suppressed: tuple[int, ...]
    """Ascending; with every token that is not text, but for end-of-text."""
    suppressed_first: tuple[int, ...]
    alignment: tuple[int, ...]
    """Bundle's."""


def read_decoding(folder: Path, config: WhisperConfig, language: str = "") -> Decoding:
    """What the files in `folder` say; `language` (code or English name) goes before it.

    Raises ModelError for what cannot be, and for a language that the model does not know.
    """
    folder = find_snapshot(folder)
    vocabulary = read_vocabulary(folder)
    marked = [name for name in vocabulary if name.startswith("<|")]
    special = {name: vocabulary[name] for name in marked if re.fullmatch(r"<\|.*\|>", name)}
    rules = _Rules(folder, config.vocab_size)
    multilingual = rules.multilingual()
    known = {match[1] for name in special if (match := LANGUAGE.fullmatch(name))}
    languages = tuple(sorted(known)) if multilingual and known else (ENGLISH,)
    chosen, source = rules.language(language, languages)
    prompt = [START, f"<|{chosen}|>", TRANSCRIBE] if multilingual else [START]
    tokens = _find_tokens(folder, vocabulary, special, [*prompt, NO_TIMESTAMPS], config.vocab_size)
    suppressed = set(rules.ids("suppress_tokens", "suppress_ids"))
    if tokens.end_of_text in suppressed:
        raise rules.trouble("suppress_tokens", "a list without end-of-text", tokens.end_of_text)
    not_text = set(range(tokens.first_special, config.vocab_size)) - {tokens.end_of_text}
    return Decoding(
        vocabulary=vocabulary,
        tokens=tokens,
        prompt=tuple(special[name] for name in (*prompt, NO_TIMESTAMPS)),
        languages=languages,
        language=chosen,
        language_from=source,
        suppressed=tuple(sorted(not_text | suppressed)),
        suppressed_first=tuple(
            sorted(set(rules.ids("begin_suppress_tokens", "suppress_ids_begin")))
        ),
        alignment=rules.alignment(config.decoder_layers, config.decoder_attention_heads),
    )


def read_vocabulary(folder: Path) -> dict[str, int]:
    """Every token's id, special ones included. Raises ModelError."""
    folder = find_snapshot(folder)
    file, added = folder / VOCAB_FILE, folder / ADDED_FILE
    if file.exists():
        vocabulary = read_json(file) | (read_json(added) if added.exists() else {})
    elif (folder / TOKENIZER_FILE).exists():
        file = folder / TOKENIZER_FILE
        vocabulary = _read_tokenizer(file)
    elif lists := [folder / name for name in TOKEN_LISTS if (folder / name).exists()]:
        file = lists[0]
        vocabulary = _read_token_list(file)
    else:
        raise ModelError(
            f"{folder}: expected {VOCAB_FILE} or {TOKENIZER_FILE}, found neither; "
            "a training saves it with its processor, processor.save_pretrained(FOLDER); it is that "
            f"of the model which was trained further, so take {TOKENIZER_FILE} from there"
        )
    if not vocabulary or not all(type(i) is int and i >= 0 for i in vocabulary.values()):
        raise ModelError(f"{file}: expected a table of tokens and ids; get the file again")
    return vocabulary


def _read_tokenizer(file: Path) -> dict[Any, Any]:
    """The same out of a tokenizer.json (huggingface/tokenizers), where added tokens lie apart.

    Raises ModelError for one that is not of Whisper's kind, a byte-level BPE.
    """
    values = read_json(file)
    kinds = [values[key].get("type") if isinstance(values.get(key), dict) else None
             for key in ("model", "decoder")]  # fmt: skip
    if kinds != ["BPE", "ByteLevel"]:
        raise ModelError(
            f"{file}: expected a byte-level BPE tokenizer, as every Whisper has, found "
            f"{shown(kinds)}; get the file again"
        )
    try:
        table: dict[Any, Any] = dict(values["model"]["vocab"].items())
        table |= {entry["content"]: entry["id"] for entry in values.get("added_tokens") or []}
    except (TypeError, KeyError, AttributeError) as error:
        raise ModelError(
            f"{file}: expected model.vocab and added_tokens with content and id; get the file again"
        ) from error
    return table


def _read_token_list(file: Path) -> dict[str, int]:
    """The same out of a list of all tokens. Raises ModelError."""
    content = read_bounded(file)
    try:
        tokens = (
            json.loads(content)
            if file.suffix == ".json"
            else content.decode().removesuffix("\n").split("\n")
        )
        vocabulary = {token: number for number, token in enumerate(tokens)}
    except (ValueError, TypeError, RecursionError):
        vocabulary = {}
    if not vocabulary or "" in vocabulary or len(vocabulary) < len(tokens):
        raise ModelError(f"{file}: expected a list of all tokens, each once; get the file again")
    return vocabulary


class _Rules:
    """generation_config.json, or config.json where there is none."""

    def __init__(self, folder: Path, size: int) -> None:
        own, self._size = folder / GENERATION_FILE, size
        self._file = own if own.exists() else folder / CONFIG_FILE
        self._values = read_json(self._file)
        if not own.exists():
            usual = SUPPRESSED_FIRST if size > max(SUPPRESSED_FIRST) else ()
            self._values = {"begin_suppress_tokens": [*usual]} | self._values

    def trouble(self, key: str, expected: str, found: object) -> ModelError:
        """The error to raise for a wrong value."""
        return ModelError(
            f"{self._file}: {key}: expected {expected}, found {shown(repr(found))}; correct it, or "
            "remove that key"
        )

    def ids(self, key: str, other: str) -> list[int]:
        """A list of token ids, by Hugging Face's key or CTranslate2's; empty where it is missing.

        Raises ModelError.
        """
        key = other if other in self._values else key
        if (values := self._values.get(key)) is None:
            return []
        expected = f"token ids from 0 to {self._size - 1}"
        if not isinstance(values, list):
            raise self.trouble(key, expected, values)
        for value in values:
            if type(value) is not int or not 0 <= value < self._size:
                raise self.trouble(key, expected, value)
        return values

    def alignment(self, layers: int, heads: int) -> tuple[int, ...]:
        """Heads that follow the sound, as layer x heads + head; if none is named that the model
        has, those of the upper half of the layers (openai/whisper, model.py). Raises ModelError."""
        pairs = self._values.get("alignment_heads") or []
        try:
            found = {
                layer * heads + head
                for layer, head in pairs
                if 0 <= layer < layers and 0 <= head < heads
            }
        except (TypeError, ValueError):
            raise self.trouble("alignment_heads", "pairs of layer and head", pairs) from None
        return tuple(sorted(found)) or tuple(range(layers // 2 * heads, layers * heads))

    def multilingual(self) -> bool:
        """Whether the prompt names language and task."""
        multilingual = self._values.get("is_multilingual")
        return multilingual if isinstance(multilingual, bool) else self._size >= LEAST_MULTILINGUAL

    def language(self, wanted: str, known: tuple[str, ...]) -> tuple[str, str]:
        """One of the `known` languages, and who named it. Raises ModelError."""
        if wanted:
            if (code := _code(wanted)) not in known:
                raise self._unknown(f"--language: {shown(repr(wanted))}", known)
            return code, "--language"
        if known == (ENGLISH,):
            return ENGLISH, "the only one it knows"
        named = self._values.get("language")
        named = named[0] if isinstance(named, list) and len(named) == 1 else named
        if named is not None:
            if not isinstance(named, str) or (code := _code(named)) not in known:
                raise self._unknown(f"language: {shown(repr(named))}", known)
            return code, self._file.name
        if ENGLISH in known:
            return ENGLISH, "nothing in the checkpoint names one; --language for another"
        raise self._unknown("it names no language", known)

    def _unknown(self, found: str, known: tuple[str, ...]) -> ModelError:
        if known == (ENGLISH,):
            return ModelError(f"{self._file.parent}: {found}: this model is English-only; leave "
                              "--language out, or take a multilingual one")  # fmt: skip
        return ModelError(
            f"{self._file.parent}: {found}: expected one of {' '.join(known)}; give --language"
        )


def _code(language: str) -> str:
    plain = language.strip().strip("<|>").lower()
    return NAMES.get(plain, plain)


def _find_tokens(
    folder: Path, vocabulary: dict[str, int], special: dict[str, int], prompt: list[str], size: int
) -> Tokens:
    """The tokens that are not text, of a vocabulary of `size`. Raises ModelError."""
    if missing := [name for name in (*prompt, END) if name not in special]:
        found = ", ".join(map(shown, sorted(special)[:9])) or "no special token"
        raise ModelError(
            f"{folder}: expected the tokens {', '.join(missing)} in {VOCAB_FILE}, {ADDED_FILE} or "
            f"{TOKENIZER_FILE}, found {found}"
        )
    first_special = min(special.values())
    late = [name for name, i in vocabulary.items() if i >= first_special and name not in special]
    if late:
        raise ModelError(
            f"{folder}: expected every special token behind the text, found {shown(repr(late[0]))} "
            f"after token {first_special}"
        )
    if (last := max(vocabulary.values())) >= size:
        raise ModelError(f"{folder}: expected token ids below vocab_size {size}, found {last}")
    timestamps = special.get(FIRST_TIMESTAMP, special[NO_TIMESTAMPS] + 1)
    return Tokens(
        start=special[START],
        end_of_text=special[END],
        no_speech=next((special[name] for name in NO_SPEECH if name in special), None),
        no_timestamps=special[NO_TIMESTAMPS],
        first_special=first_special,
        timestamp_begin=timestamps if timestamps < size else None,
    )
