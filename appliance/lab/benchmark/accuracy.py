"""Word and character errors of the rows on recordings with known texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.capture import Recording
from appliance.errors import ConfigError
from appliance.infer import Tokenizer
from appliance.lab.benchmark.measure import RowError, RowProcess
from appliance.lab.benchmark.rows import Row
from appliance.lab.benchmark.subject import Subject
from appliance.lab.recordings import LISTS, listed_texts
from appliance.records import FULL_SCALE, SAMPLE_RATE

NEEDED = ("jiwer", "whisper_normalizer")
TOKENS_PER_SECOND = 15
"""The baselines' limit, which is about the product's own; fast English gives 8."""


@dataclass(frozen=True, slots=True)
class Score:
    """Errors over all recordings together, as shares of the words and letters said."""

    wer: float
    cer: float
    recordings: int


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A recording, (n,) float32, and what is said in it."""

    samples: NDArray[np.float32]
    text: str


def read_recordings(folder: Path, window_s: float) -> tuple[list[Recorded], int]:
    """The recordings that the folder's list names and that fit into a window, and how many are
    longer. Raises ConfigError when there is no such list, AudioError for a bad file."""
    texts = listed_texts(folder)
    if texts is None:
        raise ConfigError(
            f"benchmark --recordings: expected {' or '.join(LISTS)} in {folder}, found neither; it "
            "needs a line of column names with `file` and `text`, separated by tabs"
        )
    found = []
    for name, text in texts.items():
        with Recording(str(folder / name), real_time=False) as recording:
            frames = [frame.samples for frame in recording.frames()]
        samples = np.concatenate(frames).astype(np.float32) / np.float32(FULL_SCALE)
        if len(samples) <= round(window_s * SAMPLE_RATE):
            found.append(Recorded(samples, text))
    return found, len(texts) - len(found)


def missing_packages() -> list[str]:
    """What must be installed to count errors."""
    return [name.replace("_", "-") for name in NEEDED if find_spec(name) is None]


def score_rows(
    rows: Sequence[Row],
    subject: Subject,
    recordings: Sequence[Recorded],
    advance: Callable[[], object],
) -> dict[str, Score | str]:
    """Errors of every row that is there, by its key, or why it has none; `advance` is called after
    each recording."""
    bundle = subject.bundle
    tokenizer = Tokenizer.open(bundle)
    room = bundle.max_tokens - len(bundle.prompt)
    limit = min(room, round(TOKENS_PER_SECOND * bundle.window_s))
    scores: dict[str, Score | str] = {}
    for row in (row for row in rows if row.plan):
        texts = []
        try:
            with RowProcess(row, encoder=True) as process:
                for recorded in recordings:
                    answer = process.ask("transcribe", samples=recorded.samples, limit=limit)
                    texts.append(tokenizer.detokenize(answer["tokens"]).strip())
                    advance()
        except RowError as error:
            scores[row.key] = str(error)
        else:
            scores[row.key] = score(texts, recordings)
    return scores


def score(texts: Sequence[str], recordings: Sequence[Recorded]) -> Score:
    """Errors after Whisper's own English normaliser (Radford et al. 2022, appendix C)."""
    import jiwer
    from whisper_normalizer.english import EnglishTextNormalizer

    normalize = EnglishTextNormalizer()
    spoken = [normalize(recorded.text) for recorded in recordings]
    written = [normalize(text) for text in texts]
    kept = [pair for pair in zip(spoken, written, strict=True) if pair[0]]
    references, hypotheses = [pair[0] for pair in kept], [pair[1] for pair in kept]
    wer = float(jiwer.wer(references, hypotheses))
    cer = float(jiwer.cer(references, hypotheses))
    return Score(round(wer, 4), round(cer, 4), len(kept))
