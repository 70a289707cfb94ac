"""What the house says is told from what people say."""

import pytest

from appliance.speaker import Spoken


@pytest.mark.parametrize(
    ("heard", "own"),
    [
        ("Turned off the lights.", True),
        ("Turn off the lights", True),
        ("the light!", True),
        ("of the lights", True),
        ("I turned up the lights for", False),
        ("turned offer lights set lights to twenty percent", True),
        ("set lights to thirty percent", False),
        ("Turn on the lights", False),
        ("Turned off the kitchen lights", False),
        ("Stop", False),
        ("", False),
    ],
)
def test_a_text_is_own_if_the_house_is_saying_it_or_a_part_of_it(heard: str, own: bool) -> None:
    spoken = Spoken()
    spoken.note("I turned off the lights. Set lights to 20%.", until=100.0)
    assert spoken.is_own(heard, at=99.9) == own
    assert not spoken.is_own(heard, at=100.1)
    spoken.note("I turned off the lights, set lights to twenty percent", until=90.0)
    assert not spoken.is_own(heard, at=90.1), "the end is known better now"


def test_over_a_known_own_voice_only_what_is_addressed_may_be_a_persons() -> None:
    spoken = Spoken(is_heard=lambda _: True)
    assert spoken.is_own("computer stop", at=1.0, addressed=True)
    spoken.note("The computer is on.", until=100.0)
    heard = {
        text: spoken.is_own(text, at=1.0, addressed=True)
        for text in ("computer stop", "computer is on")
    }
    assert heard == {"computer stop": False, "computer is on": True}
    assert spoken.is_own("what time is it", at=1.0)
    known = Spoken()
    known.note("Your daughter asks what time it is.", until=100.0)
    assert known.is_own("computer what time it is", at=1.0)
    assert not known.is_own("computer what time it is", at=1.0, addressed=True)


@pytest.mark.parametrize(
    ("heard", "behind"),
    [
        ("Turned off the lights. Computer, stop.", "Computer, stop."),
        ("turn of the light computer stop", "computer stop"),
        ("the computer stop", "computer stop"),
        ("My computer stopped", "My computer stopped"),
        ("Turned off the", "Turned off the"),
        ("Computer, stop.", "Computer, stop."),
        ("", ""),
    ],
)
def test_the_phrase_is_heard_behind_the_houses_own_words(heard: str, behind: str) -> None:
    def begins(text: str) -> bool:
        return text.casefold().startswith("computer")

    spoken = Spoken()
    assert spoken.behind(heard, 1.0, begins) == heard, "the house says nothing"
    spoken.note("I turned off the lights.", until=100.0)
    assert spoken.behind(heard, 1.0, begins) == behind
    spoken.note("The computer is off.", until=100.0)
    assert spoken.behind("is off computer stop", 1.0, begins) == "is off computer stop"


def test_the_other_rooms_get_what_this_one_says_and_nothing_of_theirs() -> None:
    def tell_here(text: str, until: float) -> None:
        here.remember(text, until)

    there = Spoken(tell_here)
    here = Spoken(there.remember)
    here.note("Turned off the lights.", until=100.0)
    assert there.is_own("turned off the lights", at=99.0)
