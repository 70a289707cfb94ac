"""Subtitles that people can read."""

from __future__ import annotations

import re

from appliance.cli.transcribe import _subtitles

TALK = (
    "And so, my fellow Americans, ask not what your country can do for you, ask what you can do "
    "for your country, and then, when all that is asked, ask a subtitle to be read within its time."
)


def test_a_long_text_is_entries_of_two_lines_of_42_letters_one_after_the_other() -> None:
    entries = list(_subtitles(TALK, 10.0, 20.0, 7))
    assert len(entries) == 3
    ends_before = "00:00:10,000"
    for number, entry in enumerate(entries, start=7):
        first, times, *lines, last = entry.split("\n")
        begin, end = times.split(" --> ")
        assert (first, begin, last) == (str(number), ends_before, "")
        assert begin < end and 1 <= len(lines) <= 2
        assert all(1 <= len(line) <= 42 for line in lines)
        ends_before = end
    assert ends_before == "00:00:20,000"
    written = " ".join(line for entry in entries for line in entry.split("\n")[2:] if line)
    assert written == TALK


def test_a_short_text_is_one_entry_and_none_is_none() -> None:
    assert list(_subtitles("yes", 0.0, 1.5, 1)) == ["1\n00:00:00,000 --> 00:00:01,500\nyes\n"]
    assert list(_subtitles("", 0.0, 1.5, 1)) == []


def test_letters_without_spaces_are_broken_and_no_entry_ends_before_it_begins() -> None:
    for entry in _subtitles("ABCDEFGHIJ" * 20, 5.5, 5.0, 1):
        begin, end = re.findall(r"\d\d:\d\d:\d\d,\d{3}", entry)
        assert begin <= end
        assert max(map(len, entry.split("\n")[2:])) <= 42
