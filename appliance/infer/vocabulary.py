"""Contextual biasing: words of the home (people, rooms, devices, places) that no model was taught.

A decoded text is rescored: if some of its words resemble one of the home's, the decoder computes
the probability of the text with that word instead, and the likelier text stays, after a credit in
natural logarithm that grows with the likeness. Only words that the decoder was not sure of are
replaced. Whole texts are compared, so the end of a sentence counts, too, and a text without a
similar word costs nothing.
"""

from __future__ import annotations

import logging
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from appliance.config import WORDS_AT_MOST, VocabularySettings, is_word
from appliance.errors import ConfigError, ModelError
from appliance.infer.overlap import is_unspaced
from appliance.infer.tokenizer import Tokenizer
from appliance.system import shorten

if TYPE_CHECKING:
    from appliance.infer.decoder import Decoded, Decoder
    from appliance.model import Bundle

log = logging.getLogger("roomscribe.infer")

LEAST = 0.5
"""Words less alike than this are not compared."""
CREDIT, UNLIKE = 20.0, 0.3
"""Credit, natural logarithm, of a text with a word of the home: CREDIT times boost times the
likeness above UNLIKE. Chosen on synthesised sentences with a smaller model."""
DOUBTED = math.log(0.7)
"""Natural log-probability of a token below which its span may be replaced. Without this limit the
credit alone puts a short name ("Tom") in place of a common word ("to") that was heard well."""
PAIRS = 64
"""Pairs of words whose likeness is computed exactly: those that share the most letters."""
LONGEST = 6
"""Most words of a text that one word of the home may replace."""
TRIALS = 3
"""Most alternative texts to score for one replacement; each is a pass of the decoder."""
AT_ONCE = 3
"""Most words of the home put into one text."""

_SOUND = (("ph", "f"), ("ck", "k"), ("qu", "k"), ("x", "ks"), ("c", "k"), ("z", "s"), ("w", "v"),
          ("y", "i"))  # fmt: skip
"""Spellings of one sound in Latin letters."""
_VOWELS = frozenset("aeiou")
_LIGHT, _OTHER_VOWEL = 0.5, 0.4
"""Weight of a vowel, which is recognised worst, and of one vowel in place of another."""
_BINS, _TIMES = 32, 3


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of a text from `begin` to before `end` that are words."""

    begin: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Near:
    """A word of the home, and the words of a text that resemble it."""

    likeness: float
    """0 to 1: see `likeness`."""
    span: Span
    word: str


class Words:
    """Words to compare a text with. Immutable; any thread may use them."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        self._sounds = [sound(word) for word in self.words]
        self._sizes = np.array([size(letters) for letters in self._sounds], np.float32)
        self._codes = _codes(self._sounds)
        self.longest = min(LONGEST, 2 + max((len(word.split()) for word in self.words), default=0))
        """Most words of a text that one of these may replace."""
        self.known = frozenset(word.casefold() for word in self.words)

    def near(self, spans: Sequence[Span]) -> list[Near]:
        """Return the most similar pairs of a span and a word, the most similar first."""
        if not self.words or not spans:
            return []
        sounds = [sound(span.text) for span in spans]
        sizes = np.array([size(letters) for letters in sounds], np.float32)
        # letters in common, in any order: an upper bound of the likeness, but for vowels
        shared = _codes(sounds) @ self._codes.T
        bound = (shared / np.maximum.outer(np.maximum(sizes, 1e-9), self._sizes)).ravel()
        best = np.flatnonzero(bound >= LEAST)
        if len(best) > PAIRS:
            best = best[np.argpartition(bound[best], -PAIRS)[-PAIRS:]]
        found = []
        for index in map(int, best):
            at, word = divmod(index, len(self.words))
            alike = likeness(sounds[at], self._sounds[word])
            if alike >= LEAST and " " in self.words[word]:
                alike = _apart(spans[at].text, self.words[word])
            if alike >= LEAST:
                found.append(Near(alike, spans[at], self.words[word]))
        return sorted(found, key=lambda near: (-near.likeness, near.span.begin, near.word))


