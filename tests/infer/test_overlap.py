"""Texts of windows that overlap are joined: nothing is lost, and what was repeated is left out."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from appliance.infer.overlap import OverlapJoiner, is_unspaced, without_overlap
from appliance.records import Window


@pytest.mark.parametrize(
    ("before", "after", "rest"),
    [
        ("turn on the light", "the light in the kitchen", "in the kitchen"),
        ("Turn on the Light,", "the light. In the kitchen.", "In the kitchen."),
        ("turn the bedroom lights off", "room lights off wake me at six", "wake me at six"),
        ("turn the bedroom lights", "room lights off", "off"),
        ("wake me at ten in the", "ten on the afternoon", "afternoon"),
        ("set the nursery to six", "to sixteen degrees", "sixteen degrees"),
        ("lights off wak", "off wake me up", "wake me up"),
        ("i saw it", "it was late", "was late"),
        ("the dog saw the", "the dog saw the cat", "cat"),
        ("Straße", "STRASSE frei", "frei"),
    ],
)
def test_what_the_next_window_repeats_is_left_out(before: str, after: str, rest: str) -> None:
    assert without_overlap(before, after, 1.0) == rest


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("turn on the light", "wake me at six"),
        ("turn on the light", "lie down wake me"),
        ("", "the light in the kitchen"),
        ("set the nursery to six", "sixteen degrees"),
        ("the light", "what about the light"),
        ("one two three four five", "one too tree four five six"),
        ("turn the light on in", "the light off at six"),
        ("turn the lights off wak", "dark off wake me"),
    ],
)
def test_in_doubt_every_word_is_kept(before: str, after: str) -> None:
    assert without_overlap(before, after, 1.0) == after


def test_no_more_is_removed_than_the_overlap_can_hold() -> None:
    sentence = "one two three four five six seven eight"
    assert without_overlap(sentence, sentence + " nine", 0.5) == sentence + " nine"
    assert without_overlap(sentence, sentence, 10.0) == ""


def test_scripts_without_spaces_are_joined_by_letters() -> None:
    assert without_overlap("今日の天気はどう", "気はどうですか。", 0.8) == "ですか。"
    assert without_overlap("打开客厅的灯", "的灯和风扇", 0.8) == "和风扇"
    assert without_overlap("今日は", "は何時", 0.8) == "は何時", "one letter is no proof"
    assert is_unspaced("ปิดไฟ") and not is_unspaced("turn on 音楽 please now")


SAID = "turn on off the light lamp in a kitchen no yes six ten"
WORDS = st.sampled_from(sorted(set(SAID.split())))


@given(st.lists(WORDS, min_size=2, unique=True), st.data())
def test_words_that_both_windows_heard_alike_come_once(
    said: list[str], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(said)))
    begin = data.draw(st.integers(max(0, cut - 4), cut))
    before, after = " ".join(said[:cut]), " ".join(said[begin:])
    rest = without_overlap(before, after, 1.0)
    assert f"{before} {rest}".split() == said


def window(index: int, overlap_s: float, utterance_id: str = "u") -> Window:
    samples = np.zeros(16000, np.int16)
    return Window(utterance_id, index, False, samples, 0.0, 1.0, 1.0, overlap_s=overlap_s)


def test_the_text_before_is_that_of_the_window_before_whole() -> None:
    joiner = OverlapJoiner()
    assert joiner.remove_overlap(window(1, 0.0), "turn on the light") == "turn on the light"
    assert joiner.remove_overlap(window(2, 1.0), "the light") == ""
    assert joiner.remove_overlap(window(3, 1.0), "the light now") == "now"
    assert joiner.remove_overlap(window(4, 0.0), "now now") == "now now"


def test_a_window_before_that_was_not_seen_is_recalled() -> None:
    joiner = OverlapJoiner()
    assert joiner.remove_overlap(window(3, 1.0), "light on", lambda: "the light") == "on"
    joiner.remove_overlap(window(1, 0.0, "v"), "the light")
    assert joiner.remove_overlap(window(2, 1.0, "w"), "light on") == "light on", (
        "another utterance's"
    )
