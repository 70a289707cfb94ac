"""Put home commands together from words that people spoke, for lack of recordings.

A sentence takes the longest runs of its words that stand together in one recording, of a speaker
who already says a part of it where there is one (aligned data augmentation, Lam et al., 2021,
https://arxiv.org/abs/2104.01393, with sentences of our grammar in place of the recordings' own).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from train.align import Word
from train.phones import Segment
from train.voices import SAMPLE_RATE

LONGEST_RUN = 4
"""Words of a sentence that are looked for together."""
TRIES = 12
"""Recordings of a run that are drawn, to find one of a speaker who is heard already."""
FADE = 80
"""Samples (5 ms) over which a run comes and goes."""
LEVEL = 3000.0
"""RMS of a run, so that none is louder than the others."""
HELD_MARGIN_S = 0.01
"""What is kept on both sides of a run: boundaries are found to 10 ms."""


class Spoken(NamedTuple):
    """A recording (n,) int16 at 16 kHz, who speaks, and where its words are."""

    speaker: str
    samples: NDArray[np.int16]
    words: list[Word]


class Splicer:
    """Knows every run of words of some recordings."""

    def __init__(self, recordings: Iterable[Spoken]) -> None:
        self._recordings = list(recordings)
        self._runs: dict[tuple[str, ...], list[tuple[int, int]]] = {}
        for number, spoken in enumerate(self._recordings):
            texts = [word.text for word in spoken.words]
            for first in range(len(texts)):
                for length in range(1, min(LONGEST_RUN, len(texts) - first) + 1):
                    run = tuple(texts[first : first + length])
                    self._runs.setdefault(run, []).append((number, first))

    def splice(
        self, text: str, rng: random.Random
    ) -> tuple[str, NDArray[np.int16], list[Segment]] | None:
        """Who says most of `text`, its samples and phones; None where nobody says a word of it."""
        words = tuple(text.split())
        speakers: dict[str, int] = {}
        parts: list[NDArray[np.float32]] = []
        phones: list[Segment] = []
        quiet = np.zeros(SAMPLE_RATE // 20, np.float32)
        at = len(quiet) / SAMPLE_RATE
        done = 0
        while done < len(words):
            run = self._run(words[done:])
            if not run:
                return None
            number, first = self._choose(run, speakers, rng)
            spoken = self._recordings[number]
            taken = spoken.words[first : first + len(run)]
            start = max(0.0, taken[0].start - HELD_MARGIN_S)
            sound = _run_of(spoken.samples, start, taken[-1].end + HELD_MARGIN_S)
            phones += [
                phone._replace(start=phone.start - start + at, end=phone.end - start + at)
                for word in taken
                for phone in word.phones
            ]
            at += len(sound) / SAMPLE_RATE
            parts.append(sound)
            speakers[spoken.speaker] = speakers.get(spoken.speaker, 0) + len(run)
            done += len(run)
        samples = np.concatenate([quiet, *parts, quiet])
        whole = np.clip(np.rint(samples), -32768, 32767).astype(np.int16)
        return max(speakers, key=lambda name: speakers[name]), whole, phones

    def _run(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """The longest beginning of `words` that somebody says in one go; () for none."""
        lengths = range(min(LONGEST_RUN, len(words)), 0, -1)
        return next((words[:n] for n in lengths if words[:n] in self._runs), ())

    def _choose(
        self, run: tuple[str, ...], speakers: dict[str, int], rng: random.Random
    ) -> tuple[int, int]:
        """A recording of `run` and the place of its first word there."""
        found = self._runs[run]
        drawn = rng.sample(found, min(TRIES, len(found)))
        known = (one for one in drawn if self._recordings[one[0]].speaker in speakers)
        return next(known, drawn[0])


def _run_of(samples: NDArray[np.int16], start: float, end: float) -> NDArray[np.float32]:
    """A stretch of a recording at the common level, faded in and out."""
    sound = samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)].astype(np.float32)
    sound *= LEVEL / (np.sqrt(np.mean(np.square(sound))) + 1)
    fade = np.linspace(0, 1, min(FADE, len(sound) // 2), dtype=np.float32)
    sound[: len(fade)] *= fade
    sound[len(sound) - len(fade) :] *= fade[::-1]
    return sound


def spliced(
    splicer: Splicer, texts: Iterator[str], count: int, rng: random.Random
) -> Iterator[tuple[str, str, NDArray[np.int16], list[Segment]]]:
    """`count` sentences of `texts` that can be put together: speaker, text, samples, phones."""
    while count:
        text = next(texts)
        found = splicer.splice(text, rng)
        if found:
            yield found[0], text, found[1], found[2]
            count -= 1