class Vocabulary:
    """The home's words: those of the configuration, and names that come while it runs."""

    def __init__(self, words: Sequence[str], can_write: Callable[[str], bool]) -> None:
        """`can_write` decides which words the model can write; the others are left out and
        logged."""
        self._can_write = can_write
        self._own = tuple(word for word in words if can_write(word))
        if lacking := [word for word in words if not can_write(word)]:
            log.warning(
                "[vocabulary] words: the model cannot write %d of them: %s",
                len(lacking),
                shorten(", ".join(lacking), 80),
            )
        self._words = Words(self._own)
        self._last: tuple[Words, Sequence[str], Words] | None = None

    @property
    def words(self) -> Words:
        """All words at present. Any thread."""
        return self._words

    def set_names(self, names: Sequence[tuple[str, int]]) -> str:
        """Replace the names of the home, each with its tier (0 comes first); they follow the
        configuration's words. Any thread.

        Returns a line about names that were left out; "" if none were.
        """
        ordered = [name for name, _ in sorted(names, key=lambda name: name[1])]
        self._words, trouble = self._joined(ordered)
        return trouble

    def with_names(self, names: Sequence[str]) -> Words:
        """Return the words with names for one text, which follow the configuration's words. One
        thread, the decoder's."""
        words, last = self._words, self._last
        if last is None or last[:2] != (words, names):
            joined, _ = self._joined([*names, *words.words[len(self._own) :]])
            last = self._last = words, names, joined
        return last[2]

    def _joined(self, names: Sequence[str]) -> tuple[Words, str]:
        kept = dict.fromkeys(self._own)
        fits = (name for name in map(clean, names) if name and self._can_write(name))
        fitting = list(islice(fits, WORDS_AT_MOST - len(kept)))
        kept |= dict.fromkeys(fitting)
        if lost := len(names) - len(fitting):
            return Words(kept), (
                f"{lost} of {len(names)} names are left out: expected 1 to 64 letters that the "
                f"model can write, and at most {WORDS_AT_MOST} words in all; expose fewer"
            )
        return Words(kept), ""


