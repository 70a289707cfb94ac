"""Word errors between what was said and what was heard."""

import re

from appliance.cli.doctor.model import word_errors as count_errors
from appliance.infer.numbers import in_words


def words(text: str) -> list[str]:
    """Lower-case words without punctuation; numbers below 1000 as words, "what's" as "what is"."""
    plain = text.lower().replace("what's", "what is")
    spelled = re.sub(r"\b\d{1,3}\b", lambda number: in_words(int(number[0])), plain)
    return re.findall(r"[a-z0-9']+", spelled.replace("%", " percent"))


def same_words(a: str, b: str) -> bool:
    """Whether two texts differ in capitals, punctuation and the spelling of numbers at most."""
    return words(a) == words(b)


def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Substitutions, insertions and deletions (Levenshtein), and the number of words said."""
    return count_errors(words(said), words(heard)), len(words(said))
