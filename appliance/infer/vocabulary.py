"""The words of a home: names of people, rooms, devices and places, which no model was taught.

A text that was written freely is looked at again: where some of its words are like one of the
home's, the decoder says how likely the text is with that in their place, and the likelier text
stays, after a credit in natural logarithm that grows with the likeness. Only words of which the
decoder was not sure are replaced. Whole texts are compared, so that nothing is begun that cannot be
ended well, and a text without a similar word costs nothing.

Adding to the scores of tokens in the decode loop instead (a trie of the words' tokens) was tried
and is worse: see docs/words.md.
"""

from __future__ import annotations

import logging
import math
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from appliance.config import WORDS_AT_MOST, VocabularySettings, is_word
from appliance.errors import ConfigError, ModelError
from appliance.infer.joining import is_unspaced
from appliance.infer.tokenizer import Tokenizer
from appliance.system import shorten

if TYPE_CHECKING:
    from appliance.infer.decoder import Decoded, Decoder
    from appliance.model import Bundle

log = logging.getLogger("roomscribe.infer")

FILE_AT_MOST = 1 << 20
"""Bytes."""
LEAST = 0.5
"""Words less alike than this are not asked about."""
CREDIT, UNLIKE = 20.0, 0.3
"""Times boost and likeness above UNLIKE: how much less likely a text with a word of the home may
be, natural logarithm. Chosen on synthesised sentences with home-en (scripts/measure words)."""
DOUBTED = math.log(0.7)
"""Natural log-probability of a token below which its span may be replaced. Without this limit the
credit alone puts a short name ("Tom") in place of a common word ("to") that was heard well."""
PAIRS = 64
"""Words of a text and of the home whose likeness is computed exactly; the others share too few
letters, or too many share more."""
LONGEST = 6
"""Words of a text that may stand for one of the home's."""
WITHIN_S = 0.06
ASKED_AT_LEAST, ASKED_AT_MOST = 2, 6
"""Texts that are compared with the one before; between these as many as fit into WITHIN_S."""
TYPICAL = 10
"""Tokens of a sentence."""
AT_ONCE = 3
"""Words of the home that one text may get."""

_SOUND = (("ph", "f"), ("ck", "k"), ("qu", "k"), ("x", "ks"), ("c", "k"), ("z", "s"), ("w", "v"),
          ("y", "i"))  # fmt: skip
"""Spellings of one sound in Latin letters."""
_VOWELS = frozenset("aeiou")
_LIGHT, _OTHER_VOWEL = 0.5, 0.4
"""What a vowel weighs, which is heard worst, and one in place of another."""
_BINS, _TIMES = 32, 3


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of a text from `begin` to before `end` that are words."""

    begin: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Near:
    """A word of the home, and what in a text is like it."""

    likeness: float
    """0 to 1, by the letters."""
    span: Span
    word: str


class Words:
    """Words that a text is compared with. Immutable; any thread may use them."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        self._sounds = [sound(word) for word in self.words]
        self._sizes = np.array([size(one) for one in self._sounds], np.float32)
        self._codes = _codes(self._sounds)
        self.longest = min(LONGEST, 2 + max((len(word.split()) for word in self.words), default=0))
        """Words of a text that may stand for one of these."""
        self.known = frozenset(word.casefold() for word in self.words)

    def near(self, spans: Sequence[Span]) -> list[Near]:
        """The likest pairs of a span and a word, the likest first."""
        if not self.words or not spans:
            return []
        sounds = [sound(span.text) for span in spans]
        sizes = np.array([size(one) for one in sounds], np.float32)
        # what two have in common whatever its order: no likeness is more, vowels apart
        shared = _codes(sounds) @ self._codes.T
        bound = (shared / np.maximum.outer(np.maximum(sizes, 1e-9), self._sizes)).ravel()
        best = np.flatnonzero(bound >= LEAST)
        if len(best) > PAIRS:
            best = best[np.argpartition(bound[best], -PAIRS)[-PAIRS:]]
        found = []
        for place in map(int, best):
            at, word = divmod(place, len(self.words))
            alike = likeness(sounds[at], self._sounds[word])
            if alike >= LEAST and " " in self.words[word]:
                alike = _apart(spans[at].text, self.words[word])
            if alike >= LEAST:
                found.append(Near(alike, spans[at], self.words[word]))
        return sorted(found, key=lambda one: (-one.likeness, one.span.begin, one.word))


