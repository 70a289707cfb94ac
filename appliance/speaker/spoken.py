"""What the house has said lately: a microphone hears it, too, and nothing may act on it."""

import threading
from collections import deque
from collections.abc import Callable
from difflib import SequenceMatcher

from appliance.infer import plain

REMEMBERED_S = 5.0
"""A text is the house's own until so long after it has sounded."""
MOST_TEXTS = 20
SAME = 0.76
"""Share of the letters that two words have in common, from which on they count as one."""


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
        """Remember a text that our own loudspeaker says until `until`, on time.monotonic()'s
        clock, and tell the other rooms."""
        self.remember(text, until)
        self._share(text, until)

    def remember(self, text: str, until: float) -> None:
        """Remember a text that another loudspeaker says until then."""
        if words := plain(text).split():
            with self._lock:
                self._texts.append((words, until))

    def is_own(self, text: str, at: float, *, addressed: bool = False) -> bool:
        """Return True if a text that was heard at `at` is, or is a part of, what is being said
        then or was in the last REMEMBERED_S; or if our own loudspeaker may be heard, unless what it
        says is known and the text is `addressed` to the home."""
        heard, texts = plain(text).split(), self._sounding(at)
        if self._is_heard and self._is_heard(at) and not (addressed and texts):
            return True
        parts = (words[start:] for words in texts for start in range(len(words) - len(heard) + 1))
        return bool(heard) and any(all(map(_is_same, part, heard)) for part in parts)

    def behind(self, text: str, at: float, begins: Callable[[str], object]) -> str:
        """Return what a person says to the home over what is being said: a text from the first word
        on at which it `begins`, if most words before that are said by a loudspeaker, and the home
        is not addressed there; else the text."""
        owns = [own for own in self._sounding(at)
                if not any(begins(" ".join(own[start:])) for start in range(len(own)))]  # fmt: skip
        words = text.split() if owns else []
        for count in range(1, len(words)):
            if begins(rest := " ".join(words[count:])):
                before = plain(" ".join(words[:count])).split()
                same = (sum(any(_is_same(one, of) for of in own) for one in before) for own in owns)
                return rest if 2 * max(same) > len(before) else text
        return text

    def _sounding(self, at: float) -> list[list[str]]:
        """Return the words of each text that is being said at a time, or was shortly before."""
        with self._lock:
            return [words for words, until in self._texts if at < until + REMEMBERED_S]


def _is_same(one: str, other: str) -> bool:
    """Return True for words that are equal or nearly, as a model may mishear them: "turn" and
    "turned", "of" and "off", but not "on" and "off", "fifteen" and "fifty", "lock" and "unlocked".
    """
    return one == other or SequenceMatcher(None, one, other, autojunk=False).ratio() >= SAME
