"""Expected sentences: a file of templates, and which of them a window is likely to say.

A template has optional parts, alternatives and slots, like Home Assistant's: "turn (on|off) [the]
{area} lights". All templates together are one network of words, so that a slot with a thousand
values exists once. The decoder scores what may follow a prefix in one step, and the likeliest
prefix is continued first (best-first search). Words that the network does not allow are never
scored. The probability of the best sentence is weighed against the other sentences found and
against the free text: "none of them" is an answer, too.

Over 500 lines because templates, search and confidence share one network.
"""

from __future__ import annotations

import functools
import heapq
import importlib
import math
import re
import time
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from appliance.errors import ConfigError
from appliance.infer.tokenizer import Tokenizer
from appliance.model import Bundle
from appliance.records import Name, Phrase, Tier

if TYPE_CHECKING:
    from appliance.infer.decoder import Decoded, Decoder

SENTENCES_AT_MOST = 20_000
VALUES_AT_MOST = 20_000
FILE_AT_MOST = 4 << 20
"""Bytes."""
WITHIN_S = 0.1
STEPS_AT_LEAST, STEPS_AT_MOST = 24, 48
"""Steps of the decoder in a search; between these, as many as fit into WITHIN_S of the thread's CPU
time, which depends little on other work of the machine. On 72 recordings the built-in model finds
the same sentences of at least 70 % with 24, 48 and 200 steps. `phrase_confidence` is fitted to
searches of 48: with fewer, the likeliest sentence meets fewer rivals and seems surer."""
WORSE_BY = 15.0
"""A prefix that is so much less likely (natural logarithm) than a complete sentence, or than the
free text, is dropped."""
FLOOR = 0.02
"""A sentence of less confidence is not reported."""
CANDIDATES = 3
"""Likeliest sentences that a search reports."""
HOME_SLOTS = {
    "area": (Tier.USED_PLACE, Tier.PLACE),
    "name": (Tier.CALLED, Tier.OTHER, Tier.ALIAS),
}
"""Slots that Home Assistant's names of these tiers fill, unless the file defines them."""
MARKS = {"percent": "%", "degrees": "°"}
"""Words that models with punctuation may write as a mark after the number."""
ENDS = ("", ".", "?", "!")
"""What models with punctuation may put after a sentence."""

