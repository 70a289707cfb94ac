"""Write tests/speech: 40 held-out home commands by voices that training never hears.

The voices are svox pico's two English ones (Debian's libttspico-utils, non-free there because its
data has no source; Apache-2.0). 50 ms of silence stand at both ends; 16 kHz FLAC.
"""

from __future__ import annotations

import argparse
import csv
import random
from itertools import islice
from pathlib import Path

import soundfile
from train import unseen
from train.bank import finish
from train.texts import commands

SENTENCES = 40
LONGEST_WORDS = 12
VOICES = ("pico:en-US", "pico:en-GB")


def chosen(seed: int) -> list[str]:
    """Home commands of the test split, the same for the same seed, no two alike."""
    fitting = (text for text in commands(seed, "test") if len(text.split()) <= LONGEST_WORDS)
    return list(islice(fitting, SENTENCES))


def main() -> None:
    """Write the files and transcripts.tsv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(options.seed)
    with (options.out / "transcripts.tsv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(["file", "voice", "text"])
        for number, text in enumerate(chosen(options.seed)):
            voice = VOICES[number % len(VOICES)]
            done = finish(*unseen.say(voice, text, rng))
            if done is None:
                raise SystemExit(f"{voice} said nothing for {text!r}")
            name = f"{number:02d}.flac"
            soundfile.write(options.out / name, done[0], 16_000, subtype="PCM_16")
            table.writerow([name, voice, text])


if __name__ == "__main__":
    main()
