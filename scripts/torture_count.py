"""What became of sentences that were said in a known order: lost, doubled, out of order, wrong.

Nothing here knows where the texts come from; tests/system/test_accounts.py shows that nothing slips by.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields

MATCH, LOST, DOUBLED, WRONG = range(4)
COST = {LOST: 2, DOUBLED: 2, WRONG: 3}
"""A wrong text is dearer than one loss and cheaper than a loss and an intruder together."""
NEAR = 50
"""A sentence lost here and found so many places away is out of order; beyond it is two faults."""


@dataclass
class Verdict:
    """How often each promise was broken; all zero is whole."""

    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    wrong: int = 0

    @property
    def broken(self) -> bool:
        """True when a promise was not kept."""
        return any(getattr(self, entry.name) for entry in fields(self))

    def __str__(self) -> str:
        return (
            f"lost {self.lost}, doubled {self.doubled}, out of order {self.out_of_order}, "
            f"wrong texts {self.wrong}"
        )


def compare(said: Sequence[Hashable], heard: Sequence[Hashable]) -> Verdict:
    """The fewest faults that turn what was said into what was heard."""
    begin = 0
    while begin < min(len(said), len(heard)) and said[begin] == heard[begin]:
        begin += 1
    end = 0
    while end < min(len(said), len(heard)) - begin and said[-1 - end] == heard[-1 - end]:
        end += 1
    steps = _align(said[begin : len(said) - end], heard[begin : len(heard) - end])
    lost = [(place, what) for step, place, what in steps if step == LOST]
    doubled = [(place, what) for step, place, what in steps if step == DOUBLED]
    moved = 0
    for place, what in list(lost):
        at = next((one for one in doubled if one[1] == what and abs(one[0] - place) < NEAR), None)
        if at:
            lost.remove((place, what))
            doubled.remove(at)
            moved += 1
    return Verdict(len(lost), len(doubled), moved, sum(step == WRONG for step, _, _ in steps))


def _align(said: Sequence[Hashable], heard: Sequence[Hashable]) -> list[tuple[int, int, Hashable]]:
    """The cheapest way from `said` to `heard`: step, place in what was said, sentence."""
    ways = [bytearray([DOUBLED]) * (len(heard) + 1)]
    above = [COST[DOUBLED] * count for count in range(len(heard) + 1)]
    for i, one in enumerate(said, 1):
        way, row = bytearray([LOST]) * (len(heard) + 1), [COST[LOST] * i]
        for j, other in enumerate(heard, 1):
            best, step = above[j - 1], MATCH
            if one != other:
                best, step = best + COST[WRONG], WRONG
            if above[j] + COST[LOST] < best:
                best, step = above[j] + COST[LOST], LOST
            if row[j - 1] + COST[DOUBLED] < best:
                best, step = row[j - 1] + COST[DOUBLED], DOUBLED
            row.append(best)
            way[j] = step
        above = row
        ways.append(way)
    steps: list[tuple[int, int, Hashable]] = []
    i, j = len(said), len(heard)
    while i or j:
        step = ways[i][j]
        i -= step != DOUBLED
        j -= step != LOST
        if step != MATCH:
            steps.append((step, i, heard[j] if step == DOUBLED else said[i]))
    return steps[::-1]


def first_times(ids: Iterable[str]) -> list[str]:
    """Each id once, where it came first; a message that came again counts for nothing."""
    return list(dict.fromkeys(ids))


class Sentences:
    """Which sentence a text is, where each has the texts that a run without faults gave it."""

    def __init__(self, texts: dict[int, set[str]]) -> None:
        """Raises ValueError when two sentences share a text: they could not be told apart."""
        self.names: dict[str, int] = {}
        for number, variants in texts.items():
            for text in variants:
                if self.names.setdefault(text, number) != number:
                    raise ValueError(f"sentences {self.names[text]} and {number} read the same")

    def of(self, texts: Iterable[str]) -> list[int]:
        """Numbers of the sentences; -1 for a text that none of them gave."""
        return [self.names.get(text, -1) for text in texts]
