"""Sentences that a home expects: a file of them, and which of them a window says.

A sentence has optional parts, alternatives and slots, as Home Assistant's sentence templates:
"turn (on|off) [the] {area} lights". All of them together are one network of words, so that a slot
with a thousand values is there once. The decoder scores what may follow a beginning in one step;
the likeliest beginning goes on first (best-first search), and what the network of words does not
allow is never asked for. The probability of the best sentence is weighed against those of the
others that were found and against the free text's: "none of them" is an answer, too.

Over 500 lines because a sentence is written, followed and weighed in one network's terms.
"""

from __future__ import annotations

import functools
import heapq
import math
import re
import time
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from appliance.errors import ConfigError
from appliance.infer.decoder import Decoded, Decoder
from appliance.infer.network import SHARED_ROWS
from appliance.infer.tokenizer import Tokenizer
from appliance.model import Bundle
from appliance.records import Name, Phrase, Tier

SENTENCES_AT_MOST = 20_000
VALUES_AT_MOST = 20_000
FILE_AT_MOST = 4 << 20
"""Bytes."""
WITHIN_S = 0.1
STEPS_AT_LEAST, STEPS_AT_MOST = 24, 48
"""Steps of the decoder in a search; between these as many as fit into WITHIN_S of the thread's CPU
time, which depends little on what else the machine does. On 72 recordings the built-in model finds
the same sentences of at least 70 % with 24, 48 and 200 steps. `phrase_confidence` is fitted to
searches of 48: with fewer the likeliest sentence meets fewer rivals and seems surer."""
WORSE_BY = 15.0
"""A beginning that is so much less likely (natural logarithm) than a whole sentence, or than what
was written freely, is left."""
FLOOR = 0.02
"""A sentence of less confidence is not spoken of."""
HOME_SLOTS = {
    "area": (Tier.USED_PLACE, Tier.PLACE),
    "name": (Tier.CALLED, Tier.OTHER, Tier.ALIAS),
}
"""Slots that Home Assistant's names fill where a file has none of that name: tiers of them."""
MARKS = {"percent": "%", "degrees": "°"}
"""Words that models with punctuation may write as a mark behind the number."""
ENDS = ("", ".", "?", "!")
"""What models that write punctuation put behind a sentence."""

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
"""Places in the network of words, each with the tokens that are left of the word before it."""


@dataclass(slots=True)
class Network:
    """A network of words: a nondeterministic finite automaton. A path from `START` to `END` is a
    sentence."""

    words: list[list[tuple[str, int]]] = field(default_factory=lambda: [[], []])
    """Of each place, the words that may follow and where they lead."""
    free: list[list[tuple[int, tuple[str, Value] | None]]] = field(default_factory=lambda: [[], []])
    """Of each place, where one gets without a word, and the slot and its value (or the name of the
    sentence, as the slot "") that this way means."""
    sentences: int = 0
    address: str = ""
    """What may stand in front of every sentence, in lower case."""
    again: Callable[[Mapping[str, Sequence[str]]], Network] | None = None
    """Makes it anew with other names of the home; None where there are none."""

    def place(self) -> int:
        """A new place."""
        self.words.append([])
        self.free.append([])
        return len(self.words) - 1

    def skip(self, begin: int, end: int, meaning: tuple[str, Value] | None = None) -> None:
        """A way from `begin` to `end` without a word."""
        self.free[begin].append((end, meaning))

    def say(self, begin: int, text: str) -> int:
        """A way from `begin` over each word of a text; where it ends."""
        for word in text.split():
            end = self.place()
            self.words[begin].append((word, end))
            begin = end
        return begin

    def reach(self, places: Iterable[int]) -> frozenset[int]:
        """These places and all that are reached from them without a word."""
        found = set(places)
        left = list(found)
        while left:
            for end, _ in self.free[left.pop()]:
                if end not in found:
                    found.add(end)
                    left.append(end)
        return frozenset(found)

    def meaning(self, words: Sequence[str]) -> dict[str, Value] | None:
        """The slots of a sentence and, as "", its name; None when it is none. Of several ways that
        the sentence can be meant, the one that the file names first."""
        ways: list[tuple[int, int, dict[str, Value]]] = [(START, 0, {})]
        while ways:
            place, at, slots = ways.pop()
            if place == END and at == len(words):
                return slots
            for end, meaning in reversed(self.free[place]):
                ways.append((end, at, slots | dict([meaning]) if meaning else slots))
            for word, end in reversed(self.words[place]):
                if at < len(words) and word.lower() == words[at]:
                    ways.append((end, at + 1, slots))
        return None

    def is_beginning(self, words: Sequence[str]) -> bool:
        """True where a sentence goes on after these words."""
        places = self.reach([START])
        for wanted in words:
            ends = [end for at in places for word, end in self.words[at] if word.lower() == wanted]
            places = self.reach(ends)
        return any(self.words[at] for at in places)