class Rescorer:
    """Puts words of the home into a text where that is likelier. One thread, the decoder's."""

    def __init__(
        self,
        bundle: Bundle,
        tokenizer: Tokenizer,
        decoder: Decoder,
        vocabulary: Vocabulary,
        boost: float,
    ) -> None:
        self._bundle, self._tokenizer, self._decoder = bundle, tokenizer, decoder
        self.vocabulary, self._boost = vocabulary, boost

    def rescore(self, written: Decoded, names: Sequence[str] = ()) -> Decoded:
        """Return the text that the decoder just wrote, with words of the home where that is
        likelier; `names` are words for this text alone. Log-probabilities do not include the
        credit. Raises ModelError.
        """
        words = self.vocabulary.with_names(names) if names else self.vocabulary.words
        if not words.words or not written.ended:
            return written
        locked: list[Span] = []
        for _ in range(AT_ONCE):
            spans = self._spans(written.tokens, words.longest)
            locked += [span for span in spans if span.text.casefold() in words.known]
            chosen = self._best(written, words, spans, locked)
            if chosen is None:
                break
            # words of the home stay; those behind the new one move by the tokens that it adds
            written, got, grown = chosen
            behind = got.end - grown
            locked = [
                replace(span, begin=span.begin + grown, end=span.end + grown)
                if span.begin >= behind
                else span
                for span in locked
                if span.begin >= behind or span.end <= got.begin
            ] + [got]
        return written

    def _best(
        self, written: Decoded, words: Words, spans: list[Span], locked: list[Span]
    ) -> tuple[Decoded, Span, int] | None:
        """The text with one more word of the home, the span of that word, and the number of tokens
        that it adds; None if no replacement makes the text likelier."""
        best, chosen, trials = 0.0, None, 0
        doubted = [span for span in spans if min(written.logprobs[span.begin : span.end]) < DOUBTED]
        for near in words.near(doubted):
            if trials >= TRIALS:
                break
            span = near.span
            form = self._form(near.word, span.text)
            if form == span.text or any(_breaks(other, span, form) for other in locked):
                continue
            first = self._tokenizer.token_bytes(written.tokens[span.begin])
            new = self._tokenizer.tokenize(f" {form}" if first.startswith(b" ") else form)
            behind = written.tokens[self._end(written.tokens, span) :]
            if self._doubles(written.tokens[: span.begin], form, behind):
                continue
            tokens = (*written.tokens[: span.begin], *new, *behind)
            if len(self._bundle.prompt) + len(tokens) >= self._decoder.capacity:
                continue
            trials += 1
            logprobs = self._decoder.logprobs(tokens, span.begin)
            gain = sum(logprobs) - sum(written.logprobs[span.begin :])
            gain += self._boost * CREDIT * (near.likeness - UNLIKE)
            if gain > best:
                whole = (*written.logprobs[: span.begin], *logprobs)
                got = Span(span.begin, span.begin + len(new), form)
                grown = len(tokens) - len(written.tokens)
                best, chosen = gain, (replace(written, tokens=tokens, logprobs=whole), got, grown)
        return chosen

    def _end(self, tokens: Sequence[int], span: Span) -> int:
        """Where the text goes on behind a span: without a full stop within the sentence."""
        full_stop = self._tokenizer.token_bytes(tokens[span.end]) if span.end < len(tokens) else b""
        behind = self._tokenizer.detokenize(tokens[span.end + 1 :]).strip()[:1]
        return span.end + (full_stop == b"." and behind != "" and not behind.isupper())

    def _doubles(self, before: Sequence[int], form: str, behind: Sequence[int]) -> bool:
        """True if a word of the home would stand beside its own first or last word."""
        words = re.findall(r"\w+", form.casefold())
        left = re.findall(r"\w+", self._tokenizer.detokenize(before).casefold())
        right = re.findall(r"\w+", self._tokenizer.detokenize(behind).casefold())
        return left[-1:] == words[:1] or right[:1] == words[-1:]

    def _form(self, word: str, instead: str) -> str:
        """The word as this model writes it in place of `instead`."""
        if not self._tokenizer.cased:
            return word.lower()
        return word[:1].upper() + word[1:] if instead[:1].isupper() else word

    def _spans(self, tokens: Sequence[int], longest: int) -> list[Span]:
        """Each run of up to `longest` words, without a mark or 's behind it."""
        pieces = [self._tokenizer.token_bytes(token) for token in tokens]
        unspaced = is_unspaced(self._tokenizer.detokenize(tokens))
        starts = [
            at
            for at, piece in enumerate(pieces)
            if at == 0 or piece.startswith(b" ") or (unspaced and piece and piece[0] & 0xC0 != 0x80)
        ]
        found = []
        for last, following in enumerate([*starts[1:], len(tokens)]):
            end = following
            while end - 1 > starts[last] and _is_mark(pieces[end - 1]):
                end -= 1
            for first in range(max(0, last - longest + 1), last + 1):
                text = self._tokenizer.detokenize(tokens[starts[first] : end]).strip()
                found.append(Span(starts[first], end, text))
        return found


def _apart(text: str, name: str) -> float:
    """Likeness of a text and a name of several words, without words that both begin or end with:
    "lights" must not resemble "hall lights" because it is a part of it."""
    words, others = text.casefold().split(), name.casefold().split()
    while words and others and words[0] == others[0]:
        words, others = words[1:], others[1:]
    while words and others and words[-1] == others[-1]:
        words, others = words[:-1], others[:-1]
    return likeness(sound("".join(words)), sound("".join(others)))


def _is_mark(piece: bytes) -> bool:
    text = piece.decode("utf-8", "ignore")
    return piece == b"'s" or (bool(text) and not any(letter.isalnum() for letter in text))


