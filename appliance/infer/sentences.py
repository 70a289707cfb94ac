"""Files of expected sentences, and the network of words that they make.

A template has optional parts, alternatives and slots, like Home Assistant's: "turn (on|off) [the]
{area} lights". All templates together are one network. The values of a slot are in it once, however
often the slot is used, so that a network is no larger than its file.
"""

from __future__ import annotations

import functools
import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from appliance.errors import ConfigError
from appliance.infer.numbers import in_words, strange_letters
from appliance.records import Tier

VALUES_AT_MOST = 20_000
FILE_AT_MOST = 4 << 20
"""Bytes."""
WORDS_AT_MOST, WORDS_RECEIVED = 500_000, 20_000
"""Words of a network, with a slot's values wherever it is used: of a file, and of what a client
sends. This bounds the memory, and the time of a step in a search."""
LETTERS_AT_MOST = 64
"""Letters of a word, as in `config.is_word`: a longer one costs a tokenizer time, and nobody says
it."""
NESTED_AT_MOST = 20
"""Brackets within brackets."""
HOME_SLOTS = {
    "area": (Tier.USED_PLACE, Tier.PLACE),
    "name": (Tier.GUARDED, Tier.CALLED, Tier.OTHER, Tier.ALIAS),
}
"""Slots that Home Assistant's names of these tiers fill, unless the file defines them."""
MARKS = {"percent": "%", "degrees": "°"}
"""Words that models with punctuation may write as a mark after the number."""

_PIECE = re.compile(r"\s*(?:([\[\]()|])|\{([^{}]*)\}|([^\s\[\](){}|]+)|(\S))")
Value = str | int
State = tuple[int, int]
"""A state of the network, and within a slot the state that follows the slot; else 0."""
START, END = (0, 0), (1, 0)
RETURN = -1
"""Where a slot's values lead: to the state that follows the slot."""


@dataclass(slots=True)
class WordNetwork:
    """A nondeterministic finite automaton over words: each path from `START` to `END` is a
    sentence. A slot is an automaton of its own, which many transitions enter."""

    edges: list[list[tuple[str, int]]] = field(default_factory=lambda: [[], []])
    """Transitions of each state: a word, and the state that it leads to."""
    free: list[list[tuple[int, int, tuple[str, Value] | None]]] = field(
        default_factory=lambda: [[], []]
    )
    """Transitions of each state without a word: the next state, within a slot the state that
    follows it (else 0), and the slot with its value that this path means (slot "" is the sentence's
    name)."""
    sentences: int = 0
    most: int = WORDS_AT_MOST
    """Words that may still be added."""
    address: str = ""
    """What may precede every sentence, in lower case."""
    guarded: frozenset[str] = frozenset()
    """Names of groups, values of slots, and values of one slot (slot=value): sentences with one of
    them act on a lock, a door, an alarm or a valve."""
    spellings: dict[str, str] = field(default_factory=dict)
    """Numbers of the slots in words, in lower case, with their digits."""
    rebuild: Callable[[Mapping[str, Sequence[str]]], WordNetwork] | None = None
    """Builds it again with other names of the home; None if it uses none."""
    _numbers: re.Pattern[str] | None = None

    def count(self, words: int) -> None:
        """Count words to come. Raises ConfigError beyond `most`."""
        self.most -= words
        if self.most < 0:
            raise ConfigError(
                "expected fewer sentences and values, found so many that a search takes too long; "
                "a slot's values count wherever it is used"
            )

    def add_state(self) -> int:
        """Add a state and return it. Raises ConfigError beyond `most`."""
        self.count(1)
        self.edges.append([])
        self.free.append([])
        return len(self.edges) - 1

    def add_free(
        self, begin: int, end: int, meaning: tuple[str, Value] | None = None, *, after: int = 0
    ) -> None:
        """Add a transition without a word; with `after`, into a slot that leads there."""
        self.free[begin].append((end, after, meaning))

    def add_words(self, begin: int, text: str) -> int:
        """Add a path over each word of a text, and return where it ends."""
        for word in text.split():
            end = self.add_state()
            self.edges[begin].append((word, end))
            begin = end
        return begin

    def words(self, state: State) -> list[tuple[str, State]]:
        """The words that may follow a state, each with the state behind it; the last come first."""
        at, after = state
        return [(word, (end, after)) for word, end in reversed(self.edges[at])]

    def _steps(self, state: State) -> list[tuple[State, tuple[str, Value] | None]]:
        """The states that follow one without a word, each with what this means; the last come
        first."""
        at, after = state
        return [
            ((after, 0) if end == RETURN else (end, entered or after), meaning)
            for end, entered, meaning in reversed(self.free[at])
        ]

    def closure(self, states: Iterable[State]) -> frozenset[State]:
        """These states and all that are reached from them without a word."""
        found = set(states)
        left = list(found)
        while left:
            for end, _ in self._steps(left.pop()):
                if end not in found:
                    found.add(end)
                    left.append(end)
        return frozenset(found)

    def parse(self, words: Sequence[str]) -> dict[str, Value] | None:
        """Return the slots of a sentence and, as "", its name; None if it is not a sentence. If it
        can be read in several ways, the one that comes first in the file."""
        paths: list[tuple[State, int, dict[str, Value]]] = [(START, 0, {})]
        seen = set()
        """States with the words before them. Who comes there again finds nothing new, so that the
        work grows with the network and the sentence, not with the ways through it."""
        while paths:
            state, at, slots = paths.pop()
            if (state, at) in seen:
                continue
            seen.add((state, at))
            if state == END and at == len(words):
                return slots
            for end, meaning in self._steps(state):
                paths.append((end, at, slots | dict([meaning]) if meaning else slots))
            for word, end in self.words(state):
                if at < len(words) and word.lower() == words[at]:
                    paths.append((end, at + 1, slots))
        return None

    def following(self, words: Sequence[str]) -> set[str]:
        """Return the words, in lower case, with which sentences go on that begin with these."""
        states = self.closure([START])
        for spoken in words:
            states = self.closure(
                end for at in states for word, end in self.words(at) if word.lower() == spoken
            )
        return {word.lower() for at in states for word, _ in self.words(at)}

    def with_digits(self, sentence: str) -> str:
        """Return a sentence in lower case with digits in place of its slots' number words."""
        if self._numbers is None:
            longest = sorted(self.spellings, key=len, reverse=True)
            either = "|".join(map(re.escape, longest)) or "(?!)"
            self._numbers = re.compile(rf"(?<!\S)(?:{either})(?!\S)")
        return self._numbers.sub(lambda found: self.spellings[found[0]], sentence)