START, END, OVER = 0, 1, -1
"""The last is behind a sentence's full stop."""


def read_phrases(
    path: Path, home: Mapping[str, Sequence[str]] | None = None, address: str = ""
) -> Network:
    """The network of words of a file; with `home`, names of the home are values of HOME_SLOTS.
    `address` may stand in front of every sentence ([assist] phrase).

    The file is TOML: [phrases] has lists of sentences by a name of your choice, [slots] the values
    of each slot: a list of texts, a table of values with the texts that mean them, or a range of
    whole numbers {from = 0, to = 100, step = 5}. Raises ConfigError, which names file and place.
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
        return _network(table, address, home)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _network(
    table: Mapping[str, Any], address: str, home: Mapping[str, Sequence[str]] | None
) -> Network:
    if extra := sorted(table.keys() - {"phrases", "slots"}):
        raise ConfigError(f"expected the tables [phrases] and [slots], found [{extra[0]}]")
    phrases, slots = table.get("phrases", {}), table.get("slots", {})
    if not isinstance(phrases, dict) or not isinstance(slots, dict):
        raise ConfigError("expected the tables [phrases] and [slots], found other values")
    values = {name: list(_values(name, given)) for name, given in slots.items()}
    network = Network(address=address.lower())
    first = network.place()
    network.skip(START, first)
    if address:
        network.skip(network.say(START, address), first)
    if home is not None:
        network.again = functools.partial(_network, table, address)
        for slot in HOME_SLOTS.keys() - values.keys():
            values[slot] = [(name, spoken(name)) for name in home.get(slot, ())]
    for name, sentences in phrases.items():
        place = f"phrases.{name}"
        if not isinstance(sentences, list) or not all(isinstance(one, str) for one in sentences):
            raise ConfigError(f'{place}: expected a list of sentences in "", found something else')
        network.sentences += len(sentences)
        if network.sentences > SENTENCES_AT_MOST:
            raise ConfigError(
                f"{place}: expected at most {SENTENCES_AT_MOST} sentences in all, found more; "
                "put what varies into a slot"
            )
        for number, sentence in enumerate(sentences, 1):
            begin = network.place()
            network.skip(first, begin, ("", name))
            try:
                network.skip(_Template(network, sentence, values).build(begin), END)
            except ConfigError as error:
                raise ConfigError(f"{place}, sentence {number}: {error}") from None
    if not network.sentences:
        raise ConfigError(
            'expected sentences, found none; write for instance [phrases] light = ["turn on the '
            'light"]'
        )
    if END in network.reach([first]):
        raise ConfigError(
            "expected sentences of at least one word, found one that is optional as a whole"
        )
    return network


def spoken(name: str) -> str:
    """A name of the home as words of a sentence."""
    return " ".join(re.sub(r"[^\w'-]|_", " ", name).split())


def _values(name: str, given: object) -> Iterator[tuple[Value, str]]:
    """The values of a slot, each with a text that means it."""
    place = f"slots.{name}"
    if isinstance(given, dict) and given.keys() & {"from", "to"}:
        yield from _numbers(place, given)
        return
    texts: list[tuple[Value, object]] = []
    if isinstance(given, list):
        texts = [(one, one) for one in given]
    elif isinstance(given, dict):
        texts = [
            (value, one)
            for value, more in given.items()
            for one in (more if isinstance(more, list) else [more])
        ]
    if not texts:
        raise ConfigError(
            f"{place}: expected values, as a list or a table, found "
            + ("none" if isinstance(given, list | dict) else "something else")
        )
    if len(texts) > VALUES_AT_MOST:
        raise ConfigError(f"{place}: expected at most {VALUES_AT_MOST} values, found {len(texts)}")
    for number, (value, text) in enumerate(texts, 1):
        if not isinstance(text, str) or not text.split():
            raise ConfigError(f"{place}, value {number}: expected words in quotes, found {text!r}")
        for word in text.split():
            _check_word(word, f"{place}, value {number}: ")
        yield value, text


def _numbers(place: str, given: Mapping[str, object]) -> Iterator[tuple[Value, str]]:
    """A range of whole numbers, in words and in digits."""
    first, last, step = given.get("from"), given.get("to"), given.get("step", 1)
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in (first, last, step))
    extra = given.keys() - {"from", "to", "step"}
    if extra or not whole:
        raise ConfigError(
            f"{place}: expected {{from = 0, to = 100, step = 1}}, found {dict(given)}"
        )
    assert isinstance(first, int) and isinstance(last, int) and isinstance(step, int)
    if not (0 <= first <= last <= 999 and step >= 1):
        raise ConfigError(
            f"{place}: expected numbers from 0 to 999, the lesser first, and a step of at least 1, "
            f"found {dict(given)}"
        )
    for number in range(first, last + 1, step):
        yield number, in_words(number)
        yield number, str(number)


def in_words(number: int) -> str:
    """A number from 0 to 999 in English words, without "and"."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + (f" {_ONES[number % 10]}" if number % 10 else "")
    rest = f" {in_words(number % 100)}" if number % 100 else ""
    return f"{_ONES[number // 100]} hundred{rest}"