class Vocabulary:
    """The home's words: those of the configuration, and names that others give while it runs."""

    def __init__(self, words: Sequence[str], can_write: Callable[[str], bool]) -> None:
        """`can_write` tells which words the model can write; those that it cannot are left out,
        with a line to the log."""
        self._can_write = can_write
        self._own = tuple(word for word in words if can_write(word))
        if lacking := [word for word in words if not can_write(word)]:
            log.warning(
                "[vocabulary] words: %d cannot be written by the model and are left out: %s",
                len(lacking),
                shorten(", ".join(lacking), 80),
            )
        self._words = Words(self._own)
        self._last: tuple[Words, Sequence[str], Words] | None = None

    @property
    def words(self) -> Words:
        """All of them, as they are now. Any thread."""
        return self._words

    def set_names(self, names: Sequence[tuple[str, int]]) -> str:
        """Takes names, each with its tier (0 goes first), in place of those given before, behind
        the configuration's own; what is not fit to be one is left out. Any thread.

        Returns a line about what was left out; empty when nothing was.
        """
        ordered = [name for name, _ in sorted(names, key=lambda one: one[1])]
        self._words, trouble = self._joined(ordered)
        return trouble

    def with_names(self, names: Sequence[str]) -> Words:
        """The words, and names that hold for one text between the configuration's and those that
        others gave. One thread, the decoder's."""
        words, last = self._words, self._last
        if last is None or last[:2] != (words, names):
            joined, _ = self._joined([*names, *words.words[len(self._own) :]])
            last = self._last = words, names, joined
        return last[2]

    def _joined(self, names: Iterable[str]) -> tuple[Words, str]:
        kept = dict.fromkeys(self._own)
        unfit = over = count = 0
        for name in names:
            count += 1
            if len(kept) >= WORDS_AT_MOST:
                over += 1
                continue
            fit = clean(name)
            if fit and self._can_write(fit):
                kept[fit] = None
            else:
                unfit += 1
        said = []
        if unfit:
            said.append(f"{unfit} of {count} names are left out: expected 1 to 64 letters that the "
                        "model can write")  # fmt: skip
        if over:
            said.append(
                f"{over} of {count} names are left out: expected at most {WORDS_AT_MOST} words in "
                "all; expose fewer"
            )
        return Words(kept), "; ".join(said)


