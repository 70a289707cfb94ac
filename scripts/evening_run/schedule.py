"""The schedule of an evening: when each sound is played and what else happens."""

import math
import random
from collections.abc import Sequence

import numpy as np
from evening_run.programme import SENTENCE, Block, Item, Level, Step

from appliance.records import SAMPLE_RATE

RELOADS = 0.25, 0.8
"""When in the evening they begin and end, as a share of its sounds."""
ANSWERED_S = 2.0
"""A step comes at least this long after a sound."""
BACK_S = 4.0
"""The next sound comes at least this long after a step, and not before it is done."""
CENSUS_S = 3.0
"""Memory is measured this long after the last reload."""
LEAD_S = 3.0
WYOMING_EVERY = 5
"""At one sentence in so many a Wyoming client sends another one."""


def lay_out(items: Sequence[Item], level: Level, seed: int) -> list[Block]:
    """Return the evening's blocks."""
    rng = random.Random(f"gaps {seed}")
    planned = plan(len(items), level.reloads)
    blocks = [Block(length=int(LEAD_S * SAMPLE_RATE))]
    spoken = 0
    for number, item in enumerate(items):
        if blocks[-1].length > level.block_s * SAMPLE_RATE:
            blocks.append(Block(length=int(LEAD_S * SAMPLE_RATE)))
        block = blocks[-1]
        add(block, item, log_uniform(rng, *level.gap_s))
        if item.kind == SENTENCE:
            spoken += 1
            if spoken >= WYOMING_EVERY and number not in planned:
                spoken = 0
                at = block.places[-1] + item.begin
                block.steps.append(Step(at, "wyoming", len(block.items) - 1))
        for what in planned.get(number, ()):
            act(block, what)
    finish(blocks)
    return blocks


def plan(count: int, reloads: int) -> dict[int, list[str]]:
    """Return what is done after which item, of so many."""
    planned = [(0.0, "start")]
    planned += [(float(at), "reload") for at in np.linspace(*RELOADS, reloads)]
    found: dict[int, list[str]] = {}
    for at, what in planned:
        found.setdefault(int(at * count), []).append(what)
    return found


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    """Return a number between the two; as many below the geometric mean as above it."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def add(block: Block, item: Item, gap_s: float) -> None:
    """Add a sound whose speech begins `gap_s` after the end of the last one."""
    place = block.length + max(0, int(gap_s * SAMPLE_RATE) - item.begin - tail(block))
    block.items.append(item)
    block.places.append(place)
    block.length = place + len(item.sound)


def tail(block: Block) -> int:
    """Return the samples between the end of the last speech and the block's end."""
    if not block.items:
        return 0
    return block.length - block.places[-1] - block.items[-1].end


def act(block: Block, what: str) -> None:
    """Add a step in the silence behind the last sound."""
    rest = max(0, int(ANSWERED_S * SAMPLE_RATE) - tail(block))
    block.steps.append(Step(block.length + rest, what))
    block.length += rest
    if what != "start":
        block.length += int(BACK_S * SAMPLE_RATE)
        block.cuts.append(block.length)


def finish(blocks: Sequence[Block]) -> None:
    """Add the steps that measure memory after the last reload and at the end."""
    for block in blocks:
        block.length += int(ANSWERED_S * SAMPLE_RATE)
    reloads = [(block, step) for block in blocks for step in block.steps if step.what == "reload"]
    if reloads:
        block, step = reloads[-1]
        block.steps.append(Step(step.at + int(CENSUS_S * SAMPLE_RATE), "after reloads"))
    blocks[-1].steps.append(Step(blocks[-1].length, "end"))
    for block in blocks:
        block.steps.sort(key=lambda step: step.at)
