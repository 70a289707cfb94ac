"""Times of other rooms are right however their clocks are set and their messages are delayed."""

import pytest

from appliance.house.claims import Act, Claim, Hearing, Withdrawal
from appliance.house.messages import ClockOffsets, shift


def test_a_delayed_message_does_not_change_the_offset() -> None:
    offsets = ClockOffsets()
    assert offsets.observe("hall", 10.0, 3610.004) == pytest.approx(3600.004)
    assert offsets.observe("hall", 20.0, 3622.5) == pytest.approx(3600.004)
    assert offsets.observe("hall", 30.0, 3630.001) == pytest.approx(3600.001)
    assert offsets.observe("office", 5.0, 3.0) == pytest.approx(-2.0)


def test_a_clock_that_began_again_is_measured_again() -> None:
    offsets = ClockOffsets()
    offsets.observe("hall", 5000.0, 100.0)
    assert offsets.observe("hall", 3.0, 130.0) == pytest.approx(127.0)
    assert offsets.observe("hall", 900_000.0, 140.0) == pytest.approx(-899_860.0)


def test_all_times_of_a_message_are_moved() -> None:
    claim = Claim("hall", "id", "utterance", 1.0, 2.0, 1, 0.5, b"x", False)
    moved = Claim("hall", "id", "utterance", 11.0, 12.0, 1, 0.5, b"x", False)
    assert shift(claim, 10.0) == moved
    assert shift(Act(claim, ("a",)), 10.0) == Act(moved, ("a",))
    assert shift(Hearing("hall", "u", 1.0), 10.0) == Hearing("hall", "u", 11.0)
    assert shift(Withdrawal("hall", "u"), 10.0) == Withdrawal("hall", "u")
