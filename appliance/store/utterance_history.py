"""What this house has said: how often a text was all, and how often it was only the beginning.

In memory alone, made from the newest transcripts of the log and forgotten with them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

NEWEST = 2000
"""So many sentences are known, a month of commands..."""
LONGEST = 120
"""... of at most so many letters: 0.6 MB at most, 0.4 MB of commands."""
_WORDS = re.compile(r"[\w']+")


class Sentence(NamedTuple):
    """What is to be known of a transcript."""

    utterance_id: str
    window: int
    windows: int | None
    text: str
    continues: str | None


class Said:
    """The newest sentences, without case and punctuation. One thread."""

    def __init__(self, sentences: Iterable[Sentence] = (), most: int = NEWEST) -> None:
        self._most = most
        self._of: dict[str, str] = {}
        """The words of each utterance, the oldest first."""
        self._sorted: list[str] = []
        for sentence in sentences:
            self.add(sentence)

    def add(self, sentence: Sentence) -> None:
        """Takes in the next transcript.

        An utterance that goes on with the one before makes one sentence with it: what was taken to
        be whole was not. Of speech in several windows nothing is kept.
        """
        words = " ".join(_WORDS.findall(sentence.text.casefold()))
        if sentence.continues:
            begun = self._forget(sentence.continues)
            words = f"{begun} {words}" if begun and words else ""
        alone = sentence.window == sentence.windows == 1
        if not (alone and words and len(words) <= LONGEST):
            return
        self._forget(sentence.utterance_id)
        self._of[sentence.utterance_id] = words
        insort(self._sorted, words)
        if len(self._of) > self._most:
            self._forget(next(iter(self._of)))

    def counts(self, text: str) -> tuple[int, int]:
        """How often this text was a whole sentence, and how often others began with it."""
        words = " ".join(_WORDS.findall(text.casefold()))
        if not words:
            return 0, 0
        # of a single word (or a language without spaces) also what goes on within it
        begins = f"{words} " if " " in words else words
        first = bisect_left(self._sorted, words)
        whole = bisect_left(self._sorted, words + "\0") - first
        beginning = bisect_left(self._sorted, begins)
        end = bisect_left(self._sorted, begins + "\U0010ffff")
        return whole, end - beginning - (whole if begins == words else 0)

    def _forget(self, utterance_id: str) -> str:
        """Removes a sentence; its words, or nothing where it is not known."""
        words = self._of.pop(utterance_id, "")
        if words:
            del self._sorted[bisect_left(self._sorted, words)]
        return words