_PIECE = re.compile(r"\s*(?:([\[\]()|])|\{([^{}]*)\}|([^\s\[\](){}|]+)|(\S))")
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = (
    "zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip

Value = str | int
Tokens = tuple[int, ...]
Items = frozenset[tuple[int, Tokens]]
"""States of the network, each with the tokens that are left of the word that leads there."""


@dataclass(slots=True)
class WordNetwork:
    """A nondeterministic finite automaton over words: each path from `START` to `END` is a
    sentence."""

    words: list[list[tuple[str, int]]] = field(default_factory=lambda: [[], []])
    """Transitions of each state: a word, and the state that it leads to."""
    free: list[list[tuple[int, tuple[str, Value] | None]]] = field(default_factory=lambda: [[], []])
    """Transitions of each state without a word: the next state, and the slot with its value that
    this path means (slot "" is the sentence's name)."""
    sentences: int = 0
    address: str = ""
    """What may precede every sentence, in lower case."""
    rebuild: Callable[[Mapping[str, Sequence[str]]], WordNetwork] | None = None
    """Builds it again with other names of the home; None if it uses none."""

    def add_state(self) -> int:
        """Add a state and return it."""
        self.words.append([])
        self.free.append([])
        return len(self.words) - 1

    def add_free(self, begin: int, end: int, meaning: tuple[str, Value] | None = None) -> None:
        """Add a transition without a word."""
        self.free[begin].append((end, meaning))

    def add_words(self, begin: int, text: str) -> int:
        """Add a path over each word of a text, and return where it ends."""
        for word in text.split():
            end = self.add_state()
            self.words[begin].append((word, end))
            begin = end
        return begin

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """These states and all that are reached from them without a word."""
        found = set(states)
        left = list(found)
        while left:
            for end, _ in self.free[left.pop()]:
                if end not in found:
                    found.add(end)
                    left.append(end)
        return frozenset(found)

    def parse(self, words: Sequence[str]) -> dict[str, Value] | None:
        """Return the slots of a sentence and, as "", its name; None if it is not a sentence. If it
        can be read in several ways, the one that comes first in the file."""
        paths: list[tuple[int, int, dict[str, Value]]] = [(START, 0, {})]
        while paths:
            state, at, slots = paths.pop()
            if state == END and at == len(words):
                return slots
            for end, meaning in reversed(self.free[state]):
                paths.append((end, at, slots | dict([meaning]) if meaning else slots))
            for word, end in reversed(self.words[state]):
                if at < len(words) and word.lower() == words[at]:
                    paths.append((end, at + 1, slots))
        return None

    def is_beginning(self, words: Sequence[str]) -> bool:
        """True if a longer sentence begins with these words."""
        states = self.closure([START])
        for spoken in words:
            states = self.closure(
                end for at in states for word, end in self.words[at] if word.lower() == spoken
            )
        return any(self.words[at] for at in states)


START, END, OVER = 0, 1, -1
"""OVER is the state after a sentence's full stop."""


def read_phrases(
    path: Path,
    home: Mapping[str, Sequence[str]] | None = None,
    address: str = "",
    languages: Sequence[str] = ("en",),
) -> WordNetwork:
    """Return the network of a file of sentences.

    The file is TOML: [phrases] has lists of sentences under a name of your choice, [slots] the
    values of each slot: a list of texts, a table of values with the texts that mean them, or a
    range of whole numbers {from = 0, to = 100, step = 5}. With `home`, names of the home are values
    of HOME_SLOTS. `address` may precede every sentence ([assist] phrase). Ranges are spoken in
    `languages` (ISO 639). Raises ConfigError, which names file and key.
    """
    try:
        data = path.read_bytes()
        if len(data) > FILE_AT_MOST:
            raise ConfigError(
                f"{path}: expected at most {FILE_AT_MOST >> 20} MB of sentences, found "
                f"{len(data) >> 20} MB; put what varies into a slot"
            )
        table = tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(
            f"{path}: expected a readable file of sentences ([phrases] file), "
            f"found {error.strerror}"
        ) from None
    except ValueError as error:  # TOML or UTF-8
        raise ConfigError(f"{path}: expected TOML in UTF-8, found: {error}") from None
    try:
        return build_network(table, address, languages, home)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_phrases(text: str) -> dict[str, Any]:
    """Return the tables of a file of sentences. Raises ConfigError."""
    if len(text.encode()) > FILE_AT_MOST:
        raise ConfigError(f"expected at most {FILE_AT_MOST >> 20} MB of sentences, found more")
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"expected TOML, found: {error}") from None


def build_network(
    table: Mapping[str, Any],
    address: str,
    languages: Sequence[str],
    home: Mapping[str, Sequence[str]] | None,
) -> WordNetwork:
    """Return the network of the tables [phrases] and [slots]; see `read_phrases`."""
    if extra := sorted(table.keys() - {"phrases", "slots"}):
        raise ConfigError(f"expected the tables [phrases] and [slots], found [{extra[0]}]")
    phrases, slots = table.get("phrases", {}), table.get("slots", {})
    if not isinstance(phrases, dict) or not isinstance(slots, dict):
        raise ConfigError("expected the tables [phrases] and [slots], found other values")
    values = {name: list(_values(name, given, languages)) for name, given in slots.items()}
    network = WordNetwork(address=address.lower())
    first = network.add_state()
    network.add_free(START, first)
    if address:
        network.add_free(network.add_words(START, address), first)
    if home is not None:
        network.rebuild = functools.partial(build_network, table, address, languages)
        for slot in HOME_SLOTS.keys() - values.keys():
            values[slot] = [(name, spoken(name)) for name in home.get(slot, ())]
    for name, sentences in phrases.items():
        key = f"phrases.{name}"
        if not isinstance(sentences, list) or not all(isinstance(text, str) for text in sentences):
            raise ConfigError(f'{key}: expected a list of sentences in "", found something else')
        network.sentences += len(sentences)
        if network.sentences > SENTENCES_AT_MOST:
            raise ConfigError(
                f"{key}: expected at most {SENTENCES_AT_MOST} sentences in all, found more; "
                "put what varies into a slot"
            )
        for number, sentence in enumerate(sentences, 1):
            begin = network.add_state()
            network.add_free(first, begin, ("", name))
            try:
                network.add_free(_Template(network, sentence, values).build(begin), END)
            except ConfigError as error:
                raise ConfigError(f"{key}, sentence {number}: {error}") from None
    if not network.sentences:
        raise ConfigError(
            'expected sentences, found none; write for instance [phrases] light = ["turn on the '
            'light"]'
        )
    if END in network.closure([first]):
        raise ConfigError(
            "expected sentences of at least one word, found one that is optional as a whole"
        )
    return network


