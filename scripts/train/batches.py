"""Batches of windows of similar length, the same plan on every process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from train.features import IGNORED, Rendered, Renderer
from train.plans import WINDOW_FRAMES, Mix, Plan, draw_plan
from train.shards import SILENCE_PHONE, Bank
from train.sounds import Generator
from train.wordpieces import Wordpieces

BLOCK = 384
"""Windows planned at once."""
LENGTHS = (100, 140, 180, 220, 260, 300, 360, 440, 560, 700, 840, WINDOW_FRAMES)
"""Mel frames of a batch's windows."""
TOKEN_STEP = 16
"""Token rows are filled up to a multiple of this."""


@dataclass(frozen=True, slots=True)
class Batch:
    """B windows of T frames, P = T / 2 positions, L tokens.

    mel (B, T, 80) float32, start (B,), phones (B, P), tokens (B, L) fed to the decoder, targets
    (B, L) with IGNORED behind the end, places (B, L) where each target is spoken, in positions,
    NaN where that is unknown or means nothing; spelled (B, P) is the piece spoken at each position,
    about, and end-of-text in silence. Of a person it is not known when which piece is spoken:
    untimed (B,) says so, and phones and spelled are IGNORED there.
    """

    mel: Tensor
    start: Tensor
    phones: Tensor
    tokens: Tensor
    targets: Tensor
    places: Tensor
    spelled: Tensor
    untimed: Tensor


class Planner:
    """Draws plans and deals them to processes in batches of one length and one size.

    Few shapes: oneDNN compiles its kernels for every new one. What fills no batch waits.
    """

    def __init__(self, bank: Bank, frames_a_batch: int, processes: int) -> None:
        self.bank = bank
        self.frames_a_batch = frames_a_batch
        self.processes = processes
        self._waiting: dict[int, list[Plan]] = {frames: [] for frames in LENGTHS}

    def steps(self, rng: Generator, mix: Mix) -> list[list[list[Plan]]]:
        """About one block's steps in random order, each one list of plans a process."""
        for _ in range(BLOCK):
            plan = draw_plan(rng, self.bank, mix)
            frames = next(length for length in LENGTHS if length >= plan.frames)
            self._waiting[frames].append(replace(plan, frames=frames))
        ready: list[list[Plan]] = []
        for frames, plans in self._waiting.items():
            size = self.frames_a_batch // frames * self.processes
            while len(plans) >= size:
                ready.append(plans[:size])
                del plans[:size]
        return [
            [ready[i][process :: self.processes] for process in range(self.processes)]
            for i in rng.permutation(len(ready))
        ]


def collate(rendered: list[Rendered], pieces: Wordpieces, rng: Generator) -> Batch:
    """One batch of windows of equal length."""
    frames = len(rendered[0].mel)
    prompt, end = pieces.prompt, pieces.end_of_text
    length = len(prompt) + max(len(item.text_ids) for item in rendered)
    length = min(-(-length // TOKEN_STEP) * TOKEN_STEP, 112)
    count = len(rendered)
    mel = np.zeros((count, frames, rendered[0].mel.shape[1]), np.float32)
    phones = np.zeros((count, frames // 2), np.int64)
    tokens = np.full((count, length), end, np.int64)
    targets = np.full((count, length), IGNORED, np.int64)
    places = np.full((count, length), np.nan, np.float32)
    spelled = np.full((count, frames // 2), end, np.int64)
    start = np.zeros(count, np.int64)
    untimed = np.zeros(count, np.bool_)
    for i, item in enumerate(rendered):
        mel[i] = item.mel
        phones[i] = item.phones
        row = [*prompt, *item.text_ids, end]
        tokens[i, : len(row) - 1] = row[:-1]
        targets[i, : len(row) - 1] = row[1:]
        first = len(prompt) - 1
        places[i, first : first + len(item.places)] = item.places
        untimed[i] = np.isnan(item.places[:-1]).any()
        if untimed[i]:
            spelled[i] = IGNORED
        elif item.text_ids:
            spelled[i] = _spell(item, end)
        if not item.speech:
            targets[i, 0] = pieces.no_speech
        if frames < WINDOW_FRAMES:
            start[i] = rng.integers(0, (WINDOW_FRAMES - frames) // 2 + 1)
    return Batch(
        mel=torch.from_numpy(mel),
        start=torch.from_numpy(start),
        phones=torch.from_numpy(phones),
        tokens=torch.from_numpy(tokens),
        targets=torch.from_numpy(targets),
        places=torch.from_numpy(places),
        spelled=torch.from_numpy(spelled),
        untimed=torch.from_numpy(untimed),
    )


def _spell(item: Rendered, silence: int) -> NDArray[np.int64]:
    """The piece spoken nearest to each position where a phone sounds, (P,)."""
    places = np.array(item.places[:-1])
    edges = (places[:-1] + places[1:]) / 2
    nearest = np.searchsorted(edges, np.arange(len(item.phones)))
    sounding = item.phones != SILENCE_PHONE
    return np.where(sounding, np.array(item.text_ids)[nearest], silence)


def windows(renderer: Renderer, steps: list[list[list[Plan]]], process: int) -> Iterator[Batch]:
    """The batches of one process for `steps`."""
    for step in steps:
        plans = step[process]
        rng = np.random.default_rng(plans[0].seed ^ 1)
        yield collate([renderer.render(plan) for plan in plans], renderer.pieces, rng)
