"""Subtitles: texts with times as SubRip or WebVTT."""

import html
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

LINE, LINES = 42, 2
"""Letters per line and lines per subtitle (guidelines of BBC and Netflix: 37 to 42, and 2)."""
PAUSE_S = 0.6
"""A longer pause between two words begins a new subtitle."""
LONE_PAUSE_S = 2.0
"""The same behind a short word alone, which would be gone before anybody has read it."""
LEAST_S, LETTERS_PER_S = 0.8, 20.0
"""Shortest time of a subtitle, and the reading speed that it leaves (Netflix: 5/6 s and 20)."""

Segment = Mapping[str, Any]
"""A part of a text: `text`, `start_s`, `end_s`, and maybe `words` with `word`, `start`, `end`."""


class _Word(NamedTuple):
    text: str
    """With the space before it."""
    start_s: float
    end_s: float


def make_subtitles(segment: Segment, first: int, *, vtt: bool) -> list[str]:
    """Return the entries of a segment as SRT or WebVTT, numbered from `first` on.

    An entry has at most LINES lines of LINE letters, and ends at a pause. Without times of words,
    each word has its share of the segment's time by its letters.
    """
    found = []
    entries = [*_entries(_words(segment))]
    following_s = [words[0].start_s for words in entries[1:]]
    for number, (words, next_s) in enumerate(zip_longest(entries, following_s), first):
        lines = _lines(words)
        times = " --> ".join(map(_clock, _readable_times(words, next_s)))
        if vtt:
            times = times.replace(",", ".")
            lines = [html.escape(line, quote=False) for line in lines]
        found.append("\n".join((str(number), times, *lines, "")))
    return found


def _readable_times(words: Sequence[_Word], next_s: float | None) -> tuple[float, float]:
    """Return when an entry begins and ends: long enough to be read, but not into the next one."""
    begin_s, end_s = words[0].start_s, words[-1].end_s
    letters = sum(len(word.text) for word in words)
    if next_s is None:  # the next segment may follow at once
        return begin_s, max(end_s, begin_s + LEAST_S)
    needed_s = max(LEAST_S, letters / LETTERS_PER_S)
    return begin_s, max(end_s, min(begin_s + needed_s, next_s))


def _words(segment: Segment) -> list[_Word]:
    """Return a segment's words with their times; what has no spaces is cut as lines are."""
    if timed := segment.get("words"):
        return [_Word(f" {each['word']}", each["start"], each["end"]) for each in timed]
    parts = re.findall(rf"\s*\S{{1,{LINE}}}", segment["text"].strip())
    begin_s, share_s = segment["start_s"], segment["end_s"] - segment["start_s"]
    per_letter_s = max(0.0, share_s) / max(1, sum(map(len, parts)))
    found = []
    for part in parts:
        end_s = begin_s + per_letter_s * len(part)
        found.append(_Word(part, begin_s, end_s))
        begin_s = end_s
    return found


def _entries(words: Sequence[_Word]) -> Iterator[list[_Word]]:
    """Yield the words of each entry."""
    entry: list[_Word] = []
    for word in words:
        full = len(_lines((*entry, word))) > LINES
        pause_s = word.start_s - entry[-1].end_s if entry else 0.0
        is_lone = len(entry) == 1 and entry[0].end_s - entry[0].start_s < LEAST_S
        if entry and (full or pause_s > (LONE_PAUSE_S if is_lone else PAUSE_S)):
            yield entry
            entry = []
        entry.append(word)
    if entry:
        yield entry


def _lines(words: Sequence[_Word]) -> list[str]:
    return textwrap.wrap("".join(word.text for word in words).strip(), LINE)


def _clock(seconds: float) -> str:
    """Return hh:mm:ss,mmm."""
    whole_s, millis = divmod(round(max(0.0, seconds) * 1000), 1000)
    return f"{whole_s // 3600:02}:{whole_s // 60 % 60:02}:{whole_s % 60:02},{millis:03}"