def spoken(name: str) -> str:
    """Return a name of the home as words of a sentence."""
    return " ".join(re.sub(r"[^\w'-]|_", " ", name).split())


def _values(name: str, given: object, languages: Sequence[str]) -> Iterator[tuple[Value, str]]:
    """The values of a slot, each with a text that means it."""
    key = f"slots.{name}"
    if isinstance(given, dict) and given.keys() & {"from", "to"}:
        yield from _numbers(key, given, languages)
        return
    texts: list[tuple[Value, object]] = []
    if isinstance(given, list):
        texts = [(text, text) for text in given]
    elif isinstance(given, dict):
        texts = [
            (value, text)
            for value, more in given.items()
            for text in (more if isinstance(more, list) else [more])
        ]
    if not texts:
        raise ConfigError(
            f"{key}: expected values, as a list or a table, found "
            + ("none" if isinstance(given, list | dict) else "something else")
        )
    if len(texts) > VALUES_AT_MOST:
        raise ConfigError(f"{key}: expected at most {VALUES_AT_MOST} values, found {len(texts)}")
    for number, (value, text) in enumerate(texts, 1):
        if not isinstance(text, str) or not text.split():
            raise ConfigError(f"{key}, value {number}: expected words in quotes, found {text!r}")
        for word in text.split():
            _check_word(word, f"{key}, value {number}: ")
        yield value, text


def _numbers(
    key: str, given: Mapping[str, object], languages: Sequence[str]
) -> Iterator[tuple[Value, str]]:
    """A range of whole numbers, in words and in digits."""
    first, last, step = given.get("from"), given.get("to"), given.get("step", 1)
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (first, last, step))
    extra = given.keys() - {"from", "to", "step"}
    if extra or not whole:
        raise ConfigError(f"{key}: expected {{from = 0, to = 100, step = 1}}, found {dict(given)}")
    assert isinstance(first, int) and isinstance(last, int) and isinstance(step, int)
    if not (0 <= first <= last <= 999 and step >= 1):
        raise ConfigError(
            f"{key}: expected numbers from 0 to 999, the lesser first, and a step of at least 1, "
            f"found {dict(given)}"
        )
    for number in range(first, last + 1, step):
        try:
            spoken_forms = [form for code in languages for form in number_words(number, code)]
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from None
        for text in dict.fromkeys([*spoken_forms, str(number)]):
            yield number, text


def number_words(number: int, language: str) -> list[str]:
    """Return a number from 0 to 999 in words of a language (ISO 639), in each of its forms: "one"
    is "eins", "ein", "eine" and so on in German. Raises ConfigError for unknown languages.

    English is `in_words`. Other languages take 2.4 MB: the rules of the Unicode CLDR project.
    """
    if language == "en":
        return [in_words(number)]
    forms = _speller(language).format_number(number).text_by_ruleset.values()
    plain_forms = {" ".join(form.replace("\u00ad", "").split()) for form in forms}
    return sorted(form for form in plain_forms if not strange_letters(form))


@functools.cache
def _speller(language: str) -> Any:
    """The library unicode-rbnf's engine for a language. Raises ConfigError."""
    try:
        return importlib.import_module("unicode_rbnf").RbnfEngine.for_language(language)
    except ImportError:
        raise ConfigError(
            f"number words in the language {language!r} need the library unicode-rbnf, which is "
            "not installed; sudo apt install python3-unicode-rbnf"
        ) from None
    except ValueError:
        raise ConfigError(
            f"number words in the language {language!r} are unknown; write the numbers as a table "
            'of digits and words, such as {20 = "twenty", 21 = "twenty one"}'
        ) from None


