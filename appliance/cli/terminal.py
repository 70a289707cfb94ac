"""Colour and progress, for terminals only."""

from __future__ import annotations

import math
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from appliance.system import Closing

if TYPE_CHECKING:
    from tqdm import tqdm

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"
EVERY_S, FIRST_AFTER_S = 0.5, 2.0
"""Seconds between two lines of progress, and before the first one."""


def coloured(text: str, colour: str, stream: TextIO | None = None) -> str:
    """Return `text` in a colour if `stream` (standard output) is a terminal with colours.

    NO_COLOR turns it off (no-color.org).
    """
    shown = stream or sys.stdout
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return text if plain or not shown.isatty() else f"\x1b[{colour}m{text}\x1b[0m"


def percent(share: float) -> str:
    """Return `share` in percent as the page shows it: from three decimals, halves upwards."""
    return f"{math.floor(round(share, 3) * 100 + 0.5)}%"


class ProgressLine(Closing):
    """A bar on standard error while there is something to wait for, if that is a terminal."""

    def __init__(self, name: str, *, unit: str = "s", quiet: bool) -> None:
        """Show nothing yet, and with `quiet` never."""
        self._bar: tqdm | None = None
        if sys.stderr.isatty() and not quiet:
            from tqdm import tqdm

            tqdm.monitor_interval = 0  # no thread
            form = "{desc}: {percentage:.0f}% of {total:.0f} {unit}, {remaining} left"
            options: Any = {"unit": unit, "bar_format": form, "leave": False}
            self._bar = tqdm(desc=name, delay=FIRST_AFTER_S, mininterval=EVERY_S, **options)

    def update(self, position: float, total: float) -> None:
        """Show that `position` of `total` is done; 0: the total is unknown."""
        if self._bar is not None and total:
            self._bar.total = total
            self._bar.update(position - self._bar.n)

    def close(self) -> None:
        """Remove the line."""
        if self._bar is not None:
            self._bar.close()

    def clear(self) -> None:
        """Clear the line, so that something else may be printed."""
        if self._bar is not None:
            self._bar.clear()
