"""Beam search by Whisper's rules, without a network: which of several texts is the likeliest.

As openai/whisper (decoding.py) and CTranslate2 (decoding.cc) do it with patience 1 and their usual
length penalty. A column is a token's index among the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from appliance.infer.network import Step

CHUNK = 256
"""Columns of which only the best one is looked at first."""
ROUNDING = 1e-3
"""More than the rounding of a logit in float32."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text, maybe unfinished."""

    columns: tuple[int, ...] = ()
    """Without end-of-text."""
    logprobs: tuple[float, ...] = ()
    """Natural log-probability of each token, then end-of-text's if it was reached."""

    @property
    def ended(self) -> bool:
        """True if end-of-text was reached."""
        return len(self.logprobs) > len(self.columns)

    @property
    def score(self) -> float:
        """Sum of the log-probabilities, end-of-text's included, for each token without it."""
        return sum(self.logprobs) / len(self.columns) if self.columns else -np.inf

    def grown(self, column: int, logprob: float, end: int) -> Text:
        """Return the text with one more token, or with its end."""
        columns = self.columns if column == end else (*self.columns, column)
        return Text(columns, (*self.logprobs, logprob))


def search(
    ahead: Step,
    follow: Callable[[Sequence[int], Sequence[int]], Step],
    *,
    end: int,
    size: int,
    limit: int,
    should_continue: Callable[[], bool] = lambda: True,
) -> Text | None:
    """Return the best text of at most `limit` tokens; None if `should_continue` became False.

    Each step looks at the 2 `size` likeliest continuations of all texts. The best `size` that do
    not end are continued; texts that end among the first `size` are finished. The search is over
    when `size` texts are finished, and the best score wins.

    `ahead` is what may follow the empty text; minus infinity: impossible. `follow(parents,
    columns)` makes text i of text parents[i] and a column, and returns what may follow.
    """
    texts, finished = [Text()], list[Text]()
    for left in reversed(range(limit)):
        best = _best(ahead, [sum(text.logprobs) for text in texts], 2 * size)
        grown = [(row, texts[row].grown(column, odds, end)) for row, column, odds in best]
        finished += [text for _, text in grown[:size] if text.ended]
        alive = [(row, text) for row, text in grown if not text.ended][:size]
        if len(finished) >= size or not alive:
            break
        if not left:
            finished += [text for _, text in alive[: size - len(finished)]]
            break
        if not should_continue():
            return None
        texts = [text for _, text in alive]
        ahead = follow([row for row, _ in alive], [text.columns[-1] for text in texts])
    return max(finished, key=lambda text: text.score, default=None)


def _best(ahead: Step, sums: Sequence[float], count: int) -> list[tuple[int, int, float]]:
    """Return the text, column and log-probability of the `count` likeliest continuations, best
    first; `sums` are the texts' log-probabilities.

    A sort of 50,000 numbers takes as long as a step. So the best of each chunk is looked at first:
    at least `count` continuations are as likely as the chunk that is number `count`.
    """
    offsets = np.array(sums) - ahead.totals
    starts = np.arange(0, ahead.logits.shape[1], CHUNK)
    peaks = np.maximum.reduceat(ahead.logits, starts, axis=1) + offsets[:, None]
    least = np.partition(peaks, -count, axis=None)[-count] if peaks.size > count else -np.inf
    found = []
    for row, offset in enumerate(offsets):
        logits = ahead.logits[row]
        [columns] = np.nonzero(logits >= np.float32(least - offset - ROUNDING))
        odds = (logits[columns].astype(np.float64) - ahead.totals[row]).tolist()
        found += [(row, column, each) for column, each in zip(columns.tolist(), odds, strict=True)]
    possible = [one for one in found if one[2] > -np.inf]
    return sorted(possible, key=lambda one: -(sums[one[0]] + one[2]))[:count]