def in_words(number: int) -> str:
    """Return a number from 0 to 999 in English words, without "and"."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + (f" {_ONES[number % 10]}" if number % 10 else "")
    rest = f" {in_words(number % 100)}" if number % 100 else ""
    return f"{_ONES[number // 100]} hundred{rest}"


def strange_letters(text: str) -> bool:
    """True if a text has letters that no word may have: see `_check_word`."""
    return not all(letter.isalnum() or letter in "'- " for letter in text)


def _check_word(word: str, key: str = "") -> None:
    """Raises ConfigError for a word that no model writes as one."""
    if strange_letters(word):
        raise ConfigError(f"{key}expected letters, digits, ' and - in a word, found {word[:40]!r}")


class _Template:
    """Parses the template of a sentence and adds it to a network (recursive descent)."""

    def __init__(
        self, network: WordNetwork, text: str, values: Mapping[str, list[tuple[Value, str]]]
    ) -> None:
        self._network, self._values = network, values
        self._pieces = [found.groups() for found in _PIECE.finditer(text)]
        self._at = 0

    def build(self, begin: int) -> int:
        """Add the sentence from a state on, and return where it ends. Raises ConfigError."""
        end = self._alternatives(begin, "")
        if self._at < len(self._pieces):
            self._refuse("nothing to close")
        return end

    def _alternatives(self, begin: int, closing: str) -> int:
        """Alternatives between |, up to a closing bracket."""
        end = self._network.add_state()
        while True:
            first = self._network.add_state()
            self._network.add_free(begin, first)
            self._network.add_free(self._sequence(first), end)
            if self._next() != "|":
                break
            self._at += 1
        if closing:
            if self._next() != closing:
                self._refuse(f"{closing} for what was opened")
            self._at += 1
        return end

    def _sequence(self, state: int) -> int:
        """Words, slots and brackets in a row."""
        while self._at < len(self._pieces) and self._next() not in ("|", "]", ")"):
            mark, slot, word, other = self._pieces[self._at]
            self._at += 1
            if mark:
                end = self._alternatives(state, {"[": "]", "(": ")"}[mark])
                if mark == "[":
                    self._network.add_free(state, end)
                state = end
            elif slot is not None:
                state = self._slot(state, slot.strip())
            elif word:
                _check_word(word)
                state = self._network.add_words(state, word)
            else:
                self._at -= 1
                self._refuse("a slot as {area}", other)
        return state

    def _slot(self, state: int, name: str) -> int:
        if name not in self._values:
            near = get_close_matches(name, self._values, 1)
            hint = f"; {near[0]}?" if near else f"; add {name} to [slots]"
            raise ConfigError(f"expected a slot that [slots] names, found {{{name}}}{hint}")
        end = self._network.add_state()
        for value, text in self._values[name]:
            self._network.add_free(self._network.add_words(state, text), end, (name, value))
        return end

    def _next(self) -> str | None:
        """The next piece if it is a bracket or a bar."""
        return self._pieces[self._at][0] if self._at < len(self._pieces) else None

    def _refuse(self, expected: str, found: str = "") -> None:
        found = found or self._next() or "the end"
        raise ConfigError(f"expected {expected}, found {found!r} as piece {self._at + 1}")


class Evidence(NamedTuple):
    """What the confidence of the likeliest sentence is made of."""

    sentence: str
    share: float
    """Of the probability of all sentences that were found, 0..1."""
    mean: float
    """Mean natural log-probability of its tokens."""
    lead: float
    """Natural log-probability of the free text minus the sentence's."""
    confidence: float


class _Prefix(NamedTuple):
    """A beginning of sentences that waits to be continued. The least goes first."""

    rank: float
    number: int
    """Unique, to break ties."""
    score: float
    """Natural log-probability up to the first token of the chain."""
    tokens: Tokens
    chain: Tokens
    """Tokens behind them whose steps have not been computed."""
    items: Items
    """Where the sentences continue."""


