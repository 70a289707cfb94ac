"""What keeps the decoder from running on: pure functions on the logits of a step.

A column is where a token stands among the logits.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from appliance.records import Logits


def suppress(logits: Logits, columns: NDArray[np.intp]) -> Logits:
    """Logits (n,) with minus infinity at `columns`; a copy."""
    result = logits.copy()
    result[columns] = -np.inf
    return result


def penalise(logits: Logits, written: NDArray[np.intp], penalty: float) -> Logits:
    """Logits with those at the columns already `written` made less, once for each distinct one.

    Positive ones are divided by `penalty`, negative ones multiplied (Keskar et al. 2019, CTRL);
    1 is off.
    """
    if penalty == 1.0 or not len(written):
        return logits
    result, columns = logits.copy(), np.unique(written)
    chosen = result[columns]
    result[columns] = np.where(chosen > 0, chosen / penalty, chosen * penalty)
    return result


def boost_end(logits: Logits, end_of_text: int, boost: float) -> Logits:
    """Logits with `boost` added to end-of-text's, so that it wins when it comes that close."""
    if boost == 0.0:
        return logits
    result = logits.copy()
    result[end_of_text] += boost
    return result


def sample(logits: Logits, temperature: float, rng: np.random.Generator) -> int:
    """A column drawn with the probabilities softmax(logits / temperature); the best one at 0."""
    if temperature == 0.0:
        return int(np.argmax(logits))
    # the greatest of logits with Gumbel noise is a draw from their softmax
    return int(np.argmax(logits / np.float32(temperature) + rng.gumbel(size=logits.shape)))


def best_besides(logits: Logits, columns: NDArray[np.intp]) -> int:
    """The column of the greatest logit that is not among `columns`. They are hidden for a moment:
    copying 50,000 numbers for each token would take longer than all the rules."""
    hidden = logits[columns]
    logits[columns] = -np.inf
    best = int(np.argmax(logits))
    logits[columns] = hidden
    return best


def log_sum(logits: Logits) -> float:
    """Logarithm of the sum of exp(logits)."""
    peak = float(np.max(logits))
    return peak + math.log(float(np.exp(logits - np.float32(peak)).sum()))
