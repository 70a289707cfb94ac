"""What the house has said lately: a microphone hears it, too, and nothing may act on it."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

from appliance.infer import in_digits, plain

MOST_TEXTS = 20
SAME, MISHEARD, TEXT_MISHEARD = 0.76, 0.4, 0.75
"""Least share of letters in common: of two words that count as one, of a misheard word with the one
that was said, and of a misheard text with all that was said."""
TURNING = "on off up down open close closed lock unlock start stop yes no not an aus auf zu nicht"
"""Words that make another order of one: they count as heard well."""
_TURNING = frozenset(TURNING.split())


class Spoken:
    """Texts that loudspeakers of the home say or have just said. Any thread."""

    def __init__(
        self,
        share: Callable[[str, float], object] = lambda *_: None,
        is_heard: Callable[[float], bool] | None = None,
    ) -> None:
        """`share` gets what this room says, and until when, for the other rooms. `is_heard` tells
        if whatever is heard from a time on may be our own loudspeaker."""
        self._lock, self._share, self._is_heard = threading.Lock(), share, is_heard
        self._texts: deque[tuple[list[str], float]] = deque(maxlen=MOST_TEXTS)

    def note(self, text: str, until: float) -> None:
        """Remember a text that our own loudspeaker says, which may be heard until `until`, on
        time.monotonic()'s clock, and tell the other rooms."""
        self.remember(text, until)
        self._share(text, until)

    def remember(self, text: str, until: float) -> None:
        """Remember a text that another loudspeaker says; what was known of its end is forgotten."""
        if words := in_digits(plain(text)):
            with self._lock:
                kept = [one for one in self._texts if one[0] != words]
                self._texts = deque([*kept, (words, until)], MOST_TEXTS)

    def is_own(self, text: str, at: float, *, addressed: bool = False) -> bool:
        """Return True if a text heard at `at` is all or a part of one that may be heard then; also
        if our own loudspeaker may be heard, except for a text `addressed` to the home while it is
        known what the loudspeaker says. Of such a text one of these words must be the first."""
        heard, texts = in_digits(plain(text)), self._sounding(at)
        if self._is_heard and self._is_heard(at) and not (addressed and texts):
            return True
        if addressed:
            texts = [own for own in texts if any(_is_same(heard[0], one) for one in own)]
        return bool(heard) and any(_is_part(heard, own) for own in texts)

    def behind(self, text: str, at: float, begins: Callable[[str], object]) -> str:
        """Return what a person says to the home over what is being said: a text from the first word
        on at which it `begins`, if most words before that are said by a loudspeaker, and the home
        is not addressed there; else the text."""
        owns = [own for own in self._sounding(at)
                if not any(begins(" ".join(own[start:])) for start in range(len(own)))]  # fmt: skip
        words = text.split() if owns else []
        for count in range(1, len(words)):
            if begins(rest := " ".join(words[count:])):
                before = in_digits(plain(" ".join(words[:count])))
                same = (sum(any(_is_same(one, of) for of in own) for one in before) for own in owns)
                return rest if 2 * max(same) > len(before) else text
        return text

    def _sounding(self, at: float) -> list[list[str]]:
        """Return the words of each text that may be heard at a time."""
        with self._lock:
            return [words for words, until in self._texts if at < until]


def _is_part(heard: Sequence[str], own: Sequence[str]) -> bool:
    """Return True if a model may have written `heard` for a part of `own`: nearly all its letters
    are there in this order, and none of its words is clearly another one."""
    text, whole = "".join(heard), "".join(own)
    if len(heard) == 1 and not text.isdecimal():
        return any(_is_same(text, one) for one in own)
    same = SequenceMatcher(None, whole, text, autojunk=False).get_matching_blocks()
    return sum(block.size for block in same) >= TEXT_MISHEARD * len(text) and all(
        word in whole if word.isdecimal() else any(_is_same(word, one) for one in own)
        or (word not in _TURNING
            and (len(word) < 4 or any(_is_same(word, one, MISHEARD) for one in own)))
        for word in heard
    )  # fmt: skip


def _is_same(one: str, other: str, share: float = SAME) -> bool:
    """Return True for words that are equal or nearly, as a model may mishear them: "turn" and
    "turned", "of" and "off", but not "on" and "off", "fifteen" and "fifty", "lock" and "unlocked".
    """
    return one == other or SequenceMatcher(None, one, other, autojunk=False).ratio() >= share
