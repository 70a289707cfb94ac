"""Show how far adding a model is: a bar for each download on a terminal, elsewhere a line."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from tqdm import tqdm

WORTH_A_LINE = 10_000_000
"""Bytes; smaller files are not shown."""


class ProgressDisplay:
    """Follows one step after the other, such as a download; this one shows nothing."""

    def begin(self, step: str, done: int = 0, total: int | None = None) -> None:
        """Begin a step after `done` bytes of `total` (None: unknown), or begin it again."""

    def advance(self, count: int) -> None:
        """Show that `count` more bytes are done."""

    def note(self, line: str) -> None:
        """Show a line."""


class StreamProgress(ProgressDisplay):
    """A moving bar if `stream` (standard error) is a terminal with a size; else lines."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._moves = self._stream.isatty() and 0 not in os.get_terminal_size(self._stream.fileno())
        self._bar: tqdm | None = None

    def begin(self, step: str, done: int = 0, total: int | None = None) -> None:
        """Show the step in a bar, or write its name and size, if it is large."""
        self.close()
        if total is None or total < WORTH_A_LINE:
            return
        if self._moves:
            tqdm.monitor_interval = 0  # no thread
            self._bar = tqdm(
                desc=step, initial=done, total=total, unit="B", unit_scale=True, file=self._stream
            )
        else:
            after = f", from {done / 1e6:.1f} MB on" if done else ""
            self.note(f"{step}: {total / 1e6:.1f} MB{after}")

    def advance(self, count: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(count)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def note(self, line: str) -> None:
        """Write a line below the bar, if there is one."""
        self.close()
        print(line, file=self._stream, flush=True)