def read_phrases(
    path: Path | None,
    home: Mapping[str, Sequence[str]] | None = None,
    address: str = "",
    built_in: Path | None = None,
) -> WordNetwork:
    """Return the network of a file of sentences, and of the built-in file behind it; of that alone
    without a path.

    The file is TOML: [phrases] has lists of sentences under a name of your choice, [slots] the
    values of each slot: a list of texts, a table of values with the texts that mean them, or a
    range of whole numbers {from = 0, to = 100, step = 5}. `built_in = false` leaves out the
    built-in file. `guarded` lists names of sentences and values of slots (or slot=value) that open
    or close something. With `home`, names of the home are values of HOME_SLOTS. `address` may
    precede every sentence ([assist] phrase). Raises ConfigError, which names file and key.
    """
    if path is None:
        return build_network({}, address, home, built_in)
    try:
        table = parse_phrases(path.read_text("utf-8"))
        return build_network(table, address, home, built_in)
    except OSError as error:
        raise ConfigError(
            f"{path}: expected a readable file of sentences ([phrases] file), "
            f"found {error.strerror}"
        ) from None
    except (ConfigError, UnicodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_phrases(text: str) -> dict[str, Any]:
    """Return the tables of a file of sentences. Raises ConfigError."""
    if len(text.encode()) > FILE_AT_MOST:
        raise ConfigError(f"expected at most {FILE_AT_MOST >> 20} MB of sentences, found more")
    try:
        return tomllib.loads(unicodedata.normalize("NFC", text))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"expected TOML, found: {error}") from None


