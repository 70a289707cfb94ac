"""Show how far adding a model is: one bar on a terminal, elsewhere a line for each large step."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import tqdm

from appliance.convert.steps import WorkInSteps

WORTH_A_LINE = 10_000_000
"""Bytes; smaller steps are not reported without a terminal."""
BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed} of about {total_time}"


class _Bar(tqdm):  # type: ignore[misc]
    """tqdm's bar with the whole time that the work takes, in place of what is left."""

    @property
    def format_dict(self) -> dict[str, Any]:
        facts: dict[str, Any] = super().format_dict
        share = self.n / self.total if self.total else 0.0
        whole_s = self.format_interval(facts["elapsed"] / share) if share else "?"
        return facts | {"total_time": whole_s}


class StreamProgress(WorkInSteps):
    """A moving bar if `stream` (standard error) is a terminal with a size; else lines."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream or sys.stderr
        self._moves = self._stream.isatty() and 0 not in os.get_terminal_size(self._stream.fileno())
        self._bar: _Bar | None = None

    def begin(self, name: str, done: int, total: int | None) -> None:
        """Name the step in the bar, or write its name and size if it is large."""
        super().begin(name, done, total)
        is_large = total is None or total >= WORTH_A_LINE
        if self._moves:
            if self._bar is None and is_large:
                tqdm.monitor_interval = 0  # no thread
                self._bar = _Bar(desc=name, total=self.total, file=self._stream, bar_format=BAR)
            if self._bar is not None:
                self._bar.set_description_str(name, refresh=False)
            self._draw()
        elif total is not None and is_large:
            after = f", from {done / 1e6:.1f} MB on" if done else ""
            self.note(f"{name}: {total / 1e6:.1f} MB{after}")

    def advance(self, count: float) -> None:
        """Move the bar."""
        super().advance(count)
        self._draw()

    def _draw(self) -> None:
        if self._bar is not None:
            self._bar.total = self.total
            self._bar.update(self.done - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def note(self, line: str) -> None:
        """Write a line, above the bar if there is one."""
        self.above(lambda text: print(text, file=self._stream, flush=True))(line)

    def above(self, show: Callable[[str], object]) -> Callable[[str], None]:
        """Return `show` so that its lines stand above the bar."""

        def show_above(line: str) -> None:
            with tqdm.external_write_mode(file=self._stream):
                show(line)

        return show_above
