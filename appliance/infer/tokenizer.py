"""Token ids to text and back: GPT-2's byte-level vocabulary, as Whisper uses it, in the bundle."""

from __future__ import annotations

import codecs
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

from appliance.errors import ModelError
from appliance.model import VOCABULARY_FILE, Bundle

SPLIT = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+", re.UNICODE
)
"""Pieces of a text of which no token is in two (openai/gpt-2, encoder.py; what re calls a word
besides letters and digits, as the fraction one half, is a letter here)."""


class Tokenizer:
    """The bytes of each token. Immutable; any thread may use it."""

    def __init__(self, vocabulary: Mapping[str, int], first_special: int) -> None:
        """From tokens as they are written in a Hugging Face vocab.json; ids from
        `first_special` on are not text. Raises ModelError when an id below is missing twice or
        written in letters that stand for no byte."""
        written = {number: token for token, number in vocabulary.items() if number < first_special}
        if missing := sorted(set(range(first_special)) - written.keys()):
            raise ModelError(
                f"vocabulary: expected a token for every id below {first_special}, found none for "
                f"{missing[0]} ({len(missing)} in all); add the model again, from files that are "
                "whole"
            )
        self._bytes = tuple(_to_bytes(written[number], number) for number in range(first_special))
        self._ranks = {data: number for number, data in enumerate(self._bytes)}
        self.specials = {
            token: number for token, number in vocabulary.items() if number >= first_special
        }
        """Tokens that are not text, as they are written."""
        self.cased = any(re.search(b"[A-Z]", data) for data in self._bytes if len(data) > 1)
        """True when the model's texts have capitals and punctuation."""

    @classmethod
    def open(cls, bundle: Bundle) -> Tokenizer:
        """The bundle's tokenizer. Raises ModelError when its vocabulary cannot be read."""
        file = bundle.folder / VOCABULARY_FILE
        vocabulary = _read(file)
        try:
            return cls(vocabulary, bundle.tokens.first_special)
        except ModelError as error:
            raise ModelError(f"{file}: {error}") from None

    def token_bytes(self, token: int) -> bytes:
        """What a token writes; nothing for a special one."""
        return self._bytes[token] if token < len(self._bytes) else b""

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a text as a model is taught to write it: byte-pair encoding, where of two
        neighbours those are joined first whose token has the lowest id, as in openai/tiktoken.
        Texts of Whisper begin with a space.

        Raises ModelError when the vocabulary lacks a byte of it.
        """
        return tuple(
            token
            for piece in SPLIT.findall(unicodedata.normalize("NFC", text))
            for token in self._join(piece.encode("utf-8", "replace"))
        )

    def _join(self, piece: bytes) -> list[int]:
        """Token ids of a piece."""
        parts = [piece[at : at + 1] for at in range(len(piece))]
        while len(parts) > 1:
            pairs = [first + second for first, second in pairwise(parts)]
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            at = pairs.index(best)
            parts[at : at + 2] = [best]
        if missing := [part for part in parts if part not in self._ranks]:
            raise ModelError(
                f"vocabulary: expected a token for every byte, found none for {missing[0]!r}"
            )
        return [self._ranks[part] for part in parts]

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of token ids, special ones left out, spaces at the ends kept.

        Bytes that are not UTF-8 become U+FFFD; a character cut off at the very end (by the token
        limit) is dropped; control characters become spaces, so that a text is always one line.
        """
        data = b"".join(self.token_bytes(token) for token in tokens)
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=False)
        return "".join(" " if unicodedata.category(letter) == "Cc" else letter for letter in text)


def _read(file: Path) -> dict[str, int]:
    try:
        vocabulary = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{file}: expected a vocabulary in JSON, found: {error}; "
            "add the model again, from files that are whole"
        ) from error
    if not isinstance(vocabulary, dict) or not all(isinstance(n, int) for n in vocabulary.values()):
        raise ModelError(
            f"{file}: expected a table of tokens and ids, found something else; "
            "add the model again, from files that are whole"
        )
    return vocabulary


def _to_bytes(token: str, number: int) -> bytes:
    """The bytes that a token's letters stand for."""
    try:
        return bytes(_byte_of_letter()[letter] for letter in token)
    except KeyError as error:
        raise ModelError(
            f"vocabulary: expected token {number} in byte letters, found {token!r}; "
            "add the model again, from files that are whole"
        ) from error


@cache
def _byte_of_letter() -> dict[str, int]:
    """GPT-2's letter for each byte, inverted (openai/gpt-2, encoder.py, bytes_to_unicode).

    Printable Latin-1 stands for itself; the other 68 bytes are the letters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}
