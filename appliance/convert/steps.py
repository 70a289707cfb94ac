"""How far adding a model is: several steps, a download among them, counted as one work."""

from __future__ import annotations

from typing import Protocol


class ProgressDisplay(Protocol):
    """Shows one work in steps, in bytes of a download."""

    def expect(self, name: str, total: int) -> None:
        """Count the step `name` in the total before it begins."""

    def begin(self, name: str, done: int, total: int | None) -> None:
        """Begin the step `name` after `done` bytes; again after each break. `total`: None if it is
        as expected, or unknown."""

    def advance(self, count: float) -> None:
        """Show that `count` more bytes are done."""

    def note(self, line: str) -> None:
        """Show a line."""


class WorkInSteps:
    """Counts the steps of one work together, so that there is one total."""

    def __init__(self) -> None:
        self.step = ""
        self._steps: dict[str, tuple[float, int]] = {}
        """Bytes done and in all, by the step's name."""

    def expect(self, name: str, total: int) -> None:
        """Count a step before it begins."""
        self._steps[name] = 0, total

    def begin(self, name: str, done: int, total: int | None) -> None:
        """Begin a step, or begin it again."""
        _, expected = self._steps.get(name, (0, 0))
        self.step = name
        self._steps[name] = done, expected if total is None else total

    def advance(self, count: float) -> None:
        """Add `count` to what is done of the step."""
        done, total = self._steps[self.step]
        self._steps[self.step] = done + count, total

    @property
    def done(self) -> float:
        """Bytes of all steps that are done."""
        return sum(done for done, _ in self._steps.values())

    @property
    def total(self) -> float:
        """Bytes of all steps; at least what is done."""
        return sum(max(step) for step in self._steps.values())
