"""Drafts: likely next tokens, of which the decoder verifies several in one pass (prompt lookup
decoding). That costs less than a pass for each.

They come from the text of an earlier, speculative version of the window, or from sentences that
this process has heard with the same beginning. A draft never changes a text, only the time that it
takes. Nothing leaves the process's memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from appliance.model import JOINT

MOST = JOINT - 1
"""Most tokens in a draft: a pass verifies them after one that is known."""
SENTENCES = 400
"""Sentences remembered, the newest; about 1 MB at 10 tokens each if all differ."""
LONGEST = 40
"""Most tokens remembered of a sentence."""
STAYS = 0.9
"""Probability that the next version keeps a token of the earlier one if it kept the one before."""
MISSED = 0.25
"""Factor for each wrong draft on the probability that the sentence was heard before."""
REMEMBERS = 16
"""Sentences over which the share of those heard before is averaged."""


@dataclass(slots=True, eq=False)
class _Node:
    """A beginning of sentences."""

    count: int = 0
    """Sentences that begin so."""
    after: dict[int, _Node] = field(default_factory=dict)


class Drafts:
    """The sentences heard, as a tree of tokens. One thread."""

    def __init__(self, sentences: int = SENTENCES) -> None:
        """Remembers the newest `sentences`."""
        self._root, self._heard, self._limit = _Node(), deque[tuple[int, ...]](), sentences
        self._repeated = 0.5
        """Share of sentences that had been heard before."""
        self._extra: list[float] = []
        self._owner: object = None
        """Window of the newest sentence."""
        self._earlier: tuple[int, ...] = ()

    @property
    def worth_it(self) -> bool:
        """True once the cost of a pass is known; before that, nothing is proposed."""
        return bool(self._extra)

    def price(self, costs: Mapping[int, float]) -> None:
        """Set the cost of a pass by its number of tokens, 1 among them, in any unit. An empty
        mapping: passes of several tokens are not possible."""
        self._extra = []
        if costs:
            sizes = sorted(costs)
            times = np.maximum.accumulate([costs[size] / costs[1] for size in sizes])
            passes = range(2, min(MOST + 1, sizes[-1]) + 1)
            self._extra = [float(np.interp(size, sizes, times)) - 1.0 for size in passes]

    def expect(self, owner: object) -> None:
        """Announce the window that is decoded next. If the newest sentence is of the same one, it
        is likely to come again."""
        again = owner == self._owner and len(self._heard) > 0
        self._owner, self._earlier = owner, self._heard[-1] if again else ()

    def add(self, tokens: Sequence[int]) -> None:
        """Remember a decoded sentence, in place of its window's earlier version; forget the oldest
        of too many."""
        sentence = tuple(tokens[:LONGEST])
        if self._earlier:
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
        """Return at most `most` tokens that may follow `written` (not empty): as many as are likely
        to save time. `missed` drafts of this text were wrong so far.

        From the earlier version of this window if it begins so, otherwise what most often followed
        in the sentences heard.
        """
        most = min(most, len(self._extra))
        done = len(written)
        if len(self._earlier) > done and self._earlier[:done] == tuple(written):
            tokens = list(self._earlier[done : done + most])
            odds = [STAYS ** (place + 1) for place in range(len(tokens))]
        else:
            tokens, odds = self._commonest(written, most, self._repeated * MISSED**missed)
        # stop where the tokens that are likely to be right no longer pay for the longer pass
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
        """What followed `written` most often, and the probability of each token with those before
        it; `share` is the probability that the sentence was heard before."""
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