class Rescorer:
    """Puts words of the home into a text where that is what was said. One thread, the decoder's."""

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
        self._asked = ASKED_AT_LEAST + 2
        """Texts that are compared with the one before."""

    def warm_up(self) -> None:
        """Measures how many texts can be compared in the time that there is, if any are to be."""
        if not self.vocabulary.words.words:
            return  # the arrays take 3 MB with a real model
        tokens = [int(token) for token in self._bundle.kept[:TYPICAL]]
        taken = []
        for _ in range(3):
            begun_s = time.perf_counter()
            self._decoder.logprobs(tokens, 0)
            taken.append(time.perf_counter() - begun_s)
        self._asked = max(ASKED_AT_LEAST, min(ASKED_AT_MOST, int(WITHIN_S / min(taken))))

    def rescore(self, written: Decoded, names: Sequence[str] = ()) -> Decoded:
        """The text that the decoder wrote just before, with words of the home in it where that is
        likelier; `names` are words for this text alone. Log-probabilities have no credit in them.
        Raises ModelError.
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
            written, got, grown = chosen
            behind = got.end - grown
            locked = [
                replace(one, begin=one.begin + grown, end=one.end + grown)
                if one.begin >= behind
                else one
                for one in locked
                if one.begin >= behind or one.end <= got.begin
            ] + [got]
        return written

    def _best(
        self, written: Decoded, words: Words, spans: list[Span], locked: list[Span]
    ) -> tuple[Decoded, Span, int] | None:
        """The text with one more word of the home in it, where that is, and by how many tokens the
        text is longer; None when it is best as it is."""
        best, chosen, asked = 0.0, None, 0
        doubted = [one for one in spans if min(written.logprobs[one.begin : one.end]) < DOUBTED]
        for near in words.near(doubted):
            if asked >= self._asked:
                break
            span = near.span
            form = self._form(near.word, span.text)
            if form == span.text or any(_breaks(one, span, form) for one in locked):
                continue
            new = self._tokenizer.tokenize(f" {form}" if self._spaced(written, span) else form)
            tokens = (*written.tokens[: span.begin], *new, *written.tokens[span.end :])
            if len(self._bundle.prompt) + len(tokens) >= self._decoder.capacity:
                continue
            asked += 1
            logprobs = self._decoder.logprobs(tokens, span.begin)
            gain = sum(logprobs) - sum(written.logprobs[span.begin :])
            gain += self._boost * CREDIT * (near.likeness - UNLIKE)
            if gain > best:
                whole = (*written.logprobs[: span.begin], *logprobs)
                got = Span(span.begin, span.begin + len(new), form)
                grown = len(tokens) - len(written.tokens)
                best, chosen = gain, (replace(written, tokens=tokens, logprobs=whole), got, grown)
        return chosen

    def _form(self, word: str, instead: str) -> str:
        """The word as this model writes it in place of some others."""
        if not self._tokenizer.cased:
            return word.lower()
        return word[:1].upper() + word[1:] if instead[:1].isupper() else word

    def _spaced(self, written: Decoded, span: Span) -> bool:
        return self._tokenizer.token_bytes(written.tokens[span.begin]).startswith(b" ")

    def _spans(self, tokens: Sequence[int], longest: int) -> list[Span]:
        """Each run of up to `longest` words, without what follows them (marks and 's)."""
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
    """Likeness of a text and a name of several words, those apart with which both begin or end:
    "lights" is no sound of "hall lights", all of which but one word it has."""
    one, other = text.casefold().split(), name.casefold().split()
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return likeness(sound("".join(one)), sound("".join(other)))


def _is_mark(piece: bytes) -> bool:
    text = piece.decode("utf-8", "ignore")
    return piece == b"'s" or (bool(text) and not any(one.isalnum() for one in text))


def _breaks(known: Span, span: Span, word: str) -> bool:
    """True where a word would take the place of what is one already, and has it not within."""
    overlap = known.begin < span.end and span.begin < known.end
    has, word = known.text.casefold(), word.casefold()
    return overlap and (has == word or has not in word)


def open_vocabulary(
    settings: VocabularySettings, bundle: Bundle, tokenizer: Tokenizer
) -> Vocabulary:
    """The words of the configuration and of its file, for a model. Raises ConfigError."""
    kept = set(map(int, bundle.kept))
    latin = set(bundle.languages) <= {"en"}

    def can_write(word: str) -> bool:
        strange = latin and any(
            one.isalpha() and "LATIN" not in unicodedata.name(one, "") for one in word
        )
        try:
            return not strange and kept.issuperset(tokenizer.tokenize(f" {word} {word.lower()}"))
        except ModelError:  # a vocabulary without every byte
            return False

    return Vocabulary(read_words(settings), can_write)


def read_words(settings: VocabularySettings) -> list[str]:
    """The words of the configuration and of its file. Raises ConfigError."""
    words = list(dict.fromkeys([*settings.words, *_read(settings.file)]))
    if len(words) > WORDS_AT_MOST:
        raise ConfigError(
            f"[vocabulary] words, file: expected at most {WORDS_AT_MOST} words in all, found "
            f"{len(words)}; keep those that are misheard"
        )
    return words


def _read(name: str) -> list[str]:
    """The words of a file, one a line; none for no file."""
    if not name:
        return []
    path = Path(name).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(FILE_AT_MOST + 1)
        if len(data) > FILE_AT_MOST:
            raise ConfigError(
                f"{path}: expected at most {WORDS_AT_MOST} words, one a line ([vocabulary] file), "
                "found more than 1 MB"
            )
        lines = data.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ConfigError(
            f"{path}: expected a readable file of words, one a line ([vocabulary] file), "
            f"found {error.strerror}"
        ) from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}: expected words in UTF-8 ([vocabulary] file), found a byte that is none in "
            f"line {line}; save it as UTF-8"
        ) from None
    words = {at: line.split("#")[0].strip() for at, line in enumerate(lines, 1)}
    if strange := [at for at, word in words.items() if word and not is_word(word)]:
        raise ConfigError(
            f"{path}, line {strange[0]}: expected a word or name of 1 to 64 letters, found "
            f"{shorten(repr(words[strange[0]]), 60)}"
        )
    return [word for word in words.values() if word]


