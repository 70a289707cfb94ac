"""What is always misheard is written as the table says: whole words, case kept."""

import time
from dataclasses import replace

import pytest
from rigs.transcriber import HEARD

from appliance.infer.corrections import Corrections

TABLE = {"wood pecker": "Woodpecker", "ate": "eight", "room  Scribe": "Roomscribe", "c++": "C plus"}


@pytest.mark.parametrize(
    ("heard", "written"),
    [
        ("the wood pecker is on", "the Woodpecker is on"),
        ("Wood   pecker, on", "Woodpecker, on"),
        ("at ate o'clock", "at eight o'clock"),
        ("Ate is late", "Eight is late"),
        ("WOOD PECKER ATE", "WOODPECKER EIGHT"),
        ("the plate, a wood pecker's", "the plate, a Woodpecker's"),
        ("i ate c++.", "i eight C plus."),
        ("room scribe", "Roomscribe"),
        ("wood peckers", "wood peckers"),
        ("", ""),
    ],
)
def test_whole_words_are_replaced_in_the_case_that_they_have(heard: str, written: str) -> None:
    assert Corrections(TABLE).correct(heard) == written


def test_without_a_table_nothing_is_touched() -> None:
    heard = replace(HEARD, text="ate")
    assert Corrections({}).apply(heard) is heard


def test_a_changed_text_is_flagged_and_no_other() -> None:
    told = Corrections(TABLE).apply(replace(HEARD, text="ate", flags=("token_limit",)))
    assert (told.text, told.flags) == ("eight", ("token_limit", "corrected"))
    same = replace(HEARD, text="late")
    assert Corrections(TABLE).apply(same) is same


def test_of_two_that_begin_alike_the_longer_goes_first() -> None:
    corrections = Corrections({"new york": "New York", "new york city": "NYC", "new": "old"})
    assert corrections.correct("new york city, new york, new") == "NYC, New York, old"


def test_what_is_written_is_not_looked_at_again() -> None:
    assert Corrections({"a": "b", "b": "a"}).correct("a b") == "b a"


def test_letters_whose_small_form_is_another_word_are_left_alone_or_found() -> None:
    assert Corrections({"istanbul": "Byzanz"}).correct("\u0130stanbul") in (
        "\u0130stanbul",
        "Byzanz",
    )


def test_a_thousand_of_them_take_no_time() -> None:
    corrections = Corrections({f"word {number}": f"text {number}" for number in range(1000)})
    begun_s = time.process_time()
    assert corrections.correct("word 999 " * 100) == "text 999 " * 100
    assert time.process_time() - begun_s < 2
