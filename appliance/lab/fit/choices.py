"""From measurements to what bundle.json recommends. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from appliance.errors import ModelError
from appliance.lab.fit.listening import BEAM, WARP, Again, FoundSentence, Text
from appliance.lab.fit.statistics import Numbers, Truths, calibration_error, logistic, ranking
from appliance.model import LEADS, Calibration, Endings, PhraseCalibration, Vtln, log_odds

LOW = 0.5
"""Confidence below which a text is wrong more often than right: it is flagged."""
ENOUGH = 15
"""Fewest right and fewest wrong texts to fit anything to."""
SEPARATE = 0.7
"""Least area under the ROC curve of a confidence that is worth having."""
FOLDS = 5
WRONG_ACTS = 0.03
"""Share of the texts that may act that may be wrong."""
WHOLE_LOST, OPEN_TAKEN = 0.02, 0.06
"""Share of whole sentences that `endings` may call incomplete, and of beginnings that it may call
complete."""
GAIN = 2.0
"""A second pass must mend more texts than it spoils by so many standard deviations (sign test)."""
SLOWEST_MS = 2000.0
"""Longest time of a second pass that is worth having."""


@dataclass(frozen=True, slots=True)
class Example:
    """A text that was published, and whether it is right."""

    right: bool
    mean: float
    total: float
    weight: float
    group: str
    """Examples of one group are not in both parts of a cross-validation."""


def fit_calibration(examples: Sequence[Example]) -> tuple[Calibration, dict[str, Any]]:
    """Return the calibration, and its figures on examples that it was not fitted to
    (cross-validation). Raises ModelError if the probabilities say nothing."""
    right = np.array([one.right for one in examples], bool)
    if min(right.sum(), (~right).sum()) < ENOUGH:
        raise ModelError(
            f"this model cannot be calibrated: of {len(right)} texts {int(right.sum())} are right, "
            f"and at least {ENOUGH} right and {ENOUGH} wrong ones are needed; nothing was changed"
        )
    weights = np.array([one.weight for one in examples])
    places = sorted({one.group for one in examples})
    fold = np.array([places.index(one.group) % FOLDS for one in examples])
    expected = np.zeros(len(right))
    for number in range(FOLDS):
        rest = [one for one, at in zip(examples, fold, strict=True) if at != number]
        trial = _regress(rest)
        for at in np.flatnonzero(fold == number):
            expected[at] = _confidence(trial, examples[int(at)])
    area = ranking(expected, right)
    if not area >= SEPARATE:
        raise ModelError(
            "this model cannot be calibrated: its probabilities do not tell right texts from wrong "
            f"ones (area under the ROC curve {area:.2f}, at least {SEPARATE} is needed); nothing "
            "was changed"
        )
    texts = [one.group for one in examples]
    act = choose_act_confidence(expected, right, texts)
    return replace(_regress(examples), act=act), {
        "texts": len(right),
        "wrong": int((~right).sum()),
        "calibration_error": round(calibration_error(expected, right, weights), 3),
        "area": round(area, 3),
        "acting": [round(count, 1) for count in _count_acting(expected >= act, right, texts)],
    }


def choose_act_confidence(expected: Numbers, right: Truths, texts: Sequence[str]) -> float:
    """Return the least confidence from which on at most WRONG_ACTS of the texts are wrong, with one
    wrong text added as a margin; if no confidence is enough for that, the one with the smallest
    share. A text counts once, however many examples have it."""
    limits = np.unique(np.floor(1000 * expected[expected >= LOW]) / 1000)
    if not len(limits):
        return LOW
    counts = np.array([_count_acting(expected >= limit, right, texts) for limit in limits])
    shares = (counts[:, 1] + 1) / (counts.sum(axis=1) + 1)
    enough = np.flatnonzero(shares <= WRONG_ACTS)
    return float(limits[enough[0] if len(enough) else np.argmin(shares)])


def _count_acting(acting: Truths, right: Truths, texts: Sequence[str]) -> tuple[float, float]:
    """Return how many right and wrong texts act. Each example that acts is an equal part of its
    text."""
    _, numbers = np.unique(texts, return_inverse=True)
    times = np.bincount(numbers[acting], minlength=len(texts))[numbers]
    parts = acting / np.maximum(1, times)
    return float(parts[right].sum()), float(parts[~right].sum())


def _confidence(calibration: Calibration, one: Example) -> float:
    return calibration.confidence([one.mean] * max(1, round(one.total / (one.mean or -1.0))))


def _regress(examples: Sequence[Example]) -> Calibration:
    """The logistic regression; a coefficient that would be negative is left out."""
    table = np.array([(1.0, one.mean, one.total) for one in examples])
    right = np.array([one.right for one in examples], float)
    weights = np.array([one.weight for one in examples])
    for columns in ((0, 1, 2), (0, 1), (0, 2)):
        found = dict.fromkeys(range(3), 0.0)
        found |= zip(columns, map(float, logistic(table[:, columns], right, weights)), strict=True)
        if min(found[1], found[2]) >= 0:
            break
    offset, mean, total = (round(found[at], 3) for at in range(3))
    return Calibration(offset, max(0.0, mean), max(0.0, total), LOW)


def fit_phrases(
    lists: Sequence[Sequence[tuple[FoundSentence, bool]]],
) -> tuple[PhraseCalibration | None, dict[str, Any]]:
    """Return the calibration of expected sentences, each list counting the same; None without
    enough of them. Each has a sentence that was found and whether it may be right."""
    rows = np.array(
        [
            (
                1.0,
                log_odds(one.share),
                one.mean,
                np.clip(one.lead, *LEADS),
                one.right,
                1 / len(part),
            )
            for part in lists
            for one, _ in part
        ],
        float,
    ).reshape(-1, 6)
    right = rows[:, 4] > 0
    if min(right.sum(), (~right).sum()) < ENOUGH:
        return None, {"sentences": len(rows)}
    found = [round(float(one), 2) for one in logistic(rows[:, :4], rows[:, 4], rows[:, 5])]
    fitted = PhraseCalibration(found[0], max(0.0, found[1]), max(0.0, found[2]), min(0.0, found[3]))
    given = np.array(
        [fitted.confidence(one.share, one.mean, one.lead) for part in lists for one, _ in part]
    )
    return fitted, {
        "sentences": len(rows),
        "phrase_calibration_error": round(calibration_error(given, right), 3),
    }


def fit_endings(
    whole: Sequence[float], beginnings: Sequence[float]
) -> tuple[Endings | None, dict[str, Any]]:
    """Return the limits of end-of-sentence detection, from log-probabilities without sound that
    whole sentences and beginnings of sentences end; None if these do not separate them."""
    ends, opens = (np.array([x for x in xs if math.isfinite(x)]) for xs in (whole, beginnings))
    figures: dict[str, Any] = {"whole": len(ends), "beginnings": len(opens)}
    if min(len(ends), len(opens)) < ENOUGH:
        return None, figures
    both = np.concatenate((ends, opens))
    area = ranking(both, np.arange(len(both)) < len(ends))
    figures["endings_area"] = round(area, 3)
    if area < SEPARATE:
        return None, figures
    sure = float(np.quantile(opens, 1 - OPEN_TAKEN))
    opened = min(float(np.quantile(ends, WHOLE_LOST)), sure)
    return Endings(sure=min(0.0, round(sure, 2)), open=min(0.0, round(opened, 2))), figures


def doubtful_below(texts: Sequence[Text]) -> float:
    """Return the mean log-probability that separates right from wrong texts best."""
    known = sorted({text.mean for text in texts})
    wrong = np.array([not text.right for text in texts])
    means = np.array([text.mean for text in texts])
    costs = [int(((means < at) != wrong).sum()) for at in known]
    return round(known[int(np.argmin(costs))], 3) if known else 0.0


def choose_second_pass(
    below: float, first: Sequence[Text], again: Sequence[Again]
) -> tuple[Vtln | None, dict[str, Any]]:
    """Return the second pass that mends texts, warped or with the beam search alone; None if
    neither does so significantly, or it takes too long."""
    best: Vtln | None = None
    figures: dict[str, Any] = {"doubtful": len(again)}
    most = 0.0
    for name, warp in (("beam", 0.0), ("warped", WARP)):
        texts = [getattr(one, name) for one in again]
        mended = sum(b.right and not a.right for a, b in zip(first, texts, strict=True))
        spoiled = sum(a.right and not b.right for a, b in zip(first, texts, strict=True))
        took_ms = float(np.median([getattr(one, f"{name}_ms") for one in again] or [0.0]))
        figures[name] = {"mended": mended, "spoiled": spoiled, "ms": round(took_ms)}
        gain = (mended - spoiled) / math.sqrt(max(1, mended + spoiled))
        if gain >= GAIN and gain > most and took_ms <= SLOWEST_MS:
            best, most = Vtln(warp, below, BEAM), gain
    return best, figures
