"""Measure the word errors that cutting long speech into windows causes: one table.

    scripts/measure long_speech [--bundle tiny.en]

tests/speech has no recording longer than a window, so the windows are made shorter: each sentence
is spoken without a gap of more than 60 ms and cut at several limits, in the middle, where no pause
is. Its words are compared with those of the sentence in one window, of windows that share no sound,
and of windows that overlap. Then sentences on end, a few in a window, their gaps squeezed to 60 ms:
there most cuts find the gap between two sentences and need no overlap.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from figures.model import cut, read, to_int16
from rigs import recordings
from rigs.word_errors import word_errors, words

from appliance.config import Settings
from appliance.infer.gates import Gates
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Transcriber
from appliance.records import SAMPLE_RATE, Discarded, Samples, Window

GAP_MS = 60
STEP = SAMPLE_RATE // 100
QUIET_DB = 25.0
"""A step of 10 ms so far below the loudest is a gap."""
TAKE_S = 8.3
"""A take fits into a window of the built-in model, whole."""
WITHIN_S = (1.6, 1.8, 2.0, 2.2, 2.4, 2.6)
ON_END_S = (4.0, 4.5, 5.0, 5.5, 6.0, 6.5)
"""Limits at which sentences, and takes of several, are cut: everywhere in them, that is."""
ROOM_TONE = 16.0


@dataclass(eq=False)
class Take:
    """One sentence, or several on end."""

    spoken: str
    samples: Samples


def squeezed(samples: Samples) -> Samples:
    """The recording with every longer gap cut down to GAP_MS, also those at its ends."""
    half = GAP_MS * SAMPLE_RATE // 2000
    steps = samples[: len(samples) // STEP * STEP].reshape(-1, STEP)
    level = (steps.astype(np.float64) ** 2).mean(axis=1)
    quiet = level < level.max() / 10 ** (QUIET_DB / 10)
    kept: list[Samples] = []
    for is_quiet, group in itertools.groupby(range(len(steps)), key=lambda one: bool(quiet[one])):
        part = steps[list(group)].reshape(-1)
        long = is_quiet and len(part) > 2 * half
        kept.append(np.concatenate((part[:half], part[len(part) - half :])) if long else part)
    return np.concatenate(kept)


def on_end(sentences: list[Take]) -> list[Take]:
    """All sentences, in takes of at most TAKE_S."""
    found = [Take("", np.empty(0, np.int16))]
    for one in sentences:
        if len(found[-1].samples) + len(one.samples) > TAKE_S * SAMPLE_RATE:
            found.append(Take("", np.empty(0, np.int16)))
        found[-1].spoken = f"{found[-1].spoken} {one.spoken}".strip()
        found[-1].samples = np.concatenate((found[-1].samples, one.samples))
    return found


def in_a_room(samples: Samples) -> Samples:
    """The sound between a second and two of faint noise, and with it."""
    rng = np.random.default_rng(7)
    whole = np.concatenate(
        (np.zeros(SAMPLE_RATE), samples.astype(np.float64), np.zeros(2 * SAMPLE_RATE))
    )
    noisy = whole + rng.standard_normal(len(whole)) * ROOM_TONE
    heard: Samples = np.clip(np.rint(noisy), -32768, 32767).astype(np.int16)
    return heard


def heard(found: list[Window | Discarded], transcriber: Transcriber, *, join: bool = True) -> str:
    """The published text of what the segmenter found; without joining: of every window whole."""
    gates, texts = Gates(transcriber.gates), []
    for one in found:
        if isinstance(one, Window):
            window = one if join else replace(one, overlap_s=0.0)
            result, reason = gates.apply(window, transcriber.transcribe(window))
            texts += [] if reason else [result.text]
    return " ".join(texts)


def compare(
    takes: list[Take], limits_s: tuple[float, ...], transcriber: Transcriber, settings: Settings
) -> None:
    """Print word errors of the takes in a window each, and cut with and without an overlap."""
    plain = replace(settings, segmenter=replace(settings.segmenter, overlap_ms=0))
    whole = [heard(cut(in_a_room(take.samples), settings, transcriber.bundle.window_s), transcriber)
             for take in takes]  # fmt: skip
    spoken = [take.spoken for take in takes]
    errors, count = tally(list(zip(spoken, whole, strict=True)))
    print(f"  in one window: {100 * errors / count:.1f} % of {count} words wrong")
    ways = {
        "cut, no overlap": (plain, True),
        "cut, overlap, not joined": (settings, False),
        "cut, overlap, joined": (settings, True),
    }
    for name, (chosen, join) in ways.items():
        texts, windows, overlaps = [], 0, 0
        for take, window_s in itertools.product(takes, limits_s):
            found = cut(in_a_room(take.samples), chosen, window_s)
            texts.append(heard(found, transcriber, join=join))
            windows += len(found)
            overlaps += sum(isinstance(one, Window) and one.overlap_s > 0 for one in found)
        errors, count = tally(list(zip(np.repeat(spoken, len(limits_s)), texts, strict=True)))
        fewer, more = differences(list(zip(np.repeat(whole, len(limits_s)), texts, strict=True)))
        print(
            f"  {name}: {100 * errors / count:.1f} % of {count} words wrong; against one window "
            f"{fewer} words fewer, {more} more; {windows} windows, {overlaps} with an overlap",
            flush=True,
        )


def tally(pairs: list[tuple[str, str]]) -> tuple[int, int]:
    """Word errors and words said, over all pairs."""
    counts = [word_errors(spoken, text) for spoken, text in pairs]
    return sum(one for one, _ in counts), sum(one for _, one in counts)


def differences(pairs: list[tuple[str, str]]) -> tuple[int, int]:
    """Words that the second texts have fewer and more of, whatever their order."""
    fewer = more = 0
    for one, other in pairs:
        a, b = Counter(words(one)), Counter(words(other))
        fewer, more = fewer + (a - b).total(), more + (b - a).total()
    return fewer, more


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", default="tiny.en")
    options = parser.parse_args()
    settings = replace(Settings(), model=replace(Settings().model, bundle=options.bundle))
    sentences = [
        Take(one.text, squeezed(to_int16(read(one.file)))) for one in recordings.sentences()
    ]
    with open_transcriber(settings) as transcriber:
        print("each sentence by itself")
        compare(sentences, WITHIN_S, transcriber, settings)
        print("sentences on end")
        compare(on_end(sentences), ON_END_S, transcriber, settings)


if __name__ == "__main__":
    main()