class Phrases:
    """The sentences of a network in a bundle's tokens. One thread, the decoder's."""

    def __init__(
        self, network: WordNetwork, bundle: Bundle, tokenizer: Tokenizer, decoder: Decoder
    ) -> None:
        """Raises ConfigError for a word that the bundle cannot write."""
        from appliance.infer.network import SHARED_ROWS  # loads ONNX Runtime

        self._rows_at_most = SHARED_ROWS
        self._network, self._bundle, self._tokenizer = network, bundle, tokenizer
        self._decoder = decoder
        self._cased = tokenizer.cased
        self._tokens: dict[tuple[str, bool], list[tuple[int, ...]]] = {}
        self._followers: dict[Items, tuple[dict[int, Items], bool]] = {}
        self.steps = STEPS_AT_MOST
        """Most steps of the decoder for a window, each of one or several tokens."""
        self.evidence: Evidence | None = None
        """Of the sentence that the last `find` found, reported or not."""
        self.candidates: tuple[Phrase, ...] = ()
        """The likeliest sentences that the last `find` found, however unlikely."""
        self._kept = set(map(int, bundle.kept))
        self._renewed: WordNetwork | None = None
        for word in {word for words in network.words for word, _ in words}:
            if not self._can_write(word):
                key = "[phrases] file"
                if word.lower() in network.address.split():
                    key = "[assist] phrase"
                raise ConfigError(
                    f"{key}: expected words that model {bundle.name} can write "
                    f"({', '.join(bundle.languages[:3])}), found {word[:40]!r}"
                )

    def _can_write(self, word: str) -> bool:
        strange = set(self._bundle.languages) <= {"en"} and any(
            letter.isalpha() and "LATIN" not in unicodedata.name(letter, "") for letter in word
        )
        return not strange and all(
            self._kept.issuperset(tokens) for tokens in self._write(word, False)
        )

    def set_names(self, names: Sequence[Name]) -> None:
        """Set the names of the home for HOME_SLOTS, from the next window on. Names that the bundle
        cannot write are left out. Any thread."""
        if self._network.rebuild is None:
            return
        home: dict[str, list[str]] = {}
        for name, tier in names:
            words = spoken(name).split()
            if words and all(map(self._can_write, words)):
                for slot in (slot for slot, tiers in HOME_SLOTS.items() if tier in tiers):
                    home.setdefault(slot, []).append(name)
        self._renewed = self._network.rebuild(home)

    def warm_up(self) -> None:
        """Search once: the first search is slower, because it allocates arrays."""
        self._search(-math.inf)

    def find(
        self, written: Decoded, should_continue: Callable[[], bool] = lambda: True
    ) -> Phrase | None:
        """Return the likeliest sentence for the states of which the decoder just wrote `written`,
        or None if none was found.

        `should_continue` is called before each step and may end the search. Raises ModelError.
        """
        if renewed := self._renewed:
            self._network, self._renewed, self._followers = renewed, None, {}
        self.evidence, self.candidates = None, ()
        free = sum(written.logprobs)
        scores = self._search(free, -free / len(written.logprobs), should_continue)
        # add up the ways to write one sentence: case, punctuation
        sentences: dict[str, float] = {}
        lengths: dict[str, int] = {}
        for tokens, score in scores.items():
            words = plain(self._tokenizer.detokenize(tokens))
            sentences[words] = float(np.logaddexp(sentences.get(words, -math.inf), score))
            lengths[words] = min(len(tokens), lengths.get(words, len(tokens)))
        if not sentences:
            return None
        within = float(np.logaddexp.reduce(list(sentences.values())))
        found = []
        for words in sorted(sentences, key=sentences.__getitem__, reverse=True)[:CANDIDATES]:
            slots = self._network.parse(words.split())
            if slots is None:
                break
            share = min(1.0, math.exp(sentences[words] - within))
            mean = sentences[words] / (lengths[words] + 1)
            lead = free - sentences[words]
            confidence = self._bundle.phrase_confidence(share, mean, lead)
            self.evidence = self.evidence or Evidence(words, share, mean, lead, confidence)
            found.append(Phrase(words, str(slots.pop("")), slots, confidence))
        self.candidates = tuple(found)
        return found[0] if found and found[0].confidence >= FLOOR else None

    def continues(self, phrase: Phrase) -> bool:
        """True if a longer sentence begins with the one that `find` found last."""
        return self._network.is_beginning(phrase.sentence.split())

    def _search(
        self,
        free: float,
        hope: float = 0.0,
        should_continue: Callable[[], bool] = lambda: True,
    ) -> dict[Tokens, float]:
        """Tokens of complete sentences with their natural log-probability, end-of-text's included.

        `free` is the log-probability of the free text, and `hope` the cost of each of its tokens.
        Best-first search: the likeliest prefix is continued first. `hope` for each token keeps
        longer prefixes ahead of shorter ones that only look likelier because they are short.
        """
        decoder, prompt, end = self._decoder, self._decoder.prompt, self._bundle.tokens.end_of_text
        cache = decoder.restart()
        found: dict[Tokens, float] = {}
        waiting = [_Prefix(0.0, 0, 0.0, (), (), frozenset([(START, ())]))]
        number = steps = 0
        until_s = time.thread_time() + WITHIN_S
        while waiting and steps < self.steps and should_continue():
            if steps >= STEPS_AT_LEAST and time.thread_time() >= until_s:
                break
            _, _, score, known, chain, items = heapq.heappop(waiting)
            if score < max(free, max(found.values(), default=free)) - WORSE_BY:
                continue
            tokens = (*known, *chain)
            if len(prompt) + len(tokens) >= decoder.capacity:
                continue
            # one pass computes the whole chain: row n tells what follows its token n
            odds = decoder.odds(cache, (*prompt, *tokens), max(1, len(chain)))
            steps += 1
            for row, token in enumerate(chain[1:]):
                score += odds.at(row, (token,))[0]
            followers, whole = self._follow(items)
            if whole:
                found[tokens] = score + odds.at(-1, (end,))[0]
            chances = odds.at(-1, tuple(followers))
            for (token, after), chance in zip(followers.items(), chances, strict=True):
                number += 1
                following = score + chance
                rank = -(following + hope * (len(tokens) + 1))
                heapq.heappush(
                    waiting, _Prefix(rank, number, following, tokens, *self._chain(token, after))
                )
        return found

    def _chain(self, token: int, items: Items) -> tuple[Tokens, Items]:
        """A token and those that must follow it, up to where sentences part or end; and the items
        there."""
        chain = [token]
        while len(chain) < self._rows_at_most:
            followers, whole = self._follow(items)
            if whole or len(followers) != 1:
                break
            ((token, items),) = followers.items()
            chain.append(token)
        return tuple(chain), items

    def _follow(self, items: Items) -> tuple[dict[int, Items], bool]:
        """The tokens that may come next, each with the items behind it; and whether a sentence may
        end here."""
        if (known := self._followers.get(items)) is not None:
            return known
        after: dict[int, set[tuple[int, tuple[int, ...]]]] = {}
        states = set()
        for state, left in items:
            if left:  # within a word
                after.setdefault(left[0], set()).add((state, left[1:]))
            else:
                states.add(state)
        reached = self._network.closure(states - {OVER})
        first = START in states
        whole = END in reached or OVER in states
        for state in reached:
            for word, end in self._network.words[state]:
                for tokens in self._write(word, first):
                    after.setdefault(tokens[0], set()).add((end, tokens[1:]))
        if END in reached and self._cased:
            for mark in ENDS[1:]:
                tokens = self._tokenizer.tokenize(mark)
                after.setdefault(tokens[0], set()).add((OVER, tokens[1:]))
        found = {token: frozenset(more) for token, more in after.items()}, whole
        self._followers[items] = found
        return found

    def _write(self, word: str, first: bool) -> list[tuple[int, ...]]:
        """The tokens of a word, in each way that the model may write it."""
        known = self._tokens.get((word, first))
        if known is None:
            forms = {word.lower()}
            if self._cased:
                forms |= {word} | ({word[:1].upper() + word[1:]} if first else set())
                if word.lower() == self._network.address.rpartition(" ")[2]:
                    forms |= {f"{form}," for form in forms}
            known = [self._tokenizer.tokenize(f" {form}") for form in sorted(forms)]
            if self._cased and (mark := MARKS.get(word.lower())):
                known.append(self._tokenizer.tokenize(mark))
            self._tokens[word, first] = known
        return known


def plain(text: str) -> str:
    """Return a text in lower case without punctuation, with single spaces between words."""
    text = text.lower()
    for word, mark in MARKS.items():
        text = text.replace(mark, f" {word} ")
    kept = "".join(letter if letter.isalnum() or letter in "'-" else " " for letter in text)
    return " ".join(kept.split())