def _check_word(word: str, place: str = "") -> None:
    """Raises ConfigError for a word that no model writes as one."""
    if not all(letter.isalnum() or letter in "'-" for letter in word):
        raise ConfigError(
            f"{place}expected letters, digits, ' and - in a word, found {word[:40]!r}"
        )


class _Template:
    """A sentence as it is written, becoming a part of a network."""

    def __init__(
        self, network: Network, text: str, values: Mapping[str, list[tuple[Value, str]]]
    ) -> None:
        self._network, self._values = network, values
        self._pieces = [found.groups() for found in _PIECE.finditer(text)]
        self._at = 0

    def build(self, begin: int) -> int:
        """Where the sentence ends that begins at a place."""
        end = self._alternatives(begin, "")
        if self._at < len(self._pieces):
            self._refuse("nothing to close")
        return end

    def _alternatives(self, begin: int, closing: str) -> int:
        """What stands between | up to a closing bracket."""
        end = self._network.place()
        while True:
            first = self._network.place()
            self._network.skip(begin, first)
            self._network.skip(self._sequence(first), end)
            if self._next() != "|":
                break
            self._at += 1
        if closing:
            if self._next() != closing:
                self._refuse(f"{closing} for what was opened")
            self._at += 1
        return end

    def _sequence(self, place: int) -> int:
        """What stands one after the other."""
        while self._at < len(self._pieces) and self._next() not in ("|", "]", ")"):
            mark, slot, word, other = self._pieces[self._at]
            self._at += 1
            if mark:
                end = self._alternatives(place, {"[": "]", "(": ")"}[mark])
                if mark == "[":
                    self._network.skip(place, end)
                place = end
            elif slot is not None:
                place = self._slot(place, slot.strip())
            elif word:
                _check_word(word)
                place = self._network.say(place, word)
            else:
                self._at -= 1
                self._refuse("a slot as {area}", other)
        return place

    def _slot(self, place: int, name: str) -> int:
        if name not in self._values:
            near = get_close_matches(name, self._values, 1)
            fix = f"; {near[0]}?" if near else f"; add {name} to [slots]"
            raise ConfigError(f"expected a slot that [slots] names, found {{{name}}}{fix}")
        end = self._network.place()
        for value, text in self._values[name]:
            self._network.skip(self._network.say(place, text), end, (name, value))
        return end

    def _next(self) -> str | None:
        """The bracket or bar that comes next."""
        return self._pieces[self._at][0] if self._at < len(self._pieces) else None

    def _refuse(self, expected: str, found: str = "") -> None:
        found = found or self._next() or "the end"
        raise ConfigError(f"expected {expected}, found {found!r} as piece {self._at + 1}")


