"""From right and wrong texts to the calibration in bundle.json. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from appliance.errors import ConfigError
from appliance.lab.fit.statistics import Numbers, Truths, calibration_error, logistic
from appliance.model import DEFAULT_CALIBRATION, Calibration

LOW = 0.5
"""Confidence below which a text is wrong more often than right: it is flagged."""
ENOUGH = 5
"""Fewest right and fewest wrong texts to fit anything to."""
MANY = 100
"""Fewest texts to fit more than the offset to."""
FOLDS = 5
WRONG_ACTS = 0.03
"""Share of the texts that may act that may be wrong."""


@dataclass(frozen=True, slots=True)
class Example:
    """A text, and whether it is right."""

    right: bool
    features: tuple[float, float]
    """Mean and sum of its natural log-probabilities."""
    group: str
    """Examples of one group are never in both parts of a cross-validation."""
    now: float
    """Confidence that the bundle gives it now."""


def fit_texts(
    examples: Sequence[Example], now: Calibration = DEFAULT_CALIBRATION
) -> tuple[Calibration | None, dict[str, Any]]:
    """Return the calibration of texts, None if it is no better than the bundle's, and its figures
    on examples that it was not fitted to. Of fewer than MANY examples, it is the bundle's, `now`,
    with another offset. Raises ConfigError for too few examples."""
    right = np.array([one.right for one in examples], bool)
    groups = {one.group for one in examples}
    if min(right.sum(), (~right).sum()) < ENOUGH or len(groups) < FOLDS:
        raise ConfigError(
            f"expected at least {ENOUGH} texts that are right, {ENOUGH} that are wrong, and "
            f"{FOLDS} sentences or speakers, found {right.sum()}, {(~right).sum()} and "
            f"{len(groups)}. Nothing was changed. Add recordings, also of sentences that the model "
            "gets wrong."
        )
    few = now if len(examples) < MANY else None
    expected, figures = _cross_validate(examples, few)
    figures["only_offset"] = few is not None
    act = now.act if few else choose_act_confidence(expected, right)
    acting = expected >= act
    figures["acting"] = [int((acting & right).sum()), int((acting & ~right).sum())]
    if figures["error"] >= figures["error_before"]:
        return None, figures
    offset, mean, total = _regress(examples, few)
    return Calibration(offset, mean, total, few.low if few else LOW, act), figures


def choose_act_confidence(expected: Numbers, right: Truths) -> float:
    """Return the least confidence from which on at most WRONG_ACTS of the texts are wrong, with one
    wrong text added as a margin; if no confidence is enough for that, the one with the smallest
    share."""
    limits = np.unique(np.floor(1000 * expected[expected >= LOW]) / 1000)
    if not len(limits):
        return LOW
    shares = np.array(
        [
            ((acting & ~right).sum() + 1) / (acting.sum() + 1)
            for acting in (expected >= limit for limit in limits)
        ]
    )
    enough = np.flatnonzero(shares <= WRONG_ACTS)
    return float(limits[enough[0] if len(enough) else np.argmin(shares)])


def _cross_validate(
    examples: Sequence[Example], few: Calibration | None
) -> tuple[Numbers, dict[str, Any]]:
    """Return the probability of each example by a fit to the other groups, and the figures of those
    probabilities and of the present ones."""
    groups = sorted({one.group for one in examples})
    fold = np.array([groups.index(one.group) % FOLDS for one in examples])
    table = _features(examples)
    expected = np.zeros(len(examples))
    for number in range(FOLDS):
        rest = [one for one, part in zip(examples, fold, strict=True) if part != number]
        odds = table[fold == number] @ np.array(_regress(rest, few))
        expected[fold == number] = 1 / (1 + np.exp(-np.clip(odds, -500, 500)))
    right = np.array([one.right for one in examples], bool)
    now = np.array([one.now for one in examples])
    return expected, {
        "texts": len(right),
        "wrong": int((~right).sum()),
        "error": round(float(np.mean((expected - right) ** 2)), 4),
        "error_before": round(float(np.mean((now - right) ** 2)), 4),
        "calibration_error": round(calibration_error(expected, right), 3),
        "calibration_error_before": round(calibration_error(now, right), 3),
    }


def _regress(examples: Sequence[Example], few: Calibration | None) -> list[float]:
    """The coefficients of the logistic regression, the offset first; one that would be negative is
    0. With `few`, its coefficients and the offset that expects as many right texts as there are."""
    table = _features(examples)
    right = np.array([one.right for one in examples], float)
    if few:
        given = table @ np.array([0.0, few.mean, few.total])
        (offset,) = logistic(table[:, :1], right, np.ones(len(right)), given=given)
        return [round(float(offset), 3), few.mean, few.total]
    columns = list(range(table.shape[1]))
    while True:
        fitted = logistic(table[:, columns], right, np.ones(len(right)))
        found = dict(zip(columns, map(float, fitted), strict=True))
        wrong = [column for column in columns[1:] if found[column] < 0]
        if not wrong:
            return [round(found.get(column, 0.0), 3) for column in range(table.shape[1])]
        columns.remove(wrong[0])


def _features(examples: Sequence[Example]) -> Numbers:
    return np.array([(1.0, *one.features) for one in examples])
