"""Measure how often an expected sentence is found although the text is wrong, and its cost.

    scripts/measure phrases FOLDER... [--bundle tiny.en] [--file PHRASES.toml]
    scripts/measure phrases FOLDER... --fit FOLDER... [--write]

Folders have a MANIFEST.tsv or transcripts.tsv (columns file and text), and a phrases.toml where
other sentences are to be expected. Recordings go through voice detector and segmenter as the
microphone's would; those of one window count. A text or a sentence is right when it is so word for
word, numbers in words, "what's" the same as "what is"; `listed` counts what is right by either, of
what the list holds. The fit is a logistic regression of a right
sentence on its share among the sentences and the mean log-probability of its tokens, each folder
counting as much as any other; --write puts it into the bundle. Fit and report on different
recordings.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from rigs.sounds import cut, quiet, read, to_int16
from rigs.word_errors import words

from appliance.config import BUILT_IN_SENTENCES, PhrasesSettings, Settings
from appliance.infer import Request
from appliance.infer.opening import open_transcriber
from appliance.infer.phrases import Evidence
from appliance.infer.transcriber import Transcriber
from appliance.lab.fit.statistics import calibration_error, logistic
from appliance.lab.recordings import listed_texts
from appliance.model.bundle import LEADS, PhraseCalibration, enter_files, log_odds
from appliance.records import Window

LIMITS = (0.0, 0.5, 0.7, 0.9)
SURE = 0.5
"""Confidence from which an expected sentence stands for the text in the column `listed`."""
SEED = 7


@dataclass(frozen=True, slots=True)
class Heard:
    """What was made of a recording."""

    group: str
    spoken: bool
    """True where somebody says something."""
    text: bool
    """The free text is right."""
    sentence: bool
    """The expected sentence is right."""
    listed: bool
    """What is said is one of the expected sentences."""
    found: Evidence | None
    search_ms: float
    """Processor time that looking for it added to the decode."""


def main() -> int:
    """Print the table; the exit status."""
    parser = argparse.ArgumentParser("scripts/measure phrases", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--bundle", default="tiny.en")
    parser.add_argument("--file", default=BUILT_IN_SENTENCES)
    parser.add_argument("--fit", type=Path, nargs="+", default=[], metavar="FOLDER")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    settings = replace(Settings(), model=replace(Settings().model, bundle=options.bundle))
    with open_transcriber(settings) as transcriber:
        bundle = transcriber.bundle
    fit = None
    if options.fit:
        fit = fitted([list(listen(settings, folder, options.file)) for folder in options.fit])
        print("phrase_calibration", rounded(fit))
    heard = [one for folder in options.folders for one in listen(settings, folder, options.file)]
    limits = "".join(f"  {f'>= {limit:.0%}':>13}" for limit in LIMITS)
    print(f"{'group':28} {'said':>5} {'text':>5} {'listed':>9}{limits}   ms p50  p95  error")
    for group in [*sorted({one.group for one in heard}), ""]:
        show(group or "all", [one for one in heard if group in ("", one.group)])
    if fit:
        print("as fitted:")
        show("all", [recalibrated(one, fit) for one in heard])
    if fit and options.write:
        enter_files(bundle.folder, (), phrase_calibration=rounded(fit))
    return 0


def listen(settings: Settings, folder: Path, file: str) -> Iterator[Heard]:
    """What is made of each recording in the folder's list, with its own sentences or a file's."""
    own = folder / "phrases.toml"
    phrases = PhrasesSettings(file=str(own) if own.exists() else file)
    with (
        open_transcriber(replace(settings, phrases=PhrasesSettings(file=""))) as free,
        open_transcriber(replace(settings, phrases=phrases)) as expecting,
    ):
        free.warm_up()
        expecting.warm_up()
        yield from compare(settings, free, expecting, folder)


def compare(
    settings: Settings, free: Transcriber, expecting: Transcriber, folder: Path
) -> Iterator[Heard]:
    """What is made of each recording in the folder's list."""
    rng = np.random.default_rng(SEED)
    for name, spoken in said_texts(folder).items():
        stream = np.concatenate((quiet(rng, 1), read(folder / name), quiet(rng, 2)))
        windows = [
            one
            for one in cut(to_int16(stream), settings, free.bundle.window_s)
            if isinstance(one, Window)
        ]
        if len(windows) != 1:
            continue
        encoded = free.begin(Request(windows[0]))
        begun_s = time.process_time()
        plain = free.decode(encoded)
        between_s = time.process_time()
        result = expecting.decode(encoded)
        search_ms = 1000 * (time.process_time() + begun_s - 2 * between_s)
        group = f"{folder.name}/{name.split('/')[0]}" if "/" in name else folder.name
        found = expecting.phrases.evidence if expecting.phrases and result.text else None
        same = [
            words(spoken) == words(one) for one in (plain.text, found.sentence if found else "")
        ]
        listed = any(
            expecting.phrases and expecting.phrases.holds(one)
            for one in (spoken, " ".join(words(spoken)))
        )
        yield Heard(group, bool(spoken.strip()), same[0], same[1], listed, found, search_ms)


