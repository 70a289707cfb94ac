"""Measure what `roomscribe model fit` makes of a model whose fit is removed, on other recordings.

    scripts/measure fit [--bundle home-en] [--report FOLDER...] [--damage SHARE]

A copy of the bundle loses its calibration, endings and second pass, and `model fit` fits it to the
package's speech. Both are then reported on the recordings of the folders (default:
$ROOMSCRIBE_SHARED/data/audio), which nothing is fitted to. --damage adds noise to the weights of
the token embedding first: a worse model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from figures.confidence import Heard, listen, show
from rigs.recordings import SHARED_AUDIO

from appliance.config import Settings
from appliance.errors import RoomscribeError
from appliance.infer.opening import open_transcriber
from appliance.lab.fit.main import FitRequest, fit_model
from appliance.model.bundle import enter_files, load_bundle

SEED = 9


def main() -> int:
    """Print the fit and both tables; return the exit status."""
    parser = argparse.ArgumentParser("scripts/measure fit", description=__doc__)
    parser.add_argument("--bundle", default="home-en")
    parser.add_argument("--report", type=Path, nargs="+", default=[SHARED_AUDIO])
    parser.add_argument("--damage", type=float, default=0.0, metavar="SHARE")
    parser.add_argument("--out", type=Path, help="keep the fitted bundle in this new folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.out or Path(scratch) / "fitted"
        shutil.copytree(load_bundle(options.bundle).folder, folder)
        if options.damage:
            damage(folder, options.damage)
            report("damaged, as it is", folder, options.report)
        else:
            report("as it is", folder, options.report)
        enter_files(
            folder, (), calibration=None, endings=None, phrase_calibration=None, vtln=None
        )  # fmt: skip
        try:
            facts = fit_model(FitRequest(folder), Settings(), follow)
        except RoomscribeError as error:
            print(error)
            return error.exit_status
        print(json.dumps(facts, indent=1))
        report("fitted", folder, options.report)
    return 0


def follow(step: str, done: int, total: int) -> None:
    """Print a line at each tenth."""
    if done * 10 // total != (done - 1) * 10 // total:
        print(f"{step}: {done} of {total}", file=sys.stderr, flush=True)


def damage(folder: Path, share: float) -> None:
    """Add noise to the token embedding, of `share` of its standard deviation."""
    file = folder / "embedding.bin"
    kind = np.float32 if load_bundle(folder).quantize == "none" else np.float16
    weights = np.fromfile(file, kind).astype(np.float64)
    noise = np.random.default_rng(SEED).standard_normal(len(weights))
    (weights + share * weights.std() * noise).astype(kind).tofile(file)
    enter_files(folder, (file.name,))


def report(name: str, folder: Path, recordings: list[Path]) -> None:
    """Print the table of a bundle on recordings."""
    settings = replace(Settings(), model=replace(Settings().model, bundle=f"{folder}/"))
    with open_transcriber(settings) as transcriber:
        found: list[Heard] = []
        for each in recordings:
            found += listen(settings, transcriber, each)
    show(name, found, None, bins=True)


if __name__ == "__main__":
    sys.exit(main())
