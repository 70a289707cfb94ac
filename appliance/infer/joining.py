"""Joins the texts of windows that share a little sound: what one repeats of the other is left out.

Speech without a pause is cut somewhere in a word, so the next window begins up to a second before
the cut (`Window.overlap_s`) and has the last words again. A word lost is worse than one doubled:
wherever the two texts do not agree, all of the later one stays.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.records import Window

WORDS_PER_S, LETTERS_PER_S = 5.0, 9.0
"""Nobody talks faster for long: of so many words (of letters, where there are no spaces), and
one that is cut, an overlap can consist at most."""
UTTERED_PER_S = 3.0
"""What one says over and over ("no no no") comes at about this pace; where the texts alone cannot
show how often it was repeated, so many are taken for the overlap's."""
MISHEARD = 1
"""So many of the repeated words may differ, and so many after them be cut off at the seam."""
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
)
"""A letter of a script without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A word, or a letter where there are no spaces: how it compares, and where it ends."""

    letters: str
    end: int


def without_overlap(before: str, after: str, overlap_s: float) -> str:
    """`after` from the first word on that does not repeat the end of `before`.

    Compared without case and punctuation. Removed are the first words of `after` that are, in the
    same order, the last of `before`; one of them but the last may differ (misheard, or cut off by
    the window's edge), and `before` may have one more (cut off at the seam). Never more than
    `overlap_s` can hold; with 0, nothing.
    """
    if overlap_s <= 0:
        return after
    unspaced = is_unspaced(after)
    old, new = units(before, unspaced=unspaced), units(after, unspaced=unspaced)
    pace = LETTERS_PER_S if unspaced else WORDS_PER_S
    most = min(len(new), int(overlap_s * pace) + 1)
    count = repeated(
        [one.letters for one in old],
        [one.letters for one in new[:most]],
        least=2 if unspaced else 1,
    )
    if count > 1 and len({one.letters for one in new[:count]}) == 1:
        count = min(count, max(1, round(overlap_s * UTTERED_PER_S)))
    if not count:
        return after
    return _from_next_word(after[new[count - 1].end :])


def repeated(old: Sequence[str], new: Sequence[str], *, least: int) -> int:
    """How many of the first `new` words are the last `old` ones again; 0: undecided.

    At least `least` of them are the same, the last one among them, and more than differ; only a
    lone cut-off word before one that is the same is let pass, where nothing else is in doubt.
    """
    best, found = (0, 0, 0), 0
    for dangling in range(MISHEARD + 1):
        end = len(old) - dangling
        for count in range(1, min(len(new), end) + 1):
            pairs = list(zip(old[end - count : end], new[:count], strict=True))
            same = sum(one == other for one, other in pairs)
            differ = count - same
            if pairs[-1][0] != pairs[-1][1] or differ > MISHEARD or same < least:
                continue
            if same <= differ and dangling:
                continue
            rank = (same - differ, -dangling, -count)
            if not found or rank > best:
                best, found = rank, count
    return found


def units(text: str, *, unspaced: bool) -> list[Unit]:
    """The words of a text, or its letters; punctuation alone is none."""
    found = []
    for match in re.finditer(r"\S" if unspaced else r"\S+", text):
        if letters := plain(match[0]):
            found.append(Unit(letters, match.end()))
    return found


def _from_next_word(text: str) -> str:
    """The text without spaces, and without the last sentence's comma or full stop, before it."""
    start = 0
    while start < len(text) and (
        text[start].isspace()
        or (unicodedata.category(text[start]) == "Po" and text[start] not in "¿¡")
    ):
        start += 1
    return text[start:]


def plain(word: str) -> str:
    """The letters and digits of a word, without case."""
    folded = unicodedata.normalize("NFKC", word).casefold()
    return "".join(letter for letter in folded if unicodedata.category(letter)[0] in "LMN")


def is_unspaced(text: str) -> bool:
    """True when most letters are of a script that puts no spaces between words."""
    letters = sum(letter.isalpha() for letter in text)
    return 2 * len(UNSPACED.findall(text)) > letters


class OverlapJoiner:
    """Remembers the last window's text, to free the next one's of what it repeats. One thread."""

    def __init__(self) -> None:
        self._utterance_id, self._index, self._text = "", 0, ""

    def fresh(self, window: Window, text: str, recall: Callable[[], str] = str) -> str:
        """What `text`, the window's, says beyond the window before; windows come in order, and
        those that are discarded do not come.

        `recall` gives the text of the window before where this process has not seen it.
        """
        before = ""
        if window.overlap_s > 0:
            known = (self._utterance_id, self._index) == (window.utterance_id, window.index - 1)
            before = self._text if known else recall()
        self._utterance_id, self._index, self._text = window.utterance_id, window.index, text
        return without_overlap(before, text, window.overlap_s)
