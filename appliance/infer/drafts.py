"""Tokens that are likely to come next: the decoder verifies several in one pass, which costs less
than a pass for each.

They come from what the same window was said to be before speech went on, or from the sentences that
this process has heard, by their beginnings. What is proposed never changes a text, only the time
that it takes. Nothing of it leaves the process's memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from appliance.model import JOINT

MOST = JOINT - 1
"""Tokens proposed at once: a pass verifies them behind one that is known."""
SENTENCES = 400
"""So many are remembered, the newest; at 10 tokens each about 1 MB where no two are alike."""
LONGEST = 40
"""Tokens of a sentence that are remembered."""
STAYS = 0.9
"""Probability that a token of a guess is in the next one, too, if the one before it is."""
MISSED = 0.25
"""By this a sentence is less likely to be one heard before, for each draft that was wrong."""
REMEMBERS = 16
"""The share of sentences heard before is a mean over about so many."""


@dataclass(slots=True, eq=False)
class _Node:
    """A beginning of sentences."""

    count: int = 0
    """Sentences that begin so."""
    after: dict[int, _Node] = field(default_factory=dict)


class Drafts:
    """The sentences heard, and what to propose after a beginning. One thread."""

    def __init__(self, sentences: int = SENTENCES) -> None:
        """Remembers the newest `sentences`."""
        self._root, self._heard, self._limit = _Node(), deque[tuple[int, ...]](), sentences
        self._repeated = 0.5
        """Share of sentences that were heard before."""
        self._extra: list[float] = []
        self._owner: object = None
        """What the newest sentence was heard in."""
        self._guess: tuple[int, ...] = ()

    @property
    def worth_it(self) -> bool:
        """True once it is known what a pass costs; before, nothing is proposed."""
        return bool(self._extra)

    def price(self, costs: Mapping[int, float]) -> None:
        """`costs` are those of passes of so many tokens, 1 among them, in any unit; none: several
        tokens cannot be had in one pass."""
        self._extra = []
        if costs:
            sizes = sorted(costs)
            times = np.maximum.accumulate([costs[size] / costs[1] for size in sizes])
            passes = range(2, min(MOST + 1, sizes[-1]) + 1)
            self._extra = [float(np.interp(size, sizes, times)) - 1.0 for size in passes]

    def expect(self, owner: object) -> None:
        """What is decoded next is `owner`'s: if the newest sentence is, too, it comes again."""
        again = owner == self._owner and len(self._heard) > 0
        self._owner, self._guess = owner, self._heard[-1] if again else ()

    def add(self, tokens: Sequence[int]) -> None:
        """Remembers what was decoded, in place of what its owner was said to be before, and forgets
        the oldest of too many."""
        sentence = tuple(tokens[:LONGEST])
        if self._guess:
            self._forget(self._heard.pop())
        else:
            known = self._find(sentence) is not None
            self._repeated += (known - self._repeated) / REMEMBERS
        self._heard.append(sentence)
        node = self._root
        for token in sentence:
            node = node.after.setdefault(token, _Node())
            node.count += 1
        if len(self._heard) > self._limit:
            self._forget(self._heard.popleft())

    def propose(self, written: Sequence[int], most: int = MOST, missed: int = 0) -> tuple[int, ...]:
        """At most `most` tokens that may follow `written`, which is not empty, as many as are
        likely to save time; `missed` drafts of this text were wrong so far.

        Of the same window's text before, if it begins so, else of the sentences heard: each time
        what followed most.
        """
        most = min(most, len(self._extra))
        done = len(written)
        if len(self._guess) > done and self._guess[:done] == tuple(written):
            tokens = list(self._guess[done : done + most])
            odds = [STAYS ** (place + 1) for place in range(len(tokens))]
        else:
            tokens, odds = self._commonest(written, most, self._repeated * MISSED**missed)
        best = gain = 0.0
        length = 0
        for place, odd in enumerate(odds):
            gain += odd
            if gain - self._extra[place] > best:
                best, length = gain - self._extra[place], place + 1
        return tuple(tokens[:length])

    def _commonest(
        self, written: Sequence[int], most: int, share: float
    ) -> tuple[list[int], list[float]]:
        """What followed `written` most often, and how likely each token is with those before, if a
        sentence is one of those heard with the probability `share`."""
        tokens: list[int] = []
        odds: list[float] = []
        node = self._find(written)
        while node and node.after and len(tokens) < most:
            token, following = max(node.after.items(), key=lambda item: item[1].count)
            share *= following.count / node.count
            tokens.append(token)
            odds.append(share)
            node = following
        return tokens, odds

    def _find(self, written: Sequence[int]) -> _Node | None:
        node: _Node | None = self._root
        for token in written:
            if node is None:
                break
            node = node.after.get(token)
        return node

    def _forget(self, sentence: tuple[int, ...]) -> None:
        node = self._root
        for token in sentence:
            following = node.after[token]
            following.count -= 1
            if not following.count:
                del node.after[token]
                return
            node = following
