"""Colour and progress, for terminals only."""

import math
import os
import sys
import time
from typing import Self, TextIO

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


class ProgressLine:
    """One line on standard error that is overwritten, if that is a terminal."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        """Show nothing yet, and with `quiet` never."""
        self._name = name
        self._on = sys.stderr.isatty() and not quiet
        self._begun_s = time.monotonic()
        self._next_s = self._begun_s + FIRST_AFTER_S
        self._width = 0

    def update(self, position_s: float, total_s: float, whole: str = "") -> None:
        """Show that `position_s` of `total_s` of sound is done; 0: the total is unknown. `whole`
        says what the total is if it is no time."""
        now_s = time.monotonic()
        if not self._on or now_s < self._next_s or not total_s:
            return
        self._next_s = now_s + EVERY_S
        share = min(1.0, max(1e-6, position_s / total_s))
        left_s = (now_s - self._begun_s) * (1 / share - 1)
        whole = whole or _clock(total_s)
        self._write(f"{self._name}: {share:.0%} of {whole}, {_clock(left_s)} left")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Clear the line."""
        if self._width:
            self._write("")
            self._width = 0

    def _write(self, text: str) -> None:
        print(f"\r{text:<{self._width}}\r{text}", end="", file=sys.stderr, flush=True)
        self._width = len(text)


def _clock(seconds: float) -> str:
    """Return m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
