"""Words that a model always hears wrongly, and what is to be written in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from appliance.records import Transcription


class Corrections:
    """A table of what is heard and what is written. Immutable; any thread may use it."""

    def __init__(self, table: Mapping[str, str]) -> None:
        """Whole words, whatever their case; of two that begin alike the longer goes first."""
        self._table = {" ".join(heard.lower().split()): text for heard, text in table.items()}
        heard = sorted(self._table, key=len, reverse=True)
        words = "|".join(r"\s+".join(map(re.escape, one.split())) for one in heard)
        self._pattern = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE) if words else None

    def on(self, text: str) -> str:
        """The text corrected; what was written in capitals, or with one in front, is again."""
        return self._pattern.sub(self._written, text) if self._pattern else text

    def applied(self, heard: Transcription) -> Transcription:
        """The transcription corrected, and flagged where that changed it."""
        text = self.on(heard.text)
        if text == heard.text:
            return heard
        return replace(heard, text=text, flags=(*heard.flags, "corrected"))

    def _written(self, match: re.Match[str]) -> str:
        found = match[0]
        text = self._table.get(" ".join(found.lower().split()), found)
        if found.isupper() and sum(one.isalpha() for one in found) > 1:
            return text.upper()
        return text[:1].upper() + text[1:] if found[:1].isupper() else text
