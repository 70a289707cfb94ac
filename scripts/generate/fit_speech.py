"""Write appliance/lab/fit/speech: sentences of synthetic voices, which `model fit` listens to.

    PYTHONPATH=.:tests:scripts python -m generate.fit_speech [FOLDER]

Debian's free synthesisers (espeak-ng, flite, festival) speak home commands of the grammar's test
split and the talk below, which is about nothing that a home does. Ogg Opus, 16 kHz, with 50 ms
of silence at both ends. Needs what scripts/train-tiny.en installs for its voices.
"""

from __future__ import annotations

import csv
import random
import sys
from itertools import islice
from pathlib import Path

import soundfile
from rigs.checkout import ROOT
from rigs.recordings import sentences
from train.bank import finish
from train.texts import commands
from train.voices import ESPEAK_ACCENTS, ESPEAK_VARIANTS, Synthesizers

FOLDER = ROOT / "appliance/lab/fit/speech"
COMMANDS, WORDS, SEED = 80, range(2, 12), 77
CLEAR = ("flite:slt", "flite:rms", "flite:awb", "flite:kal16",
         "festival:hts", "festival:kal", "festival:ked")  # fmt: skip
SMALLEST = 0.97
"""soundfile's compression level: about 14 kbit/s."""
TALK = """\
i left my umbrella on the train again
she said the doctor was very kind
my brother lives by the sea now
we should have started an hour ago
they painted the old house yellow
he never reads the instructions
the soup needs a little more pepper
our neighbours are moving away in spring
did you hear what happened to the baker
nobody told me about the meeting
the film was much too long for me
i would like to learn to swim
her dog is afraid of thunder
the children built a boat out of paper
there was a long queue at the post office
he broke his glasses last week
we met them at a wedding in june
the train to london was late
i have never liked mushrooms
you could ask your sister for advice
the river was frozen that winter
somebody left the gate open
my grandfather used to repair clocks
the teacher gave them too much homework
it rained for the whole holiday
they sold the car to a friend
the bread is still warm
he speaks three languages
we walked along the beach until sunset
i think she forgot your birthday
the museum is closed on mondays
his handwriting is hard to read
the cat slept on my coat
they are building a bridge over there
i found an old letter in the drawer
she plays the violin every evening
the apples fell from the tree
we had to wait for the ferry
that story made everybody laugh
he was born in a small village""".splitlines()


def main() -> int:
    """Write the recordings and transcripts.tsv; return the exit status."""
    out = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(SEED)
    taken = {one.text for one in sentences()}
    fitting = (
        text
        for split in ("test",)
        for text in commands(SEED, split)
        if len(text.split()) in WORDS and text not in taken
    )
    texts = [*islice(fitting, COMMANDS), *TALK]
    rng.shuffle(texts)
    synthesizers = Synthesizers()
    with (out / "transcripts.tsv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(["file", "voice", "text"])
        for number, text in enumerate(texts):
            voice = CLEAR[number // 2 % len(CLEAR)]
            if number % 2:
                accent = rng.choice(list(ESPEAK_ACCENTS))
                voice = f"espeak:{accent}+{rng.choice(ESPEAK_VARIANTS)}"
            done = finish(*synthesizers.say(voice, text, rng))
            if done is None:
                raise SystemExit(f"{voice} said nothing for {text!r}")
            name = f"{number:03d}.ogg"
            soundfile.write(
                out / name, done[0], 16_000, format="OGG", subtype="OPUS",
                compression_level=SMALLEST,
            )  # fmt: skip
            table.writerow([name, voice, text])
    return 0


if __name__ == "__main__":
    sys.exit(main())
