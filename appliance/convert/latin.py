"""Tokens that a text in Latin letters never contains, and the languages that are written so."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from appliance.model import byte_of_letter

_OTHERS = """
am ar as ba be bg bn bo el fa gu he hi hy ja ka kk km kn ko lo mk ml mn mr my ne pa ps ru sa sd si
sr ta te tg th tt uk ur yi yue zh
"""
OTHERS = frozenset(_OTHERS.split())
"""Codes of Whisper's languages that are, or may be, written in other letters."""
LAST_EXTENDED = 0x24F
"""Last code point of Latin Extended-B."""
ADDITIONAL = range(0x1E00, 0x1F00)
"""Latin Extended Additional: Vietnamese, for example."""


def other_letters(vocabulary: Mapping[str, int]) -> set[int]:
    """Return the ids of the tokens that contain a letter of another script. Parts of letters stay:
    a token of single bytes may belong to any script."""
    return {number for token, number in vocabulary.items() if not _is_latin(token)}


def _is_latin(token: str) -> bool:
    letters = byte_of_letter()
    if not all(letter in letters for letter in token):
        return True  # no text: a special token
    text = bytes(letters[letter] for letter in token).decode(errors="ignore")
    return all(
        ord(sign) <= LAST_EXTENDED
        or ord(sign) in ADDITIONAL
        or not unicodedata.category(sign).startswith("L")
        for sign in text
    )
