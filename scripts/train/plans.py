"""Plan training windows: utterances, speed, position and strength of distortion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from train.shards import Bank
from train.sounds import Generator

WINDOW_FRAMES = 1000
LONGEST_SPEECH_S = 9.5


@dataclass(frozen=True, slots=True)
class Mix:
    """How windows are drawn: shares of 0..1, and how hard they are distorted (0..1)."""

    strength: float
    full_share: float
    combination_share: float
    empty_share: float
    people_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A window to be made: utterances (none: no speech), tempo factor, length in mel frames."""

    utterances: tuple[int, ...]
    tempo: float
    lead_s: float
    tail_s: float
    frames: int
    strength: float
    seed: int

    @property
    def full(self) -> bool:
        """Whether this is a 10 s window."""
        return self.frames == WINDOW_FRAMES


def draw_plan(rng: Generator, bank: Bank, mix: Mix) -> Plan:
    """One window's plan."""
    full = rng.random() < mix.full_share
    seed = int(rng.integers(2**62))
    tempo = 1.0
    if rng.random() < 0.8 * mix.strength:
        tempo = float(np.clip(1 + rng.normal(0, 0.075), 0.86, 1.18))
    lead_s, tail_s = rng.uniform(0.0, 0.6), rng.uniform(0.05, 0.5)
    if rng.random() < mix.empty_share:
        frames = WINDOW_FRAMES if full else 2 * int(rng.integers(60, 250))
        return Plan((), tempo, lead_s, tail_s, frames, mix.strength, seed)
    wanted = 1
    if rng.random() < (mix.combination_share * (1.5 if full else 0.6)):
        wanted = int(rng.choice([2, 3, 4]))
    living = rng.random() < mix.people_share and len(bank.people) > 0
    speakers = bank.people if living or not len(bank.synthesised) else bank.synthesised
    first = int(rng.choice(speakers))
    while bank.durations[first] / tempo > LONGEST_SPEECH_S - 0.3:
        first = int(rng.choice(speakers))
    chosen, seconds = [first], float(bank.durations[first]) / tempo
    mates = bank.same_voice(first)
    for _ in range(6):
        if len(chosen) == wanted:
            break
        mate = int(mates[rng.integers(len(mates))])
        longer = seconds + 0.8 + float(bank.durations[mate]) / tempo
        if longer <= LONGEST_SPEECH_S:
            chosen.append(mate)
            seconds = longer
    if full:
        free_s = WINDOW_FRAMES / 100 - seconds
        if rng.random() < 0.6:
            lead_s = rng.uniform(0.4, 0.8) if rng.random() < 0.75 else rng.uniform(0, 1.2)
            tail_s = rng.uniform(0.2, 0.8)
        else:
            lead_s, tail_s = rng.uniform(0, min(8.5, free_s)), 10.0
        lead_s = min(lead_s, free_s)
        frames = WINDOW_FRAMES
    else:
        frames = min(WINDOW_FRAMES, 2 * int(np.ceil((lead_s + seconds + tail_s) * 50)))
        lead_s = min(lead_s, frames / 100 - seconds)
    return Plan(tuple(chosen), tempo, max(0.0, lead_s), tail_s, frames, mix.strength, seed)
