"""Make the built-in model's weights from nothing: bank, training, evaluation, export.

    PYTHONPATH=.:tests:scripts python -m train.home_en --out BUILD --minutes 110 --processes 2

Needs torch (CPU), numpy, scipy, soxr, tokenizers and safetensors, and the synthesisers
that voices.py names. BUILD/export is what `roomscribe model build` turns into a bundle. Run again,
it goes on where it was cut off; --more-minutes trains a finished run on. With --people it goes on
from the weights in the checkout, with more encoder layers, and hears people (people.py) in half of
the windows.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from train import wordpieces

BUNDLE = Path("appliance/bundles/home-en")
ENCODER_LAYERS = "8"
"""With people; the bundle's first runs had five."""
BUNDLE_SHARE = "0.5"
"""Of the weights in the end, where training began with the bundle's."""
NICE = 15
ATTEMPTS = 5


def run(module: str, *arguments: str) -> None:
    """Run a module of train/ in a process of its own; a failure raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", f"train.{module}", *arguments], check=True)


def train(arguments: list[str]) -> None:
    """Trains, resuming from the last checkpoint when the loop dies."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            run("train", *arguments)
        except subprocess.CalledProcessError:
            if attempt == ATTEMPTS:
                raise
            print(f"training stopped, attempt {attempt} of {ATTEMPTS}", flush=True)
            time.sleep(5)
        else:
            return


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for bank, run and export")
    parser.add_argument("--minutes", type=float, help="of training; 110 unless the run has its own")
    parser.add_argument("--more-minutes", type=float, default=0, help="train a finished run on")
    parser.add_argument("--processes", type=int, default=2, help="one per core")
    parser.add_argument("--utterances", type=int, default=40_000)
    parser.add_argument("--people", type=Path, help="folder of clones of people.toml")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    os.nice(NICE)
    bank, trained, exported = (args.out / name for name in ("bank", "run", "export"))
    start: list[str] = []
    blended: list[str] = []
    if args.people:
        wordpieces.learn_once(trained / "pieces")
        run(
            "people", "--people", str(args.people), "--out", str(bank),
            "--pieces", str(trained / "pieces"), "--bundle", str(BUNDLE),
            "--recordings", str(args.out / "held-out"), "--processes", str(args.processes),
        )  # fmt: skip
        start = ["--start-from", str(BUNDLE), "--encoder-layers", ENCODER_LAYERS]
        blended = ["--blend", str(BUNDLE), "--share", BUNDLE_SHARE]
    run(
        "bank", "--out", str(bank), "--seed", str(args.seed), "--count", str(args.utterances),
        "--workers", str(args.processes), "--unseen",
    )  # fmt: skip
    length = ["--minutes", str(args.minutes)] if args.minutes else []
    train([
        *length, *start, "--bank", str(bank), "--out", str(trained),
        "--more-minutes", str(args.more_minutes), "--processes", str(args.processes),
        "--seed", str(args.seed),
    ])  # fmt: skip
    run(
        "evaluate", "--run", str(trained), "--bank", str(bank),
        "--json", str(args.out / "evaluation.json"),
    )  # fmt: skip
    run("export", "--run", str(trained), "--out", str(exported), *blended)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as failed:  # it has said why
        sys.exit(failed.returncode)
