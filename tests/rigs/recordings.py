"""Recordings of speech: the 40 sentences of tests/speech, and those that a MANIFEST.tsv lists."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from rigs.checkout import SHARED, SPEECH

from appliance.lab.recordings import read_rows
from appliance.records import SAMPLE_RATE, Samples, Window

SHARED_AUDIO = SHARED / "data" / "audio"
"""Recordings of real speech and noise, where there are any."""

MISHEARD = frozenset({1, 3, 5, 6, 8, 11, 12, 13, 14, 15, 16, 18, 22, 26, 27, 28})
"""Numbers in tests/speech of which Whisper tiny.en gets a word wrong, always (a cellar is a seller)
or with another pause before or behind it: a program compared its texts of all 40, each with 15
pauses, in silence and in slight noise, with the list."""


@dataclass(frozen=True)
class Sentence:
    """A recording of tests/speech."""

    file: Path
    text: str


def sentences() -> list[Sentence]:
    """All of tests/speech, in the order of its list."""
    rows = read_rows(SPEECH / "transcripts.tsv")
    return [Sentence(SPEECH / row["file"], row["text"]) for row in rows]


def heard_right() -> list[Sentence]:
    """Those of which the built-in model gets every word."""
    return [one for one in sentences() if int(one.file.stem) not in MISHEARD]


def window_of(file: Path, *, last: bool = True) -> Window:
    """A recording of at most 9 s as the segmenter cuts it, with quiet before and behind it."""
    sound, rate = soundfile.read(file, dtype="int16")
    assert rate == SAMPLE_RATE, file
    samples: Samples = np.pad(sound, (round(0.6 * rate), round(0.3 * rate)))
    return Window("", 1, last, samples, 0.0, 0.0, 1.0)


def manifest(folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """File and columns (path, category, transcript ...) of each recording in the folder's list."""
    for row in read_rows(folder / "MANIFEST.tsv"):
        yield folder / row["path"], row
