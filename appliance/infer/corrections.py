"""Corrections: words that a model always gets wrong, and what to write instead."""

import re
from collections.abc import Mapping
from dataclasses import replace

from appliance.records import Transcription


class Corrections:
    """A table of recognised words and their corrections. Immutable; any thread may use it."""

    def __init__(self, table: Mapping[str, str]) -> None:
        """Matches whole words in any case; of two entries with the same beginning, the longer."""
        self._table = {" ".join(heard.lower().split()): text for heard, text in table.items()}
        heard = sorted(self._table, key=len, reverse=True)
        words = "|".join(r"\s+".join(map(re.escape, one.split())) for one in heard)
        self._pattern = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE) if words else None

    def correct(self, text: str) -> str:
        """Return the corrected text; capitals are kept, at the beginning or throughout."""
        return self._pattern.sub(self._written, text) if self._pattern else text

    def apply(self, heard: Transcription) -> Transcription:
        """Return the corrected transcription, with the flag `corrected` if that changed it."""
        text = self.correct(heard.text)
        if text == heard.text:
            return heard
        return replace(heard, text=text, flags=(*heard.flags, "corrected"))

    def _written(self, match: re.Match[str]) -> str:
        found = match[0]
        text = self._table.get(" ".join(found.lower().split()), found)
        if found.isupper() and sum(one.isalpha() for one in found) > 1:
            return text.upper()
        return text[:1].upper() + text[1:] if found[:1].isupper() else text