def build_network(
    table: Mapping[str, Any],
    address: str,
    home: Mapping[str, Sequence[str]] | None,
    built_in: Path | None = None,
    *,
    most: int = WORDS_AT_MOST,
) -> WordNetwork:
    """Return the network of the tables [phrases] and [slots], of at most `most` words; see
    `read_phrases`. Slots of the file go before names of the home, and these before slots of the
    built-in file."""
    phrases, slots = _tables(table)
    more, values = dict[str, Any](), dict[str, list[tuple[Value, str]]]()
    guarded = frozenset(table.get("guarded", ()))
    if built_in and table.get("built_in", True):
        shipped = parse_phrases(built_in.read_text("utf-8"))
        more, defaults = _tables(shipped)
        values = _read_slots(defaults)
        guarded |= frozenset(shipped.get("guarded", ()))
    network = WordNetwork(address=address.lower(), most=most, guarded=guarded)
    if home is not None:
        again = functools.partial(build_network, table, address)
        network.rebuild = functools.partial(again, built_in=built_in, most=most)
        for slot in HOME_SLOTS:
            names: list[tuple[Value, str]] = [(name, spoken(name)) for name in home.get(slot, ())]
            values[slot] = names or values.get(slot, [])
    given = _read_slots(slots).items()
    values |= {slot: own for slot, own in given if own or slot not in values}
    first = network.add_state()
    network.add_free(START[0], first)
    if address:
        network.add_free(network.add_words(START[0], address), first)
    unknown = {"name"} - slots.keys() if home is None else set[str]()
    known = {slot: texts for slot, texts in values.items() if slot not in unknown}
    _add_sentences(network, first, phrases, known)
    if not network.sentences and (table or not built_in):
        raise ConfigError(
            'expected sentences, found none; write for instance [phrases] light = ["turn on the '
            'light"]'
        )
    _add_sentences(network, first, more, values)
    if END in network.closure([(first, 0)]):
        raise ConfigError(
            "expected sentences of at least one word, found one that is optional as a whole"
        )
    return network