def fitted(folders: Sequence[Sequence[Heard]]) -> PhraseCalibration:
    """The logistic regression of a right sentence on what is known of it."""
    rows = [
        (*features(one.found), one.spoken and one.sentence, 1 / len(heard))
        for folder in folders
        for heard in [[one for one in folder if one.found]]
        for one in heard
        if one.found
    ]
    table = np.array(rows, float)
    return PhraseCalibration(*map(float, logistic(table[:, :4], table[:, 4], table[:, 5])))


def features(found: Evidence) -> tuple[float, float, float, float]:
    """What the fields of PhraseCalibration multiply."""
    return 1.0, log_odds(found.share), found.mean, float(np.clip(found.lead, *LEADS))


def rounded(calibration: PhraseCalibration) -> dict[str, float]:
    """As bundle.json has it."""
    return {key: round(value, 2) for key, value in asdict(calibration).items()}


def recalibrated(one: Heard, fit: PhraseCalibration) -> Heard:
    """`one` with the confidence of another calibration."""
    if one.found is None:
        return one
    confidence = fit.confidence(one.found.share, one.found.mean, one.found.lead)
    return replace(one, found=one.found._replace(confidence=confidence))


def show(name: str, heard: Sequence[Heard]) -> None:
    """Print a line: how many were said, how many texts are right, and how many sentences are of
    those found with at least each confidence; and the expected calibration error."""
    spoken = [one for one in heard if one.spoken]
    cells = []
    for limit in LIMITS:
        found = [one for one in heard if one.found and one.found.confidence >= limit]
        cells.append(f"{sum(one.spoken and one.sentence for one in found)} of {len(found)}")
    p50, p95 = np.percentile([one.search_ms for one in heard], (50, 95))
    texts = sum(one.text for one in spoken)
    columns = "".join(f"  {cell:>13}" for cell in cells)
    listed = [one.sentence if is_sure(one) else one.text for one in spoken if one.listed]
    sure = [(one.found.confidence, one.spoken and one.sentence) for one in heard if one.found]
    error = calibration_error(*np.array(sure or [(0.0, False)]).T)
    right = f"{sum(listed)} of {len(listed)}"
    numbers = f"{p50:6.0f} {p95:4.0f}  {error:.2f}"
    print(f"{name:28} {len(spoken):5} {texts:5} {right:>9}{columns}   {numbers}")


def is_sure(one: Heard) -> bool:
    """True if the expected sentence stands for the text."""
    return one.found is not None and one.found.confidence >= SURE


def said_texts(folder: Path) -> dict[str, str]:
    """What is said in each recording of the folder's list; those that have only what was meant
    (SLOTS:) are left out. Exits where there is no list."""
    texts = listed_texts(folder)
    if texts is None:
        sys.exit(f"{folder}: expected MANIFEST.tsv or transcripts.tsv in it, found neither")
    return {name: text for name, text in texts.items() if not text.startswith("SLOTS:")}


if __name__ == "__main__":
    sys.exit(main())
