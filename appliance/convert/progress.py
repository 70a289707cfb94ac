"""Show how far a download or a build is: a bar on a terminal, elsewhere a line for each step."""

from __future__ import annotations

import os
import sys
from typing import Protocol, TextIO

from tqdm import tqdm

WORTH_A_LINE = 10_000_000
"""Bytes; smaller steps are not reported without a terminal."""


class ProgressDisplay(Protocol):
    """Shows one step after the other, in bytes."""

    def begin(self, name: str, done: int, total: int | None) -> None:
        """Start showing the step `name` after `done` bytes; again after each break."""

    def advance(self, count: int) -> None:
        """Show that `count` more bytes are done."""

    def end(self) -> None:
        """Stop showing the step, complete or not."""

    def note(self, line: str) -> None:
        """Show a line."""


class StreamProgress:
    """A moving bar if `stream` (standard error) is a terminal with a size; else lines."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._moves = self._stream.isatty() and 0 not in os.get_terminal_size(self._stream.fileno())
        self._bar: tqdm | None = None

    def begin(self, name: str, done: int, total: int | None) -> None:
        """Draw the bar of a step, or write its name and size if it is large."""
        self.end()
        if self._moves:
            tqdm.monitor_interval = 0  # no thread
            self._bar = tqdm(
                desc=name, initial=done, total=total, unit="B", unit_scale=True, file=self._stream
            )
        elif (total or 0) >= WORTH_A_LINE:
            after = f", from {done / 1e6:.1f} MB on" if done else ""
            self.note(f"{name}: {(total or 0) / 1e6:.1f} MB{after}")

    def advance(self, count: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(count)

    def end(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def note(self, line: str) -> None:
        """Write a line, above the bar if there is one."""
        if self._bar is None:
            print(line, file=self._stream, flush=True)
        else:
            tqdm.write(line, file=self._stream)