def _breaks(known: Span, span: Span, word: str) -> bool:
    """True if a word would replace a known one without containing it."""
    overlap = known.begin < span.end and span.begin < known.end
    has, word = known.text.casefold(), word.casefold()
    return overlap and (has == word or has not in word)


def open_vocabulary(
    settings: VocabularySettings, bundle: Bundle, tokenizer: Tokenizer
) -> Vocabulary:
    """Return the vocabulary of the configuration for a model. Raises ConfigError."""
    barred = frozenset(bundle.suppressed)
    latin = set(bundle.languages) <= {"en"}

    def can_write(word: str) -> bool:
        strange = latin and any(
            letter.isalpha() and "LATIN" not in unicodedata.name(letter, "") for letter in word
        )
        try:
            return not strange and barred.isdisjoint(tokenizer.tokenize(f" {word} {word.lower()}"))
        except ModelError:  # a vocabulary without every byte
            return False

    words = list(dict.fromkeys(settings.words))
    if len(words) > WORDS_AT_MOST:
        raise ConfigError(
            f"[vocabulary] words: expected at most {WORDS_AT_MOST} words, found {len(words)}; keep "
            "those that are misheard"
        )
    return Vocabulary(words, can_write)


def clean(name: str) -> str:
    """Return a name from outside without letters that nobody speaks, such as emoji; "" if nothing
    is left, or if it is too long."""
    name = name[:1000]  # 10 kB of it are no name either
    kept = "".join(
        letter if letter.isalnum() or letter in "'\u2019-&." or _joins(letter) else " "
        for letter in name
    )
    kept = " ".join(kept.split())
    return kept if is_word(kept) else ""


def _joins(letter: str) -> bool:
    return unicodedata.category(letter).startswith("M") and not 0xFE00 <= ord(letter) <= 0xFE0F


def sound(text: str) -> str:
    """Return the letters of a text roughly as pronounced: without accents, spaces and doubles."""
    split = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(letter for letter in split if letter.isalnum())
    for spelling, letters in _SOUND:
        plain = plain.replace(spelling, letters)
    return "".join(letter for at, letter in enumerate(plain) if letter != plain[at - 1 : at])


def size(letters: str) -> float:
    """Return the weight of the letters of a sound."""
    return float(sum(map(_weight, letters)))


def _weight(letter: str) -> float:
    return _LIGHT if letter in _VOWELS else 1.0


def likeness(sound: str, other: str) -> float:
    """Return how alike two sounds are, 0 to 1: 1 minus their weighted edit distance (Levenshtein)
    over the size of the larger; 0 for less than LEAST."""
    costs = [*map(_weight, other)]
    row = [*accumulate(costs, initial=0.0)]
    larger = max(row[-1], size(sound), 1e-9)
    for letter in sound:
        if min(row) > (1.0 - LEAST) * larger:
            return 0.0
        lost = _weight(letter)
        above, row = row, [row[0] + lost]
        for at, cost in enumerate(costs):
            other_cost = _OTHER_VOWEL if lost == cost == _LIGHT else 1.0
            changed = above[at] + (other_cost if letter != other[at] else 0.0)
            row.append(min(changed, above[at + 1] + lost, row[at] + cost))
    return max(0.0, 1.0 - row[-1] / larger)


def _codes(sounds: Sequence[str]) -> NDArray[np.float32]:
    """Vectors (n, C) float32; the product of two is the weight of the letters that both have."""
    codes = np.zeros((len(sounds), _BINS * _TIMES), np.float32)
    for row, letters in enumerate(sounds):
        counts: dict[str, int] = {}
        for letter in letters:
            time_of_it = counts[letter] = counts.get(letter, 0) + 1
            if time_of_it <= _TIMES:
                place = ord(letter) % _BINS * _TIMES + time_of_it - 1
                codes[row, place] = _weight(letter) ** 0.5
    return codes
