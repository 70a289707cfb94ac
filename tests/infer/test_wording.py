"""How a sentence differs from the text that was heard."""

import pytest

from appliance.infer.sentences import plain
from appliance.infer.wording import MOST, compare, compare_letters, past


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Turn off the lights.", "turn off the lights"),
        ("And please turn off lights.", "turn off the lights"),
        ("What's the time?", "what is the time"),
        ("Set it to 45%", "set it to forty five percent"),
        ("Set it to one hundred and twenty.", "set it to 120"),
        ("Wake me at 7:25", "wake me at seven twenty five"),
        ("Open the guestroom window.", "open the guest room window"),
    ],
)
def test_ways_to_write_the_same_words_do_not_differ(text: str, sentence: str) -> None:
    assert not any(compare(plain(text), sentence))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Turned off the lights.", "turn off the lights"),
        ("Unlocked the front door.", "unlock the front door"),
        ("Stopped the fan.", "stop the fan"),
        ("Made it brighter.", "make it brighter"),
        ("Do not turn on the fan.", "turn on the fan"),
        ("Turn on the fan or the radio.", "turn on the fan"),
        ("Set an alarm for half past 7.", "set an alarm for 1"),
        ("Set the volume to 120%.", "set the volume to one hundred percent"),
        ("Set it to 20.5 degrees.", "set it to 20 degrees"),
    ],
)
def test_words_that_make_something_else_of_an_order_are_seen(text: str, sentence: str) -> None:
    assert compare(plain(text), sentence).sense >= 1
    assert compare(sentence, sentence).sense == 0


def test_words_are_added_missing_or_changed() -> None:
    assert compare("good morning everybody", "good morning")[:3] == (1, 0, 0)
    assert compare("set the kitchen light to", "set the kitchen light to blue")[:3] == (0, 1, 0)
    torn, other = (compare(text, "turn off the fan").changed for text in ("torn off the fan", "x"))
    assert 0 < torn < 0.5 < other
    assert compare("one two three four five six", "stop") <= MOST


def test_a_number_that_was_not_heard_as_one_is_only_a_changed_word() -> None:
    found = compare("open the shutter to find percent", "open the shutter to five percent")
    assert found.sense == found.added == found.missing == 0 < found.changed


@pytest.mark.parametrize(
    ("verb", "form"),
    [("turn", "turned"), ("close", "closed"), ("stop", "stopped"), ("dim", "dimmed")],
)
def test_a_verb_has_a_past_form(verb: str, form: str) -> None:
    assert past(verb) == form
    assert past("wake") == "woke"
    assert past("open") == "opened"


def test_letters_tell_a_misheard_sentence_from_another_one() -> None:
    assert compare_letters("resound", "resume") > 0.6
    assert compare_letters("forty five", "45") == 1.0
    assert compare_letters("right", "thank you") < 0.2
