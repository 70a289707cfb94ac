"""Find the time of each word and phone in a recording, and cut long recordings into phrases.

The acoustic model is CMU's, of pocketsphinx (https://github.com/cmusphinx/pocketsphinx, BSD); words
that its dictionary lacks get flite's pronunciation.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from train.flite import Flite
from train.phones import Segment, from_arpabet, tidy
from train.voices import SAMPLE_RATE

FRAME_S = 0.01
VOWELS = frozenset("aa ae ah ao aw ax ay eh er ey ih iy ow oy uh uw".split())  # noqa: SIM905
PAUSE_S = 0.12
"""A silence between words this long is a place to cut."""
SHORTEST_S, LONGEST_S = 0.8, 8.5


class Word(NamedTuple):
    """A word and its phones, with times in s from the recording's start."""

    text: str
    start: float
    end: float
    phones: list[Segment]


class Aligner:
    """Finds the words of a known text in its recording."""

    def __init__(self) -> None:
        from pocketsphinx import Decoder  # for training alone: phrases are cut without it

        self._decoder = Decoder(samprate=SAMPLE_RATE, bestpath=False, lm=None, loglevel="FATAL")
        self._flite = Flite()
        self.pronounce = cache(self._pronounce)

    def _pronounce(self, word: str) -> list[str]:
        segments = self._flite.say("slt", word, 1.0, random.Random(0)).segments
        return [segment.phone for segment in segments if segment.phone != "sil"]

    def _learn(self, text: str) -> None:
        for word in text.split():
            if self._decoder.lookup_word(word) is None:
                phones = ["ah" if phone == "ax" else phone for phone in self.pronounce(word)]
                self._decoder.add_word(word, " ".join(phones).upper(), update=True)

    def _pass(self, samples: NDArray[np.int16]) -> None:
        self._decoder.start_utt()
        self._decoder.process_raw(samples.tobytes(), full_utt=True)
        self._decoder.end_utt()

    def words(self, samples: NDArray[np.int16], text: str) -> list[Word] | None:
        """Where the words of `text` are in `samples` (n,); None where they cannot be found."""
        try:
            self._learn(text)
            self._decoder.set_align_text(text)
            self._pass(samples)
            if not self._decoder.hyp():
                return None
            self._decoder.set_alignment()
            self._pass(samples)
            found = self._decoder.get_alignment()
        except RuntimeError:
            return None
        if found is None:
            return None
        heard = [word for word in map(self._word, found) if word]
        return heard if [word.text for word in heard] == text.split() else None

    def _word(self, entry: Any) -> Word | None:
        name = entry.name.partition("(")[0]
        if name.startswith(("<", "[", "+")):
            return None
        start, end = entry.start * FRAME_S, (entry.start + entry.duration) * FRAME_S
        segments = [
            Segment(
                phone.name.lower(), phone.start * FRAME_S, (phone.start + phone.duration) * FRAME_S
            )
            for phone in entry
        ]
        spoken = [s.phone for s in segments if s.phone in VOWELS]
        usual = [phone for phone in self.pronounce(name) if phone in VOWELS]
        vowels = iter(usual if len(usual) == len(spoken) else ["ax"] * len(spoken))
        phones = []
        for segment in segments:
            phone = from_arpabet(segment.phone)
            if phone in VOWELS:
                known = next(vowels)
                if phone == "ah":  # CMU's phones have no schwa of their own
                    phone = "ah" if known == "ah" else "ax"
            phones.append(segment._replace(phone=phone))
        return Word(name, start, end, phones)


class Phrase(NamedTuple):
    """Part of a recording: its span in s, its text, and its phones from the span's start."""

    start: float
    end: float
    text: str
    segments: list[Segment]


def _phrase(words: list[Word], start: float, end: float) -> Phrase:
    moved = [
        phone._replace(start=phone.start - start, end=phone.end - start)
        for word in words
        for phone in word.phones
    ]
    return Phrase(start, end, " ".join(word.text for word in words), tidy(moved, end - start))


def phrases(words: list[Word], duration: float, rng: random.Random) -> Iterator[Phrase]:
    """Cut at pauses; how long a phrase is meant to be is drawn anew for each."""
    if duration <= LONGEST_S:
        yield _phrase(words, 0.0, duration)
        return
    start, taken = 0.0, list[Word]()
    wanted = rng.uniform(1.0, LONGEST_S)
    for i, word in enumerate(words):
        taken.append(word)
        behind = words[i + 1].start if i + 1 < len(words) else duration
        last = i + 1 == len(words)
        if not last and behind - word.end < PAUSE_S:
            continue
        end = duration if last else (word.end + behind) / 2
        if last or end - start >= wanted:
            if SHORTEST_S <= end - start <= LONGEST_S:
                yield _phrase(taken, start, end)
            start, taken, wanted = end, [], rng.uniform(1.0, LONGEST_S)
