"""How an expected sentence differs, in words, from the text that the model wrote.

The words that turn an order into something else (a negation, a past form, another number) are known
for English alone. In other languages, words that were added, left out or changed still count.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from appliance.infer.numbers import in_words

FREE = "the a an of my some please and so well okay ok now uh um"
"""Words that change nothing where they are added or left out."""
TURNING = (
    "not don't dont never except but or if when unless until before after did who why half quarter "
    "past without instead already have has had was were will should would because ago yesterday"
)
"""Words that make something else of an order."""
_FREE, _TURNING = frozenset(FREE.split()), frozenset(TURNING.split())
IRREGULAR = {"make": "made", "wake": "woke", "take": "took", "send": "sent", "run": "ran"}
"""Past forms of verbs in the built-in sentences; all others end in "ed"."""
_NUMBERS = {in_words(number): str(number) for number in range(1000)}
_NUMBER_WORDS = frozenset(word for text in _NUMBERS for word in text.split())
_LONGEST = max(len(text.split()) for text in _NUMBERS)


class Wording(NamedTuple):
    """What a text has and a sentence has not, and the other way round. All 0: the same words."""

    added: float
    """Words of the text that the sentence lacks."""
    missing: float
    """Words of the sentence that the text lacks."""
    changed: float
    """Words that are others, each by the share of its letters that differs."""
    sense: float
    """Words that make something else of an order, and numbers, that only the text has."""


IN_FRONT = 0.5
"""What a word that is added in front counts: it may be a breath."""
MOST = Wording(4.0, 3.0, 4.0, 2.0)
"""The largest values: more differences say nothing more."""


def compare(text: str, sentence: str) -> Wording:
    """Return how a text differs from a sentence, both as `sentences.plain` gives them."""
    heard, wanted = in_digits(text), in_digits(sentence)
    added = missing = changed = 0.0
    matcher = SequenceMatcher(None, heard, wanted, autojunk=False)
    for kind, begin, end, first, last in matcher.get_opcodes():
        extra, lacking = heard[begin:end], wanted[first:last]
        bound = [sum(word not in _FREE for word in part) for part in (extra, lacking)]
        if kind == "insert":
            missing += bound[1]
        elif kind == "delete":
            added += bound[0] * (IN_FRONT if not begin else 1.0)
        elif kind == "replace" and any(bound):
            letters = SequenceMatcher(None, "".join(extra), "".join(lacking), autojunk=False)
            changed += (1 - letters.ratio()) * max(len(extra), len(lacking))
    only = set(heard) - set(wanted)
    lost = set(wanted) - set(heard)
    sense = len(only & _TURNING) + any(_is_past(other, word) for other in only for word in lost)
    numbers = ["".join(filter(str.isdecimal, words)) for words in (heard, wanted)]
    sense += bool(numbers[0]) and numbers[0] != numbers[1]
    return Wording(*map(min, (added, missing, changed, float(sense)), MOST))


def compare_letters(text: str, sentence: str) -> float:
    """Return the share of letters, 0..1, that a text and a sentence have in common, in their
    order; numbers count as digits."""
    heard, wanted = ("".join(in_digits(one)) for one in (text, sentence))
    return SequenceMatcher(None, heard, wanted, autojunk=False).ratio()


def past(verb: str) -> str:
    """Return the English past form of a verb; of other words something that nobody says."""
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    if re.fullmatch(r"[^aeiou]+[aeiou][^aeiouwxy]", verb):
        return f"{verb}{verb[-1]}ed"
    return f"{verb}d" if verb.endswith("e") else f"{verb}ed"


def _is_past(word: str, verb: str) -> bool:
    """True if a word is the past form of a verb, however its end is spelled."""
    stem = verb.removesuffix("e")
    regular = word.endswith("ed") and word.startswith(stem) and len(word) <= len(stem) + 3
    return regular or word == IRREGULAR.get(verb)


def in_digits(text: str) -> list[str]:
    """Return the words of a text, numbers in digits."""
    words = text.replace("what's", "what is").replace("hundred and ", "hundred ").split()
    found, at = list[str](), 0
    while at < len(words):
        length, number = _number(words[at:])
        found.append(number or words[at])
        at += max(1, length)
    return found


def _number(words: Sequence[str]) -> tuple[int, str]:
    """How many words at the beginning are one number, and its digits; 0 and "" if there is none."""
    if words[0] in _NUMBER_WORDS:
        for length in range(min(_LONGEST, len(words)), 0, -1):
            if number := _NUMBERS.get(" ".join(words[:length])):
                return length, number
    return 0, ""
