"""Count the words of spoken sentences that were written; needs no library.

python -m deb.heard SAID HEARD    two files with a line for each sentence; status 1 below 80 %
"""

import difflib
import re
import sys
from pathlib import Path

ENOUGH = 0.8


def words_right(said: str, heard: str) -> tuple[int, int]:
    """Return how many words of `said` are in `heard`, in order, and how many `said` has; capitals
    and punctuation do not count."""
    ours, theirs = (re.findall(r"[a-z0-9']+", text.lower()) for text in (said, heard))
    blocks = difflib.SequenceMatcher(None, ours, theirs).get_matching_blocks()
    return sum(block.size for block in blocks), len(ours)


def main() -> int:
    """Print how many words of all sentences are right, and return the exit status."""
    said, heard = (Path(name).read_text(encoding="utf-8").splitlines() for name in sys.argv[1:])
    counts = [words_right(*pair) for pair in zip(said, heard, strict=True)]
    right, words = (sum(numbers) for numbers in zip(*counts, strict=True))
    print(f"{right} of {words} words of {len(said)} sentences are right")
    return int(right < ENOUGH * words)


if __name__ == "__main__":
    sys.exit(main())
