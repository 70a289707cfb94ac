"""Joins the texts of windows that overlap: removes what the later one repeats.

Speech without a pause is cut within a word, so the next window begins up to a second before the cut
(`Window.overlap_s`) and has the last words again. A lost word is worse than a doubled one: where
the two texts do not agree, the later one stays whole.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from appliance.records import Window, Word

WORDS_PER_S, LETTERS_PER_S = 5.0, 9.0
"""Nobody talks faster for long: an overlap has at most this many words per second (letters in
scripts without spaces), and one that is cut."""
UTTERED_PER_S = 3.0
"""Pace of a repeated word ("no no no"): the texts alone do not show how many repetitions are in the
overlap, so this many are assumed."""
MISHEARD = 1
"""Repeated words that may differ, and words that may be cut off at the seam."""
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
)
"""A letter of a script without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A word, or a letter in scripts without spaces: its letters for comparison, and its end."""

    letters: str
    end: int


def without_overlap(before: str, after: str, overlap_s: float) -> str:
    """Return `after` without the words that repeat the end of `before`.

    Compared without case and punctuation: the first words of `after` are removed if they are the
    last of `before` in the same order. One of them, but not the last, may differ (misheard, or cut
    off by the window's edge), and `before` may have one more (cut off at the seam). At most as many
    as fit into `overlap_s`; with 0, none.
    """
    if overlap_s <= 0:
        return after
    unspaced = is_unspaced(after)
    old, new = split_pieces(before, unspaced=unspaced), split_pieces(after, unspaced=unspaced)
    pace = LETTERS_PER_S if unspaced else WORDS_PER_S
    most = min(len(new), int(overlap_s * pace) + 1)
    count = repeated(
        [piece.letters for piece in old],
        [piece.letters for piece in new[:most]],
        least=2 if unspaced else 1,
    )
    if count > 1 and len({piece.letters for piece in new[:count]}) == 1:
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


def split_pieces(text: str, *, unspaced: bool) -> list[Piece]:
    """Return the words of a text, or its letters; punctuation alone is none."""
    found = re.finditer(r"\S" if unspaced else r"\S+", text)
    return [Piece(letters, match.end()) for match in found if (letters := plain(match[0]))]


def _from_next_word(text: str) -> str:
    """The text without leading spaces and the punctuation of the removed words."""

    def goes(letter: str) -> bool:
        return letter.isspace() or (unicodedata.category(letter) == "Po" and letter not in "¿¡")

    return "".join(dropwhile(goes, text))


def plain(word: str) -> str:
    """Return the letters and digits of a word, without case."""
    folded = unicodedata.normalize("NFKC", word).casefold()
    return "".join(letter for letter in folded if unicodedata.category(letter)[0] in "LMN")


def is_unspaced(text: str) -> bool:
    """True if most letters are of a script without spaces between words."""
    letters = sum(letter.isalpha() for letter in text)
    return 2 * len(UNSPACED.findall(text)) > letters


def last_words(words: Sequence[Word], text: str) -> tuple[Word, ...]:
    """Return the words at the end that make up `text`, which is the end of their text."""
    count, letters = 0, len("".join(text.split()))
    while count < len(words) and letters > 0:
        count += 1
        letters -= len(words[-count].text)
    return tuple(words[len(words) - count :])


class OverlapJoiner:
    """Removes what a window's text repeats of the one before. One thread."""

    def __init__(self) -> None:
        self._utterance_id, self._index, self._text = "", 0, ""

    def remove_overlap(self, window: Window, text: str, recall: Callable[[], str] = str) -> str:
        """Return what the window's `text` says beyond the window before. Windows come in order,
        without the discarded ones.

        `recall` returns the text of the window before if this process has not seen it.
        """
        before = ""
        if window.overlap_s > 0:
            known = (self._utterance_id, self._index) == (window.utterance_id, window.index - 1)
            before = self._text if known else recall()
        self._utterance_id, self._index, self._text = window.utterance_id, window.index, text
        return without_overlap(before, text, window.overlap_s)