def clean(name: str) -> str:
    """A name that others give, without signs that are not said, such as emoji; empty where nothing
    is left, and for one that is too long to be said."""
    name = name[:1000]  # 10 kB of it are no name either
    kept = "".join(
        one if one.isalnum() or one in "'\u2019-&." or _joins(one) else " " for one in name
    )
    kept = " ".join(kept.split())
    return kept if is_word(kept) else ""


def _joins(letter: str) -> bool:
    return unicodedata.category(letter).startswith("M") and not 0xFE00 <= ord(letter) <= 0xFE0F


def sound(text: str) -> str:
    """The letters of a text about as they are said, without accents, spaces and doubled ones."""
    split = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(one for one in split if one.isalnum())
    for spelling, said in _SOUND:
        plain = plain.replace(spelling, said)
    return "".join(one for at, one in enumerate(plain) if one != plain[at - 1 : at])


def size(said: str) -> float:
    """What the letters of a sound weigh."""
    return sum(_LIGHT if one in _VOWELS else 1.0 for one in said)


def likeness(one: str, other: str) -> float:
    """How alike two sounds are, 0 to 1: their weighted edit distance (Levenshtein) over the size of
    the larger, taken from 1; 0 for less than LEAST."""
    costs = [_LIGHT if letter in _VOWELS else 1.0 for letter in other]
    row = [0.0]
    for cost in costs:
        row.append(row[-1] + cost)
    larger = max(row[-1], size(one), 1e-9)
    for letter in one:
        if min(row) > (1.0 - LEAST) * larger:
            return 0.0
        vowel = letter in _VOWELS
        lost = _LIGHT if vowel else 1.0
        above, row = row, [row[0] + lost]
        for at, cost in enumerate(costs):
            if letter == other[at]:
                changed = above[at]
            else:
                changed = above[at] + (_OTHER_VOWEL if vowel and cost == _LIGHT else 1.0)
            row.append(min(changed, above[at + 1] + lost, row[at] + cost))
    return max(0.0, 1.0 - row[-1] / larger)


def _codes(sounds: Sequence[str]) -> NDArray[np.float32]:
    """(n, C) float32: the product of two rows is the weight of the letters that both have."""
    codes = np.zeros((len(sounds), _BINS * _TIMES), np.float32)
    for row, said in enumerate(sounds):
        counts: dict[str, int] = {}
        for letter in said:
            time_of_it = counts[letter] = counts.get(letter, 0) + 1
            if time_of_it <= _TIMES:
                weight = _LIGHT if letter in _VOWELS else 1.0
                codes[row, ord(letter) % _BINS * _TIMES + time_of_it - 1] = weight**0.5
    return codes