def _tables(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tables [phrases] and [slots]. Raises ConfigError."""
    if extra := sorted(table.keys() - {"phrases", "slots", "built_in", "guarded"}):
        raise ConfigError(f"expected the tables [phrases] and [slots], found [{extra[0]}]")
    phrases, slots = table.get("phrases", {}), table.get("slots", {})
    if not isinstance(phrases, dict) or not isinstance(slots, dict):
        raise ConfigError("expected the tables [phrases] and [slots], found other values")
    if not isinstance(table.get("built_in", True), bool):
        raise ConfigError("built_in: expected true or false, found something else")
    guarded = table.get("guarded", [])
    if not isinstance(guarded, list) or not all(isinstance(one, str) for one in guarded):
        raise ConfigError(
            "guarded: expected a list of names of [phrases] and values of [slots], found something "
            "else"
        )
    return phrases, slots


def _add_sentences(
    network: WordNetwork,
    first: int,
    phrases: Mapping[str, object],
    values: Mapping[str, list[tuple[Value, str]]],
) -> None:
    """Add the sentences of [phrases] from a state on. Raises ConfigError."""
    entries: dict[str, int] = {}
    for name, sentences in phrases.items():
        key = f"phrases.{name}"
        if not isinstance(sentences, list) or not all(isinstance(text, str) for text in sentences):
            raise ConfigError(f'{key}: expected a list of sentences in "", found something else')
        network.sentences += len(sentences)
        for number, sentence in enumerate(sentences, 1):
            try:
                begin = network.add_state()
                network.add_free(first, begin, ("", name))
                template = _Template(network, sentence, values, entries)
                network.add_free(template.build(begin), END[0])
            except ConfigError as error:
                raise ConfigError(f"{key}, sentence {number}: {error}") from None


def _read_slots(slots: Mapping[str, object]) -> dict[str, list[tuple[Value, str]]]:
    """Return the values of each slot, with the texts that mean them. Raises ConfigError."""
    values: dict[str, list[tuple[Value, str]]] = {}
    for name, given in slots.items():
        values[name] = list(_values(name, given))
        if sum(map(len, values.values())) > VALUES_AT_MOST:
            raise ConfigError(
                f"slots.{name}: expected at most {VALUES_AT_MOST} values in all slots, found more"
            )
    return values


def spoken(name: str) -> str:
    """Return a name of the home as words of a sentence."""
    return " ".join(re.sub(r"[^\w'-]|_", " ", name).split())


def _values(name: str, given: object) -> Iterator[tuple[Value, str]]:
    """The values of a slot, each with a text that means it."""
    key = f"slots.{name}"
    if isinstance(given, dict) and given.keys() & {"from", "to"}:
        yield from _numbers(key, given)
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
    if not texts and not (name in HOME_SLOTS and given == []):
        raise ConfigError(
            f"{key}: expected values, as a list or a table, found "
            + ("none" if isinstance(given, list | dict) else "something else")
        )
    for number, (value, text) in enumerate(texts, 1):
        if not isinstance(text, str) or not text.split():
            raise ConfigError(f"{key}, value {number}: expected words in quotes, found {text!r}")
        for word in text.split():
            _check_word(word, f"{key}, value {number}: ")
        yield value, text


def _numbers(key: str, given: Mapping[str, object]) -> Iterator[tuple[Value, str]]:
    """A range of whole numbers, in English words and in digits."""
    first, last, step = given.get("from"), given.get("to"), given.get("step", 1)
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (first, last, step))
    extra = given.keys() - {"from", "to", "step"}
    if extra or not whole:
        strange = f"the key {min(extra)}" if extra else "no whole numbers"
        raise ConfigError(f"{key}: expected {{from = 0, to = 100, step = 1}}, found {strange}")
    assert isinstance(first, int) and isinstance(last, int) and isinstance(step, int)
    if not (0 <= first <= last <= 999 and step >= 1):
        raise ConfigError(
            f"{key}: expected numbers from 0 to 999, the lesser first, and a step of at least 1, "
            f"found {first} to {last}, step {step}"
        )
    for number in range(first, last + 1, step):
        for text in (in_words(number), str(number)):
            yield number, text


def _check_word(word: str, key: str = "") -> None:
    """Raises ConfigError for a word that no model writes as one."""
    if strange_letters(word):
        raise ConfigError(f"{key}expected letters, digits, ' and - in a word, found {word[:40]!r}")
    if len(word) > LETTERS_AT_MOST:
        raise ConfigError(
            f"{key}expected at most {LETTERS_AT_MOST} letters in a word, found {len(word)}: "
            f"{word[:40]!r}"
        )


class _Template:
    """Parses the template of a sentence and adds it to a network (recursive descent)."""

    def __init__(
        self,
        network: WordNetwork,
        text: str,
        values: Mapping[str, list[tuple[Value, str]]],
        entries: dict[str, int],
    ) -> None:
        """`entries` are the first states of the slots that are in the network."""
        self._network, self._values, self._entries = network, values, entries
        self._pieces = [found.groups() for found in _PIECE.finditer(text)]
        self._at = self._depth = 0

    def build(self, begin: int) -> int:
        """Add the sentence from a state on, and return where it ends. Raises ConfigError."""
        end = self._alternatives(begin, "")
        if self._at < len(self._pieces):
            self._refuse("nothing to close")
        return end

    def _alternatives(self, begin: int, closing: str) -> int:
        """Alternatives between |, up to a closing bracket."""
        if self._depth > NESTED_AT_MOST:
            raise ConfigError(f"expected at most {NESTED_AT_MOST} brackets in one another")
        self._depth += 1
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
        self._depth -= 1
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
        network = self._network
        if name not in self._entries:
            entry = self._entries[name] = network.add_state()
            for value, text in self._values[name]:
                network.add_free(network.add_words(entry, text), RETURN, (name, value))
                if str(value).isdecimal():
                    network.spellings[text.lower()] = str(value)
        network.count(len(self._values[name]))
        end = network.add_state()
        network.add_free(state, self._entries[name], after=end)
        return end

    def _next(self) -> str | None:
        """The next piece if it is a bracket or a bar."""
        return self._pieces[self._at][0] if self._at < len(self._pieces) else None

    def _refuse(self, expected: str, found: str = "") -> None:
        found = found or self._next() or "the end"
        raise ConfigError(f"expected {expected}, found {found!r} as piece {self._at + 1}")


def plain(text: str) -> str:
    """Return a text in lower case without punctuation, with single spaces between words, composed:
    a Mac writes an umlaut as two characters."""
    text = unicodedata.normalize("NFC", text.lower()).replace("\u2019", "'")
    for word, mark in MARKS.items():
        text = text.replace(mark, f" {word} ")
    kept = "".join(letter if letter.isalnum() or letter in "'-" else " " for letter in text)
    return " ".join(kept.split())
