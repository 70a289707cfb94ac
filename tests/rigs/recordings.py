"""Recordings of speech: the 40 sentences of tests/speech, and those that a MANIFEST.tsv lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rigs.checkout import SHARED, SPEECH

from appliance.lab.recordings import read_rows

SHARED_AUDIO = SHARED / "data" / "audio"
"""Recordings of real speech and noise, where there are any."""


@dataclass(frozen=True)
class Sentence:
    """A recording of tests/speech."""

    file: Path
    text: str


def sentences() -> list[Sentence]:
    """All of tests/speech, in the order of its list."""
    rows = read_rows(SPEECH / "transcripts.tsv")
    return [Sentence(SPEECH / row["file"], row["text"]) for row in rows]


def manifest(folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """File and columns (path, category, transcript ...) of each recording in the folder's list."""
    for row in read_rows(folder / "MANIFEST.tsv"):
        yield folder / row["path"], row
