"""How often an expected sentence is found where the free text is wrong, and what it costs.

    scripts/measure phrases FOLDER... [--bundle home-en] [--file PHRASES.toml]

Folders have a MANIFEST.tsv or transcripts.tsv (columns file and text). Recordings go through voice
detector and segmenter as the microphone's would; those of one window count. A text or a sentence is
right when it is so word for word, numbers in words, "what's" the same as "what is".
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from figures.model import cut, quiet, read, to_int16
from rigs.word_errors import words

from appliance.config import PhrasesSettings, Settings
from appliance.infer.phrases import in_words
from appliance.infer.transcriber import Transcriber, open_transcriber
from appliance.lab.recordings import listed_texts
from appliance.records import Phrase, Window

LIMITS = (0.0, 0.5, 0.7, 0.9)
SEED = 7


@dataclass(frozen=True, slots=True)
class Heard:
    """What was made of a recording."""

    group: str
    said: bool
    """True where somebody says something."""
    text: bool
    """The free text is right."""
    sentence: bool
    """The expected sentence is right."""
    phrase: Phrase | None
    search_ms: float
    """What looking for it added to the decode."""


def main() -> int:
    """Prints the table; the exit status."""
    parser = argparse.ArgumentParser("scripts/measure phrases", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--bundle", default="home-en")
    parser.add_argument("--file", default="bundle")
    options = parser.parse_args()
    settings = replace(Settings(), model=replace(Settings().model, bundle=options.bundle))
    phrases = PhrasesSettings(file=options.file)
    with (
        open_transcriber(replace(settings, phrases=PhrasesSettings(file=""))) as free,
        open_transcriber(replace(settings, phrases=phrases)) as expecting,
    ):
        free.warm_up()
        expecting.warm_up()
        heard = [
            one for folder in options.folders for one in listen(settings, free, expecting, folder)
        ]
    limits = "".join(f"  {f'>= {limit:.0%}':>13}" for limit in LIMITS)
    print(f"{'group':28} {'said':>5} {'text':>5}{limits}   ms p50  p95")
    for group in [*sorted({one.group for one in heard}), ""]:
        show(group or "all", [one for one in heard if group in ("", one.group)])
    return 0


def listen(
    settings: Settings, free: Transcriber, expecting: Transcriber, folder: Path
) -> Iterator[Heard]:
    """What is made of each recording in the folder's list."""
    texts = listed_texts(folder)
    if texts is None:
        sys.exit(f"{folder}: expected MANIFEST.tsv or transcripts.tsv in it, found neither")
    rng = np.random.default_rng(SEED)
    for name, said in texts.items():
        stream = np.concatenate((quiet(rng, 1), read(folder / name), quiet(rng, 2)))
        windows = [
            one
            for one in cut(to_int16(stream), settings, free.bundle.window_s)
            if isinstance(one, Window)
        ]
        if len(windows) != 1:
            continue
        encoded = free.encode(windows[0])
        begun_s = time.perf_counter()
        plain = free.write(encoded)
        between_s = time.perf_counter()
        result = expecting.write(encoded)
        search_ms = 1000 * (time.perf_counter() + begun_s - 2 * between_s)
        group = f"{folder.name}/{name.split('/')[0]}" if "/" in name else folder.name
        found = result.phrase
        same = [alike(said) == alike(one) for one in (plain.text, found.sentence if found else "")]
        yield Heard(group, bool(said.strip()), same[0], same[1], found, search_ms)


def alike(text: str) -> list[str]:
    """The words of a text, as they are compared."""
    spelled = re.sub(r"\d{1,3}", lambda number: f" {in_words(int(number[0]))} ", text)
    return words(spelled.lower().replace("what's", "what is"))


def show(name: str, heard: Sequence[Heard]) -> None:
    """Prints a line: how many were said, how many texts are right, and how many sentences are of
    those found with at least each confidence."""
    said = [one for one in heard if one.said]
    cells = []
    for limit in LIMITS:
        found = [one for one in heard if one.phrase and one.phrase.confidence >= limit]
        cells.append(f"{sum(one.said and one.sentence for one in found)} of {len(found)}")
    p50, p95 = np.percentile([one.search_ms for one in heard], (50, 95))
    texts = sum(one.text for one in said)
    columns = "".join(f"  {cell:>13}" for cell in cells)
    print(f"{name:28} {len(said):5} {texts:5}{columns}   {p50:6.0f} {p95:4.0f}")


if __name__ == "__main__":
    sys.exit(main())
