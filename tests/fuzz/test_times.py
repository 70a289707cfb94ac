"""A time on the command line, however odd, is a moment or one clear line."""

from __future__ import annotations

import argparse

from hypothesis import given, strategies as st
from rigs.fuzzing import ODD_TEXTS, examples, is_one_line

from appliance.cli.log import moment

PIECES = (
    *(
        "today",
        "yesterday",
        "ago",
        "1",
        "9",
        "90",
        "s",
        "m",
        "min",
        "hours",
        "d",
        "w",
        " ",
        "T",
        "-",
    ),
    *(":", "2026", "-01", "-31", "18:00", "25:61", "Z", "+", "9999", "0001", "W53", "\u0663"),
)


@given(
    st.one_of(
        st.text(max_size=20),
        st.lists(st.sampled_from((*PIECES, *ODD_TEXTS)), max_size=8).map("".join),
    )
)
@examples(300)
def test_an_odd_time_is_a_moment_or_refused_in_one_line(text: str) -> None:
    try:
        found = moment(text)
    except argparse.ArgumentTypeError as error:
        assert is_one_line(str(error)), str(error)
    else:
        assert found.tzinfo is not None
