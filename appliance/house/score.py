"""How well a room heard a sentence, as one number that can be compared with other rooms'.

The weights are those of a logistic regression: the difference of two rooms' scores is the logarithm
of the odds that the first one is nearer to the speaker. They were fitted on
simulated rooms, with synthetic voices.
"""

from __future__ import annotations

import math

from appliance.records import Transcript

WEIGHTS = {
    "confidence": 2.30,
    "level_db": 0.102,
    "snr_db": 0.142,
    "decay_db": 0.246,
}
"""Weight of each property, per unit."""
UNKNOWN = {"confidence": 0.4, "level_db": -40.0, "snr_db": 15.0, "decay_db": 10.0}
"""Value in place of one that is unknown: what a poorly heard sentence has."""
DIGITS = 3


def properties(transcript: Transcript, decay_db: float | None) -> dict[str, float]:
    """Return what the score is computed from, in the order of WEIGHTS."""
    found = {
        "confidence": transcript.confidence if math.isfinite(transcript.confidence) else None,
        "level_db": transcript.level_dbfs,
        "snr_db": transcript.snr_db,
        "decay_db": decay_db,
    }
    return {name: UNKNOWN[name] if value is None else value for name, value in found.items()}


def score(transcript: Transcript, decay_db: float | None) -> float:
    """Return how well a sentence was heard; higher is better."""
    found = properties(transcript, decay_db)
    return round(sum(WEIGHTS[name] * found[name] for name in WEIGHTS), DIGITS)
