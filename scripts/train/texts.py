"""Seeded sentences for the embedded model: home commands, general English, word strings.

Every sentence is lower case and made of ``[a-z' ]`` alone; numbers are spelled out. Each belongs to
one split for good, by a hash of its text, so that a dev or test sentence never occurs in training.
Sentences of at most four words ("stop", "turn on the lights") are training sentences always:
there are few of them, and an appliance must know them all.
"""

# ruff: noqa: SIM905  (word lists kept narrow)

import random
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHORT_WORDS = 4
HELD_OUT_OF_100 = {"dev": range(3), "test": range(3, 6)}
LONGEST_CHARS = 118
"""About 7 s of speech at the usual 16 to 17 characters per second."""

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()
SPELLED = "bcdefghijklmnopqrstuvwxyz"
"""Letters read aloud as letters. A lone "a" is an article to most synthesisers."""


def spell_number(n: int) -> str:
    """Give the English words of `n`, 0 to 999, without "and"."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (f" {ONES[n % 10]}" if n % 10 else "")
    rest = f" {spell_number(n % 100)}" if n % 100 else ""
    return f"{ONES[n // 100]} hundred{rest}"


def split_of(sentence: str) -> str:
    """Give the one split a sentence belongs to: "train", "dev" or "test"."""
    if len(sentence.split()) <= SHORT_WORDS:
        return "train"
    bucket = zlib.crc32(sentence.encode()) % 100
    return next((name for name, held in HELD_OUT_OF_100.items() if bucket in held), "train")


def _read_rules(path: Path, mark: str) -> dict[str, list[str]]:
    rules: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        name, body = line.split(mark, 1)
        alternatives = rules.setdefault(name.strip(), [])
        for item in body.split("|") if mark == "=" else body.split():
            text, _, weight = item.strip().partition("*")
            alternatives += [text] * int(weight or 1)
    return rules


class Grammar:
    """Rules of grammar.txt over the word classes of words.txt, and the random source."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        words = _read_rules(HERE / "words.txt", ":")
        words["when"] = WHEN
        self.rules = words | _read_rules(HERE / "grammar.txt", "=")
        self.vocabulary = sorted({w for name in words if name != "when" for w in words[name]})

    def sentence(self) -> str:
        """Draw one sentence: 57 % commands, 25 % general, 18 % word strings and lists."""
        draw = self.rng.random()
        if draw < 0.44:
            return self.expand("{command}")
        if draw < 0.57:
            return self.expand("{polite}")
        if draw < 0.82:
            return self.expand("{general}")
        if draw < 0.95:
            count = self.rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 10))
            return " ".join(self.rng.choices(self.vocabulary, k=count))
        if draw < 0.975:
            return self.expand("{spell}")
        return " ".join(self.expand("{n0}") for _ in range(self.rng.randint(2, 6)))

    def expand(self, text: str) -> str:
        """Replace every slot and option of `text` by random alternatives, innermost last."""
        text = re.sub(r"\[([^]]*)\]", lambda m: m[1] if self.rng.random() < 0.5 else "", text)
        text = re.sub(r"\{(\w+)\}", lambda m: self.expand(self._alternative(m[1])), text)
        return " ".join(text.split())

    def _alternative(self, slot: str) -> str:
        rng = self.rng
        drawn = {
            "n0": lambda: spell_number(rng.randint(0, 100)),
            "n1": lambda: spell_number(rng.randint(1, 20)),
            "n12": lambda: spell_number(rng.randint(1, 12)),
            "hundreds": lambda: spell_number(rng.randint(100, 999)),
            "pct": self._percent,
            "deg": lambda: f"{spell_number(rng.randint(15, 27))} degrees",
            "digits": lambda: " ".join(rng.choices(ONES[:10], k=rng.randint(2, 8))),
            "spell": lambda: " ".join(rng.choices(SPELLED, k=rng.randint(2, 6))),
            "clock": self._clock,
        }
        return drawn[slot]() if slot in drawn else rng.choice(self.rules[slot])

    def _percent(self) -> str:
        step = self.rng.choice((5, 10, 10, 1))
        return f"{spell_number(self.rng.randrange(step, 101, step))} percent"

    def _clock(self) -> str:
        rng = self.rng
        hour, minute = ONES[rng.randint(1, 12)], spell_number(rng.choice((5, 10, 15, 20, 25)))
        forms = (
            hour,
            f"{hour} o'clock",
            f"{hour} {spell_number(rng.randrange(10, 60))}",
            f"{hour} {spell_number(rng.choice((15, 30, 45)))}",
            f"half past {hour}",
            f"a quarter {rng.choice(('to', 'past'))} {hour}",
            f"{minute} {rng.choice(('to', 'past'))} {hour}",
            f"{hour} in the {rng.choice(('morning', 'evening', 'afternoon'))}",
            rng.choice(("noon", "midnight", f"{hour} thirty")),
        )
        return rng.choice(forms)


WHEN = [
    *(
        "today yesterday tomorrow tonight now later then here there everywhere outside inside"
    ).split(),
    *("upstairs", "downstairs", "yesterday evening", "last week", "last night", "next month"),
    *("this morning", "every day", "right away", "before dinner", "after lunch", "a long time ago"),
]
"""Adverbs of time and place, some of more than one word."""


def sentences(seed: int, split: str) -> Iterator[str]:
    """Yield random sentences of one split without end, the same ones for the same seed.

    About one in seven joins two or three sentences, each of them from the same split (or short).
    """
    grammar = Grammar(random.Random(f"{split}-{seed}"))
    while True:
        count = grammar.rng.choice((1,) * 12 + (2, 3))
        parts = [grammar.sentence() for _ in range(count)]
        joined = grammar.rng.choice((" ", " ", " and ", " then ")).join(parts)
        usable = all(split_of(p) == split or len(p.split()) <= SHORT_WORDS for p in parts)
        if usable and split_of(joined) == split and len(joined) <= LONGEST_CHARS:
            yield joined


def commands(seed: int, split: str) -> Iterator[str]:
    """Yield home commands of one split, each once: what the model is for, and nothing else."""
    grammar = Grammar(random.Random(f"commands-{split}-{seed}"))
    given: set[str] = set()
    while True:
        text = grammar.expand("{command}")
        if split_of(text) == split and text not in given and len(text) <= LONGEST_CHARS:
            given.add(text)
            yield text
