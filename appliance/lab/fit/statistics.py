"""Logistic regression, and how true probabilities are."""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Truths = NDArray[np.bool_]

RIDGE = 1e-3
"""Keeps the regression finite where one feature separates right from wrong."""
BINS = 10


def logistic(
    features: Numbers,
    right: Numbers,
    weights: Numbers,
    ridge: float = RIDGE,
    given: Numbers | float = 0.0,
) -> Numbers:
    """Return the coefficients (k,) of a logistic regression of `right` (n,) on (n, k), by Newton's
    method; a larger `ridge` keeps them smaller. `given` are log-odds that are known, (n,)."""
    weights = weights * (len(right) / weights.sum())
    found = np.zeros(features.shape[1])
    for _ in range(100):
        odds = 1 / (1 + np.exp(-np.clip(features @ found + given, -500, 500)))
        slope = features.T @ (weights * (odds - right)) + ridge * found
        bend = (features.T * (weights * odds * (1 - odds))) @ features + ridge * np.eye(len(found))
        found -= np.linalg.solve(bend, slope)
    return found


def calibration_error(found: Numbers, right: Truths) -> float:
    """Return the expected calibration error: the mean distance of probability and share of right
    texts over BINS equal bins, by their sizes."""
    places = (found * BINS).astype(int).clip(0, BINS - 1)
    parts = [places == at for at in range(BINS)]
    gaps = [abs((found - right)[part].sum()) for part in parts]
    return float(sum(gaps) / max(1e-9, len(found)))
