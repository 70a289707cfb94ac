"""Stages and learning rate as functions of the time spent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from train.plans import Mix

WARM_UP_STEPS = 150
CLEAN_UNTIL, MILD_UNTIL = 0.08, 0.62


@dataclass(frozen=True, slots=True)
class Schedule:
    """Where a run stands: `progress` 0..1 is a matter of time alone."""

    start_s: float
    total_s: float
    extension: bool

    def progress(self, spent_s: float) -> float:
        """Share of this schedule's time that is over."""
        return min(1.0, (spent_s - self.start_s) / self.total_s)

    def stage(self, spent_s: float) -> float:
        """Progress through the stages; an extension stays in the last one."""
        done = self.progress(spent_s)
        return MILD_UNTIL + (1 - MILD_UNTIL) * done if self.extension else done

    def rate(self, spent_s: float, steps: int) -> float:
        """Learning rate as a share of its peak: linear warm-up, cosine to 0."""
        peak = 0.5 if self.extension else 1.0
        cosine = 0.5 * (1 + math.cos(math.pi * self.progress(spent_s)))
        return peak * cosine * min(1.0, (steps + 1) / WARM_UP_STEPS)


def mix_at(stage: float) -> Mix:
    """Clean short clips first, then ever harder ones, at last as many full windows as pay."""
    if stage < CLEAN_UNTIL:
        return Mix(strength=0.0, full_share=0.04, combination_share=0.1, empty_share=0.03)
    if stage < MILD_UNTIL:
        done = (stage - CLEAN_UNTIL) / (MILD_UNTIL - CLEAN_UNTIL)
        return Mix(0.2 + 0.6 * done, 0.1 + 0.15 * done, 0.3, 0.05)
    return Mix(strength=1.0, full_share=0.3, combination_share=0.4, empty_share=0.08)