class Evidence(NamedTuple):
    """What tells of the likeliest sentence whether it was said."""

    sentence: str
    share: float
    """Of the probability of all sentences that were found, 0..1."""
    mean: float
    """Mean natural log-probability of its tokens."""
    lead: float
    """Natural log-probability of the free text minus the sentence's."""
    confidence: float


class _Beginning(NamedTuple):
    """Of sentences, and what is known of it. The least goes first."""

    rank: float
    number: int
    """No two have the same."""
    score: float
    """Natural log-probability up to the chain's first token."""
    tokens: Tokens
    chain: Tokens
    """Those behind them, of which the decoder knows none."""
    items: Items
    """Where the sentences go on."""


class Phrases:
    """The sentences of a network in a bundle's tokens. One thread, the decoder's."""

    def __init__(
        self, network: Network, bundle: Bundle, tokenizer: Tokenizer, decoder: Decoder
    ) -> None:
        """Raises ConfigError for a word that the bundle cannot write."""
        self._network, self._bundle, self._tokenizer = network, bundle, tokenizer
        self._decoder = decoder
        self._cased = tokenizer.cased
        self._tokens: dict[tuple[str, bool], list[tuple[int, ...]]] = {}
        self._followers: dict[Items, tuple[dict[int, Items], bool]] = {}
        self.steps = STEPS_AT_MOST
        """At most so many steps of the decoder for a window, each of one or several tokens."""
        self.evidence: Evidence | None = None
        """Of what the last `find` found, spoken of or not."""
        self._kept = set(map(int, bundle.kept))
        self._renewed: Network | None = None
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
            one.isalpha() and "LATIN" not in unicodedata.name(one, "") for one in word
        )
        return not strange and all(
            self._kept.issuperset(tokens) for tokens in self._write(word, False)
        )

    def set_names(self, names: Sequence[Name]) -> None:
        """The names of the home, for the slots of HOME_SLOTS; those that the bundle cannot write
        are left out. Any thread; it holds from the next window on."""
        if self._network.again is None:
            return
        home: dict[str, list[str]] = {}
        for name, tier in names:
            said = spoken(name).split()
            if said and all(map(self._can_write, said)):
                for slot in (slot for slot, tiers in HOME_SLOTS.items() if tier in tiers):
                    home.setdefault(slot, []).append(name)
        self._renewed = self._network.again(home)

    def warm_up(self) -> None:
        """Searches once: the first search is slower, because it allocates arrays."""
        self._search(-math.inf)

    def find(
        self, written: Decoded, should_continue: Callable[[], bool] = lambda: True
    ) -> Phrase | None:
        """The likeliest sentence for the states of which the decoder wrote `written` just before,
        or None when none was found. Asked before each step, `should_continue` may end the search.
        Raises ModelError.
        """
        if renewed := self._renewed:
            self._network, self._renewed, self._followers = renewed, None, {}
        self.evidence = None
        free = sum(written.logprobs)
        scores = self._search(free, -free / len(written.logprobs), should_continue)
        sentences: dict[str, float] = {}
        lengths: dict[str, int] = {}
        for tokens, score in scores.items():
            words = plain(self._tokenizer.detokenize(tokens))
            sentences[words] = float(np.logaddexp(sentences.get(words, -math.inf), score))
            lengths[words] = min(len(tokens), lengths.get(words, len(tokens)))
        best = max(sentences, key=sentences.__getitem__, default="")
        slots = self._network.meaning(best.split())
        if slots is None:
            return None
        total = float(np.logaddexp.reduce(list(sentences.values())))
        share = min(1.0, math.exp(sentences[best] - total))
        if plain(self._tokenizer.detokenize(written.tokens)) not in sentences:
            total = float(np.logaddexp(total, free))
        share_of_all = min(1.0, math.exp(sentences[best] - total))
        mean = sentences[best] / (lengths[best] + 1)
        lead = free - sentences[best]
        confidence = self._bundle.phrase_confidence(share, share_of_all, mean, lead)
        self.evidence = Evidence(best, share, mean, lead, confidence)
        name = str(slots.pop(""))
        return Phrase(best, name, slots, confidence) if confidence >= FLOOR else None

    def continues(self, phrase: Phrase) -> bool:
        """True if a longer sentence begins with the one that `find` found last."""
        return self._network.is_beginning(phrase.sentence.split())

    def _search(
        self,
        free: float,
        hope: float = 0.0,
        should_continue: Callable[[], bool] = lambda: True,
    ) -> dict[Tokens, float]:
        """Tokens of whole sentences with the logarithm of their probability, end-of-text's
        included; `free` is that of the text, and `hope` what each of its tokens cost.

        The likeliest beginning is gone on with first (best-first search), longer ones before
        shorter ones that are ahead by less than `hope` a token, to where sentences part.
        """
        decoder, prompt, end = self._decoder, self._decoder.prompt, self._bundle.tokens.end_of_text
        cache = decoder.again()
        found: dict[Tokens, float] = {}
        waiting = [_Beginning(0.0, 0, 0.0, (), (), frozenset([(START, ())]))]
        asked = steps = 0
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
            odds = decoder.odds(cache, (*prompt, *tokens), max(1, len(chain)))
            steps += 1
            for row, token in enumerate(chain[1:]):
                score += odds.at(row, (token,))[0]
            followers, whole = self._follow(items)
            if whole:
                found[tokens] = score + odds.at(-1, (end,))[0]
            chances = odds.at(-1, tuple(followers))
            for (token, after), chance in zip(followers.items(), chances, strict=True):
                asked += 1
                one = score + chance
                rank = -(one + hope * (len(tokens) + 1))
                ahead = self._chain(token, after)
                heapq.heappush(waiting, _Beginning(rank, asked, one, tokens, *ahead))
        return found

    def _chain(self, token: int, items: Items) -> tuple[Tokens, Items]:
        """A token with those behind it up to where sentences part or end; and what comes then."""
        chain = [token]
        while len(chain) < SHARED_ROWS:
            followers, whole = self._follow(items)
            if whole or len(followers) != 1:
                break
            ((token, items),) = followers.items()
            chain.append(token)
        return tuple(chain), items

    def _follow(self, items: Items) -> tuple[dict[int, Items], bool]:
        """The tokens that may come next, with where they lead; and whether a sentence may end."""
        if (known := self._followers.get(items)) is not None:
            return known
        after: dict[int, set[tuple[int, tuple[int, ...]]]] = {}
        places = set()
        for place, left in items:
            if left:
                after.setdefault(left[0], set()).add((place, left[1:]))
            else:
                places.add(place)
        reached = self._network.reach(places - {OVER})
        first = START in places
        whole = END in reached or OVER in places
        for place in reached:
            for word, end in self._network.words[place]:
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
            forms = {word}
            if self._cased:
                forms |= {word.lower()} | ({word[:1].upper() + word[1:]} if first else set())
                if word.lower() == self._network.address.rpartition(" ")[2]:
                    forms |= {f"{form}," for form in forms}
            else:
                forms = {word.lower()}
            known = [self._tokenizer.tokenize(f" {form}") for form in sorted(forms)]
            if self._cased and (mark := MARKS.get(word.lower())):
                known.append(self._tokenizer.tokenize(mark))
            self._tokens[word, first] = known
        return known


def plain(text: str) -> str:
    """A text in lower case without punctuation, words between single spaces."""
    text = text.lower()
    for word, mark in MARKS.items():
        text = text.replace(mark, f" {word} ")
    kept = "".join(one if one.isalnum() or one in "'-" else " " for one in text)
    return " ".join(kept.split())
