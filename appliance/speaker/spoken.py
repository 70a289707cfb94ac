"""What the house has said lately: a microphone hears it, too, and nothing may act on it."""

from __future__ import annotations

import threading
from collections import deque

from appliance.infer import plain

REMEMBERED_S = 5.0
"""A text is the house's own until so long after it has sounded."""
MOST_TEXTS = 20
ENDING = 2
"""Letters at the end of a word that a model may get wrong: "turn" for "turned"."""


class Spoken:
    """Texts that loudspeakers of the home say or have just said. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: deque[tuple[list[str], float]] = deque(maxlen=MOST_TEXTS)

    def note(self, text: str, until: float) -> None:
        """Remember a text that is being said until `until`, on time.monotonic()'s clock."""
        if words := plain(text).split():
            with self._lock:
                self._texts.append((words, until))

    def is_own(self, text: str, at: float) -> bool:
        """Return True if a text that was heard at `at` is, or is a part of, what is being said
        then or was in the last REMEMBERED_S. The ends of words need not be the same."""
        heard = plain(text).split()
        with self._lock:
            texts = [words for words, until in self._texts if at < until + REMEMBERED_S]
        return bool(heard) and any(_contains(words, heard) for words in texts)


def _contains(words: list[str], heard: list[str]) -> bool:
    starts = range(len(words) - len(heard) + 1)
    return any(all(map(_is_same, words[start:], heard)) for start in starts)


def _is_same(one: str, other: str) -> bool:
    """Return True for equal words, and for those of which one is the other with an ending."""
    short, long = sorted((one, other), key=len)
    return long == short or (
        len(short) > ENDING and long.startswith(short) and len(long) - len(short) <= ENDING
    )
