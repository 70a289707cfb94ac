"""Which transcripts are meant: by time and by what they contain. Pure functions and their SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from appliance.publish import rows

GRAM = 3
"""Letters in an entry of the index; a shorter text is looked for in every transcript."""
_MOST_GRAMS = 32
"""So many narrow a search down far enough; the text itself decides."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A choice of transcripts; by default all of them."""

    since: datetime | None = None
    """Ended then or later."""
    until: datetime | None = None
    """Ended before."""
    grep: Sequence[str] = ()
    """Contains all of these, as plain text, whatever their case."""

    @property
    def everything(self) -> bool:
        """True when nothing is left out."""
        return not (self.since or self.until or any(self.grep))


def where(wanted: Wanted, indexed: bool) -> tuple[str, tuple[object, ...]]:
    """The condition and its values; `indexed`: the file has the search's index."""
    conditions, values = ["1"], list[object]()
    if wanted.since:
        conditions.append('"end" >= ?')
        values.append(rows.iso(wanted.since))
    if wanted.until:
        conditions.append('"end" < ?')
        values.append(rows.iso(wanted.until))
    needles = [_plain(needle) for needle in wanted.grep if needle]
    grams = _grams(needles) if indexed else []
    if grams:
        conditions.append("seq IN (SELECT rowid FROM search WHERE search MATCH ?)")
        values.append(" AND ".join(grams))
    for needle in needles:
        conditions.append("contains(text, ?)")
        values.append(needle)
    return " AND ".join(conditions), tuple(values)


def contains(text: str, needle: str) -> bool:
    """True when `needle` is a part of `text`, in any script, upper and lower case alike."""
    return needle.casefold() in text.casefold()


def _plain(needle: str) -> str:
    """`needle` without what UTF-8 cannot hold (bytes of another encoding on the command line)."""
    return needle.encode("utf-8", "replace").decode("utf-8")


def _grams(needles: Sequence[str]) -> list[str]:
    """Entries of the index that a transcript with all `needles` has, quoted for FTS5.

    Those with a letter whose other case is longer (the German sharp s, ligatures) are left out:
    the index would tell them apart, `contains` does not.
    """
    found = dict[str, None]()
    for needle in needles:
        for at in range(len(needle) - GRAM + 1):
            gram = needle[at : at + GRAM]
            if len(gram.casefold()) == GRAM and "\0" not in gram:
                found[gram] = None
    return ['"' + gram.replace('"', '""') + '"' for gram in list(found)[:_MOST_GRAMS]]
