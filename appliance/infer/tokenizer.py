"""Token ids to text and back: the bundle's byte-level vocabulary, GPT-2's as in Whisper."""

import codecs
import re
import unicodedata
from array import array
from bisect import bisect, bisect_left
from collections.abc import Iterable, Mapping
from functools import cache
from heapq import heappop, heappush
from itertools import accumulate
from typing import Self

from appliance.errors import ModelError
from appliance.model import VOCABULARY_FILE, Bundle, read_json

SPLIT = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+", re.UNICODE
)
"""Splits a text into pieces; no token crosses their borders (openai/gpt-2, encoder.py; other word
characters of `re`, such as the fraction one half, count as letters here)."""


class Tokenizer:
    """The bytes of all tokens, one behind the other: an object for each would take 8 MB. Immutable;
    any thread may use it."""

    def __init__(self, vocabulary: Mapping[str, int], first_special: int) -> None:
        """Take tokens as in a Hugging Face vocab.json; ids from `first_special` on are not text.
        Raises ModelError if a lower id is missing or its token has a letter without a byte."""
        written = {number: token for token, number in vocabulary.items() if number < first_special}
        if missing := [number for number in range(first_special) if number not in written]:
            raise ModelError(
                f"vocabulary: expected a token for every id below {first_special}, found none for "
                f"{missing[0]} ({len(missing)} in all); add the model again, from complete files"
            )
        tokens = [written[number] for number in range(first_special)]
        self._starts = array("I", accumulate(map(len, tokens), initial=0))
        try:
            self._bytes = "".join(tokens).translate(byte_of_letter()).encode("latin-1")
        except UnicodeEncodeError as error:
            number = bisect(self._starts, error.start) - 1
            raise ModelError(
                f"vocabulary: expected token {number} in byte letters, found {tokens[number]!r}; "
                "add the model again, from complete files"
            ) from None
        self._count = first_special
        every = [*map(self.token_bytes, range(first_special))]
        self._sorted = array("I", sorted(range(first_special), key=every.__getitem__))
        """Ids in the order of their bytes."""
        self.specials = {
            token: number for token, number in vocabulary.items() if number >= first_special
        }
        """Ids of tokens that are not text, by their names in the vocabulary."""
        self.cased = any(len(token) > 1 and re.search("[A-Z]", token) for token in tokens)
        """True if the model writes capitals and punctuation."""

    @classmethod
    def open(cls, bundle: Bundle) -> Self:
        """Return the bundle's tokenizer. Raises ModelError if its vocabulary cannot be read."""
        file = bundle.folder / VOCABULARY_FILE
        try:
            return cls(read_json(file), bundle.tokens.first_special)
        except (TypeError, ModelError) as error:
            raise ModelError(f"{file}: {error}") from None

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; none for a special one."""
        if token >= self._count:
            return b""
        return self._bytes[self._starts[token] : self._starts[token + 1]]

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text by byte-pair encoding, as in the model's training:
        neighbours whose joint token has the lowest id are joined first (openai/tiktoken). Whisper's
        texts begin with a space. Raises ModelError if the vocabulary lacks one of its bytes."""
        return tuple(
            token
            for piece in SPLIT.findall(unicodedata.normalize("NFC", text))
            for token in self._join(piece.encode("utf-8", "replace"))
        )

    def _join(self, piece: bytes) -> list[int]:
        """Return the tokens of a piece, in time n log n: each join offers two new pairs at most."""
        if (whole := self._find(piece)) < self._count:  # joining ends there, too
            return [whole]
        ends = [*range(1, len(piece) + 1), 0]
        """Where the part ends that begins here; 0: none does."""
        starts = [-1, *range(len(piece))]
        """Where the part begins that ends here."""
        pairs: list[tuple[int, int, int]] = []
        """Joint tokens, each with where the pair begins and ends: the lowest id goes first."""

        def offer(first: int) -> None:
            end = ends[ends[first]]
            if end and (token := self._find(piece[first:end])) < self._count:
                heappush(pairs, (token, first, end))

        for first in range(len(piece)):
            offer(first)
        while pairs:
            _, first, end = heappop(pairs)
            middle = ends[first]
            if not middle or ends[middle] != end:
                continue  # one of the two has been joined to another
            ends[first], ends[middle], starts[end] = end, 0, first
            offer(first)
            if first:
                offer(starts[first])
        parts = [piece[first:end] for first, end in enumerate(ends) if end]
        tokens = [*map(self._find, parts)]
        if self._count in tokens:
            missing = parts[tokens.index(self._count)]
            raise ModelError(
                f"vocabulary: expected a token for every byte, found none for {missing!r}"
            )
        return tokens

    def _find(self, data: bytes) -> int:
        """Return the id of the token with these bytes; the number of tokens without one."""
        place = bisect_left(self._sorted, data, key=self.token_bytes)
        token = self._sorted[place] if place < self._count else self._count
        return token if self.token_bytes(token) == data else self._count

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids without special ones, with spaces at the ends.

        Invalid UTF-8 becomes U+FFFD; a character cut off at the end (by the token limit) is
        dropped; control characters become spaces, so that a text is always one line.
        """
        data = b"".join(self.token_bytes(token) for token in tokens)
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=False)
        return "".join(" " if unicodedata.category(letter) == "Cc" else letter for letter in text)


@cache
def byte_of_letter() -> dict[int, int]:
    """Return the byte of each of GPT-2's letters (openai/gpt-2, encoder.py, bytes_to_unicode), and
    U+FFFD for others of Latin-1.

    Printable Latin-1 stands for itself; the other 68 bytes are the letters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    found = dict(zip(printable, printable, strict=True)) | dict.fromkeys(others, 0xFFFD)
    return found | {0x100 + index: byte for index, byte in enumerate(others)}
