"""Subtitles that people can read."""

import re
from typing import Any

from appliance.web.subtitles import make_subtitles

TALK = (
    "And so, my fellow Americans, ask not what your country can do for you, ask what you can do "
    "for your country, and then, when all that is asked, ask a subtitle to be read within its time."
)


def segment(text: str, start_s: float, end_s: float, words: str = "") -> dict[str, Any]:
    """A part of an answer; `words` are each with the begin and the end, s."""
    parts = words.split()
    rows = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    times = [{"word": word, "start": float(begin), "end": float(end)} for word, begin, end in rows]
    return {"text": text, "start_s": start_s, "end_s": end_s, "words": times}


def test_a_long_text_is_entries_of_two_lines_of_42_letters_one_after_the_other() -> None:
    entries = make_subtitles(segment(TALK, 10.0, 20.0), 7, vtt=False)
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
    assert make_subtitles(segment("yes", 0.0, 1.5), 1, vtt=False) == [
        "1\n00:00:00,000 --> 00:00:01,500\nyes\n"
    ]
    assert make_subtitles(segment("", 0.0, 1.5), 1, vtt=False) == []


def test_letters_without_spaces_are_broken_and_no_entry_ends_before_it_begins() -> None:
    for entry in make_subtitles(segment("ABCDEFGHIJ" * 20, 5.5, 5.0), 1, vtt=False):
        begin, end = re.findall(r"\d\d:\d\d:\d\d,\d{3}", entry)
        assert begin <= end
        assert max(map(len, entry.split("\n")[2:])) <= 42


def test_webvtt_has_points_for_commas_and_no_markup() -> None:
    (entry,) = make_subtitles(segment("if a < b & c --> d", 1.0, 2.5), 3, vtt=True)
    assert entry == "3\n00:00:01.000 --> 00:00:02.500\nif a &lt; b &amp; c --&gt; d\n"


def test_words_with_times_make_an_entry_exact_and_a_pause_begins_another() -> None:
    words = "Good 1.0 1.2 night. 1.25 1.5 Lights 3.0 3.4 off. 3.5 3.75"
    found = make_subtitles(segment("Good night. Lights off.", 0.5, 4.5, words), 1, vtt=False)
    assert found == [
        "1\n00:00:01,000 --> 00:00:01,800\nGood night.\n",
        "2\n00:00:03,000 --> 00:00:03,800\nLights off.\n",
    ]


def test_no_entry_is_gone_before_it_is_read_and_none_reaches_into_the_next() -> None:
    words = "The 1 1 weather 2.2 2.3 tomorrow 2.3 2.4 rain 3.2 3.2 all 3.9 4 day 4 4.1 Good 9 9"
    found = make_subtitles(segment("...", 0.5, 9.5, words), 1, vtt=False)
    assert found == [
        "1\n00:00:01,000 --> 00:00:02,400\nThe weather tomorrow\n",
        "2\n00:00:03,200 --> 00:00:04,100\nrain all day\n",
        "3\n00:00:09,000 --> 00:00:09,800\nGood\n",
    ]
