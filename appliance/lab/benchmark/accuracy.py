"""Word and character errors of the rows on recordings with known texts."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.capture import Recording
from appliance.errors import ConfigError
from appliance.infer import Tokenizer
from appliance.lab.benchmark.measure import Asked
from appliance.lab.benchmark.rows import Row
from appliance.lab.benchmark.subject import Subject
from appliance.records import FULL_SCALE

LISTS = ("MANIFEST.tsv", "transcripts.tsv")
FILE_COLUMNS, TEXT_COLUMNS = ("file", "path"), ("text", "transcript")
NEEDED = ("jiwer", "whisper_normalizer")
TOKENS_PER_SECOND = 15
"""The rivals' limit, which is about the product's own; fast English gives 8."""


@dataclass(frozen=True, slots=True)
class Score:
    """Errors over all recordings together, as shares of the words and letters said."""

    wer: float
    cer: float
    recordings: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording and what is said in it."""

    samples: NDArray[np.float32]
    text: str


def read_recordings(folder: Path, window_s: float) -> tuple[list[Recorded], int]:
    """The recordings that the folder's list names and that fit into a window, and how many are
    longer. Raises ConfigError when there is no such list, AudioError for a bad file."""
    listed = next((folder / name for name in LISTS if (folder / name).is_file()), None)
    if listed is None:
        raise ConfigError(
            f"benchmark --recordings: expected {' or '.join(LISTS)} in {folder}, found neither; it "
            "needs a line of column names with `file` and `text`, separated by tabs"
        )
    found, longer = [], 0
    for name, text in _lines(listed):
        with Recording(str(folder / name), real_time=False) as recording:
            frames = [frame.samples for frame in recording.frames()]
        samples = np.concatenate(frames).astype(np.float32) / FULL_SCALE
        if len(samples) > round(window_s * 16_000):
            longer += 1
        else:
            found.append(Recorded(samples, text))
    return found, longer


def _lines(listed: Path) -> Iterator[tuple[str, str]]:
    """Names and texts of a list with a line of column names."""
    with listed.open(encoding="utf-8", newline="") as stream:
        table = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        columns = table.fieldnames or ()
        file = next((name for name in FILE_COLUMNS if name in columns), None)
        text = next((name for name in TEXT_COLUMNS if name in columns), None)
        if file is None or text is None:
            raise ConfigError(
                f"{listed}: expected the columns file and text, found {', '.join(columns)}"
            )
        for line in table:
            if line[text]:
                yield line[file], line[text]


def missing_packages() -> list[str]:
    """What must be installed to count errors."""
    return [name.replace("_", "-") for name in NEEDED if find_spec(name) is None]


def score_rows(
    rows: Sequence[Row], subject: Subject, recordings: Sequence[Recorded], moved: Callable[[], None]
) -> dict[str, Score]:
    """Errors of every row that is there, by its key."""
    bundle = subject.bundle
    tokenizer = Tokenizer.open(bundle)
    room = bundle.max_tokens - len(bundle.prompt)
    limit = min(room, round(TOKENS_PER_SECOND * bundle.window_s))
    return {
        row.key: _score(_texts(row, tokenizer, recordings, limit, moved), recordings)
        for row in rows
        if row.plan
    }


def _texts(
    row: Row,
    tokenizer: Tokenizer,
    recordings: Sequence[Recorded],
    limit: int,
    moved: Callable[[], None],
) -> list[str]:
    """What the row makes of each recording."""
    texts = []
    with tempfile.TemporaryDirectory() as scratch, Asked(row, encoder=True) as worker:
        sound = Path(scratch) / "sound.npy"
        for recorded in recordings:
            np.save(sound, recorded.samples)
            answer = worker.ask("transcribe", sound=str(sound), limit=limit)
            texts.append(tokenizer.detokenize(answer["tokens"]).strip())
            moved()
    return texts


def _score(texts: Sequence[str], recordings: Sequence[Recorded]) -> Score:
    """Errors after Whisper's own English normaliser (Radford et al. 2022, appendix C)."""
    import jiwer
    from whisper_normalizer.english import EnglishTextNormalizer

    normalize = EnglishTextNormalizer()
    said = [normalize(recorded.text) for recorded in recordings]
    written = [normalize(text) for text in texts]
    kept = [pair for pair in zip(said, written, strict=True) if pair[0]]
    references, hypotheses = [pair[0] for pair in kept], [pair[1] for pair in kept]
    wer = float(jiwer.wer(references, hypotheses))
    cer = float(jiwer.cer(references, hypotheses))
    return Score(round(wer, 4), round(cer, 4), len(kept))
