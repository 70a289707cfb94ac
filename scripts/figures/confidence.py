"""Measure how right a bundle's confidence is, and fit its calibration.

    scripts/measure confidence --report FOLDER...                 how true it is now
    scripts/measure confidence --fit FOLDER... --report FOLDER... [--write]

Folders have a MANIFEST.tsv or transcripts.tsv (columns file and text). Recordings go through voice
detector, segmenter and gates as the microphone's would; a text is right when it is so word for
word, numbers in words. If a pause cuts a recording into several windows, their texts are right when
they are so together. The fit is a logistic regression on the mean and the sum of the tokens'
log-probabilities; each folder counts as much as any other, and is heard as it is and in pink noise
at 15 and 5 dB. --write puts it into the bundle. Fit and report on different recordings.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from figures.model import alike, cut, quiet, read, said_texts, to_int16, with_noise

from appliance.config import Settings
from appliance.infer.gates import judge
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Transcriber
from appliance.lab.fit.statistics import BINS, calibration_error, logistic, ranking
from appliance.model.bundle import Calibration, enter_files
from appliance.records import Transcription, Window

NOISES_DB = (15, 5)
LOW = 0.5
"""Below it a text is wrong more often than right: it is marked low_confidence."""
SURE = 0.7
"""Home Assistant's blueprint acts from here on."""
SEED = 7


@dataclass(frozen=True, slots=True)
class Heard:
    """A text that was kept."""

    group: str
    """First folder of the recording's name in the list, after its list's folder."""
    mean: float
    """Mean natural log-probability of the tokens."""
    total: float
    """Their sum."""
    confidence: float
    right: bool
    weight: float = 1.0


def main() -> int:
    """Print the fit and the table; the exit status."""
    parser = argparse.ArgumentParser("scripts/measure confidence", description=__doc__)
    parser.add_argument("--bundle", default="tiny.en")
    parser.add_argument("--fit", type=Path, nargs="+", default=[])
    parser.add_argument("--report", type=Path, nargs="+", default=[])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if not options.fit and not options.report:
        parser.error("name folders after --fit, --report or both")
    settings = replace(Settings(), model=replace(Settings().model, bundle=options.bundle))
    with open_transcriber(settings) as transcriber:
        calibration = None
        if options.fit:
            heard = [
                replace(one, weight=1 / len(found))
                for folder in options.fit
                for found in [list(listen(settings, transcriber, folder, NOISES_DB))]
                for one in found
            ]
            calibration = fitted(heard)
            print(
                "calibration", {key: round(value, 2) for key, value in asdict(calibration).items()}
            )
            show("the fit's own recordings", heard, calibration)
        for folder in options.report:
            found = list(listen(settings, transcriber, folder))
            for group in sorted({one.group for one in found}):
                show(group, [one for one in found if one.group == group], calibration)
            show(f"all of {folder}", found, calibration, bins=True)
        if options.write and calibration:
            values = {key: round(value, 2) for key, value in asdict(calibration).items()}
            enter_files(transcriber.bundle.folder, (), calibration=values)
    return 0


def listen(
    settings: Settings, transcriber: Transcriber, folder: Path, noises_db: Sequence[int] = ()
) -> Iterator[Heard]:
    """What is kept of each recording in the folder's list, as it is and in noise."""
    rng = np.random.default_rng(SEED)
    for name, spoken in said_texts(folder).items():
        plain = read(folder / name)
        group = f"{folder.name}/{name.split('/')[0]}" if "/" in name else folder.name
        for sound in (plain, *(with_noise(rng, plain, snr_db) for snr_db in noises_db)):
            stream = np.concatenate((quiet(rng, 1), sound, quiet(rng, 2)))
            kept: list[Transcription] = []
            for window in cut(to_int16(stream), settings, transcriber.bundle.window_s):
                if not isinstance(window, Window):
                    continue
                result = transcriber.transcribe(window)
                if not judge(result, transcriber.gates, window.voiced_s):
                    kept.append(result)
            right = alike(spoken) == alike(" ".join(result.text for result in kept))
            for result in kept:
                total = result.avg_logprob * (len(result.tokens) + result.ended)
                yield Heard(group, result.avg_logprob, total, result.confidence, right)


def fitted(heard: Sequence[Heard]) -> Calibration:
    """The logistic regression of `right` on mean and sum."""
    features = np.array([(1.0, one.mean, one.total) for one in heard])
    right = np.array([one.right for one in heard], float)
    weights = np.array([one.weight for one in heard])
    offset, mean, total = map(float, logistic(features, right, weights))
    return Calibration(offset, mean, total, LOW)


def show(
    name: str, heard: Sequence[Heard], calibration: Calibration | None, *, bins: bool = False
) -> None:
    """Print a line of the table: how far confidence is from the truth (expected calibration
    error), how well it ranks (area under the ROC curve), what is marked at the limit."""
    if not heard:
        print(f"{name:40s} nothing kept")
        return
    found = np.array([probability(one, calibration) for one in heard])
    right = np.array([one.right for one in heard])
    low, sure = found < LOW, found >= SURE
    print(
        f"{name:40s} kept {len(heard):4d}, right {right.sum():4d}; "
        f"error {calibration_error(found, right):.3f}, area {ranking(found, right):.3f}; "
        f"below {LOW}: {(low & ~right).sum()} of {(~right).sum()} wrong, "
        f"{(low & right).sum()} of {right.sum()} right; "
        f"from {SURE} on: {(sure & ~right).sum()} wrong, {(sure & right).sum()} right"
    )
    for at in range(BINS if bins else 0):
        inside = (found * BINS).astype(int).clip(0, BINS - 1) == at
        if inside.any():
            print(
                f"    {at / BINS:.1f}-{(at + 1) / BINS:.1f}: {inside.sum():4d} texts, "
                f"confidence {found[inside].mean():.2f}, right {right[inside].mean():.2f}"
            )


def probability(one: Heard, calibration: Calibration | None) -> float:
    """The confidence by the new fit, or the bundle's own."""
    if calibration is None:
        return one.confidence
    count = max(1, round(one.total / one.mean)) if one.mean else 1
    return calibration.confidence([one.mean] * count)


if __name__ == "__main__":
    sys.exit(main())
