"""Show how far adding a model is: one bar for all its steps on a terminal, elsewhere lines."""

import os
import sys
from typing import TextIO

from tqdm import tqdm

WORTH_A_LINE = 10_000_000
"""Bytes; smaller steps are not named without a terminal."""


class ProgressDisplay:
    """Counts the steps of one work, downloads among them, as bytes of one; shows nothing."""

    def __init__(self) -> None:
        self.step = ""
        self._steps: dict[str, tuple[int, int]] = {}
        """Bytes done and in all, by the step's name."""

    def expect(self, step: str, total: int) -> None:
        """Count a step before it begins."""
        self._steps[step] = 0, total

    def begin(self, step: str, done: int = 0, total: int | None = None) -> None:
        """Begin a step, or begin it again, after `done` bytes of `total` (None: as expected)."""
        self.step = step
        self._steps[step] = done, total or self._steps.get(step, (0, 0))[1]
        self.show()

    def advance(self, count: int) -> None:
        """Add `count` bytes to what is done of the step."""
        done, total = self._steps[self.step]
        self._steps[self.step] = done + count, total
        self.show()

    @property
    def done(self) -> int:
        """Bytes of all steps that are done."""
        return sum(done for done, _ in self._steps.values())

    @property
    def total(self) -> int:
        """Bytes of all steps; at least what is done."""
        return sum(max(step) for step in self._steps.values())

    def show(self) -> None:
        """Show what is done now."""

    def note(self, line: str) -> None:
        """Show a line."""


class StreamProgress(ProgressDisplay):
    """A moving bar if `stream` (standard error) is a terminal with a size; else lines."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream or sys.stderr
        self._moves = self._stream.isatty() and 0 not in os.get_terminal_size(self._stream.fileno())
        self._bar: tqdm | None = None

    def begin(self, step: str, done: int = 0, total: int | None = None) -> None:
        """Begin a step; without a terminal, write the name and size of a large one."""
        super().begin(step, done, total)
        if not self._moves and total and total >= WORTH_A_LINE:
            after = f", from {done / 1e6:.1f} MB on" if done else ""
            self.note(f"{step}: {total / 1e6:.1f} MB{after}")

    def show(self) -> None:
        """Move the bar, which appears once there is much to do."""
        if self._bar is None and self._moves and self.total >= WORTH_A_LINE:
            tqdm.monitor_interval = 0  # no thread
            self._bar = tqdm(total=self.total, unit="B", unit_scale=True, file=self._stream)
        if self._bar is not None:
            self._bar.set_description_str(self.step, refresh=False)
            self._bar.total = self.total
            self._bar.update(self.done - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def note(self, line: str, stream: TextIO | None = None) -> None:
        """Write a line on `stream` (the bar's), above the bar if there is one."""
        if self._bar is not None:
            self._bar.clear()
        print(line, file=stream or self._stream, flush=True)
        if self._bar is not None:
            self._bar.refresh()
