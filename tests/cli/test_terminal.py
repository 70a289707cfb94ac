"""What a terminal is shown."""

import pytest

from appliance.cli.terminal import percent


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.6149, "62%"), (0.615, "62%"), (0.625, "63%"), (0.004, "0%"), (1, "100%")],
)
def test_a_share_is_rounded_as_the_page_rounds_what_events_carry(share: float, shown: str) -> None:
    assert percent(share) == shown
