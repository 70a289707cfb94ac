"""Which sentences are said to the home: those that begin with the address phrase ("computer, turn
on the light"), and the next one after the phrase alone."""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from appliance.records import (
    ADDRESS_ALONE_S,
    ADDRESSED,
    HEARD_HERE,
    NoAct,
    Transcript,
    is_expected,
)

log = logging.getLogger("roomscribe.homeassistant")

COMMAND_WITHIN = timedelta(seconds=5)
"""Longest pause between the address phrase, said alone, and the beginning of its command."""
OVERLAP = timedelta(seconds=1)
"""A window begins a little before its speech, possibly before the previous window ends."""
TYPO_FROM = 5
"""A phrase of fewer letters must match exactly."""
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


class AddressPhrase:
    """Finds transcripts that are said to the home. One thread, in the order of the transcripts."""

    def __init__(
        self, phrase: str, media_plays: Callable[[datetime], bool] = lambda _: False
    ) -> None:
        """`phrase` is empty if there is none: then no transcript is. `media_plays` returns whether
        a media player plays, or has played since a time."""
        self._phrase, self._media_plays = phrase, media_plays
        self._called: datetime | None = None
        """When the phrase was said alone, if the next sentence may be its command."""
        self._invited_until = datetime.min.replace(tzinfo=UTC)
        """Until when a sentence may begin that needs no phrase."""

    def invite(self, within_s: float) -> None:
        """Take the next sentence, without the phrase, if it begins so soon. Any thread."""
        self._invited_until = datetime.now(UTC) + timedelta(seconds=within_s)

    def mark(self, one: Transcript) -> Transcript:
        """Return the transcript, with the flag ADDRESSED if it is said to the home, or else
        NoAct.MEDIA if a media player may have said it.

        The phrase alone needs no confidence: two tokens never have much, and the command needs its
        own.
        """
        if one.source != HEARD_HERE or not self._phrase:
            return one
        called, self._called = self._called, None
        texts = [one.text, *([one.phrase.sentence] if one.phrase and is_expected(one) else [])]
        rests = [rest for text in texts if (rest := after_phrase(text, self._phrase)) is not None]
        if rests and not any(rests):
            if (one.end - one.start).total_seconds() > ADDRESS_ALONE_S:
                log.info("more than the phrase for Assist was said, but not understood")
            else:
                self._called = one.end
                log.info("the phrase for Assist was said alone; the next sentence is its command")
        elif (
            not rests
            and one.start >= self._invited_until
            and not (called and -OVERLAP <= one.start - called <= COMMAND_WITHIN)
        ):
            plays = self._media_plays(one.start)
            return replace(one, flags=(*one.flags, NoAct.MEDIA.value)) if plays else one
        self._invited_until = datetime.min.replace(tzinfo=UTC)
        return replace(one, flags=(*one.flags, ADDRESSED))


def after_phrase(text: str, phrase: str) -> str | None:
    """Return what follows the address phrase at the beginning of a text, "" if nothing does; None
    if the text does not begin with it.

    Capitals and punctuation do not count, and one letter may be wrong, missing or too many in a
    phrase of TYPO_FROM letters; a space is a letter, too: "com puter".
    """
    wanted = " ".join(word.casefold() for word in _WORD.findall(phrase))
    if not wanted:
        return None
    words = list(_WORD.finditer(text))
    count = wanted.count(" ") + 1
    # try the exact number of words first, so that no word of the command is taken for the phrase's
    for taken in (count, count + 1, count - 1):
        if not 0 < taken <= len(words):
            continue
        beginning = " ".join(word[0].casefold() for word in words[:taken])
        if beginning == wanted or (len(wanted) >= TYPO_FROM and _one_apart(beginning, wanted)):
            rest = text[words[taken - 1].end() :]
            found = _WORD.search(rest)
            return rest[found.start() :].strip() if found else ""
    return None


def _one_apart(one: str, other: str) -> bool:
    """Return True if replacing, inserting or removing one letter turns `one` into `other`."""
    if abs(len(one) - len(other)) > 1 or one == other:
        return False
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    skip_one, skip_other = len(one) >= len(other), len(other) >= len(one)
    return one[same + skip_one :] == other[same + skip_other :]
