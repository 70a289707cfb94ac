"""What people see of a long download: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from typing import Protocol, TextIO

from tqdm import tqdm

WORTH_A_LINE = 10_000_000
"""Smaller files, in bytes, go by without a word where there is no terminal."""


class Progress(Protocol):
    """Is told of one download after the other, in bytes."""

    def begin(self, name: str, done: int, total: int | None) -> None:
        """A download of `name` goes on after `done` bytes; again after each break."""

    def advance(self, count: int) -> None:
        """`count` more bytes have come."""

    def end(self) -> None:
        """The download is over, well or not."""

    def note(self, line: str) -> None:
        """Something that is worth a line."""


class Bar:
    """A moving bar on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: tqdm | None = None

    def begin(self, name: str, done: int, total: int | None) -> None:
        """Draws the bar of a file, or moves it back or forth to `done`."""
        self.end()
        # tqdm would otherwise start a thread that redraws bars which stand still
        tqdm.monitor_interval = 0
        self._bar = tqdm(
            desc=name, initial=done, total=total, unit="B", unit_scale=True, file=self._stream
        )

    def advance(self, count: int) -> None:
        """Moves the bar."""
        if self._bar is not None:
            self._bar.update(count)

    def end(self) -> None:
        """Leaves the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def note(self, line: str) -> None:
        """Writes a line above the bar."""
        tqdm.write(line, file=self._stream)


class Lines:
    """A line when a large file begins and at each tenth of it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._name = ""
        self._done, self._total, self._told = 0, 0, 0

    def begin(self, name: str, done: int, total: int | None) -> None:
        """Says what is fetched, if it is large."""
        self._name, self._done, self._total = name, done, total or 0
        self._told = done
        if self._total >= WORTH_A_LINE:
            after = f", from {done / 1e6:.1f} MB on" if done else ""
            self.note(f"{name}: {self._total / 1e6:.1f} MB{after}")

    def advance(self, count: int) -> None:
        """Says how far it is at each tenth, or each 100 MB of a file of unknown length."""
        self._done += count
        step = self._total // 10 or 100_000_000
        if self._total and self._total < WORTH_A_LINE:
            return
        if self._done - self._told >= step:
            self._told = self._done
            share = f" ({self._done / self._total:.0%})" if self._total else ""
            self.note(f"{self._name}: {self._done / 1e6:.1f} MB{share}")

    def end(self) -> None:
        """Nothing."""

    def note(self, line: str) -> None:
        """Writes the line."""
        print(line, file=self._stream, flush=True)


def progress_on(stream: TextIO | None = None) -> Progress:
    """A bar where `stream` (standard error) is a terminal, lines elsewhere."""
    stream = stream or sys.stderr
    return Bar(stream) if stream.isatty() else Lines(stream)
