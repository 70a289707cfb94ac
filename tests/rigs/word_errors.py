"""Word errors between what was said and what was heard."""

from __future__ import annotations

import re
from collections.abc import Sequence

from appliance.cli.doctor.comparison import word_errors as count_errors


def words(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return re.findall(r"[a-z0-9']+", text.lower())


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Substitutions, insertions and deletions (Levenshtein), and the number of words said."""
    return count_errors(words(said), words(heard)), len(words(said))


def word_error_rate(said: Sequence[str], heard: Sequence[str]) -> float:
    """Errors per word said, in percent, over all pairs."""
    counts = [word_errors(a, b) for a, b in zip(said, heard, strict=True)]
    return 100 * sum(errors for errors, _ in counts) / max(1, sum(count for _, count in counts))
