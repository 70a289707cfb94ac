"""Make the recordings for fitting and reporting the confidence of expected sentences.

    scripts/measure phrase_sets OUT --people CLONES

CLONES has the repositories of scripts/train/people.toml, as for `scripts/train-tiny.en --people`;
only people held out from training are used. OUT gets the folders `fit` and `report`, with other
people, voices and sentences in each:

    commands            synthesised home commands, in a list that contains them
    commands-other      the same, in a list of sentences that differ from them in a word
    readings            people who read, in a list that contains what they read
    readings-other      the same, in a list of its beginnings and of sentences that differ in a word
    talk                the same, where the model's own sentences are expected

No sentence that is said is among the model's own.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import soundfile
from figures.words import VOICES
from rigs.recordings import sentences
from train.bank import finish
from train.people import Clone, an4, librispeech, manifest, read, speechocean762
from train.texts import commands
from train.voices import Synthesizers

from appliance.infer.phrases import read_phrases
from appliance.model.bundle import PACKAGED, PHRASES_FILE
from appliance.records import SAMPLE_RATE, Samples

SEEDS = {"fit": 21, "report": 22}
SAID, OTHERS, READ = 200, 600, 240
"""Of each half: commands, other commands in their list, and readings beside `talk`, which has all
of them."""
LONGEST_S = 9.0
"""A longer reading is no single window."""
BEGINNING = 0.4
"""Share of the other sentences of readings that are beginnings."""
OPPOSITES = (
    "on off", "open close", "opened closed", "locked unlocked", "lock unlock", "up down",
    "upstairs downstairs", "start stop", "louder quieter", "warmer colder", "brighter darker",
    "raise lower", "morning evening", "first last", "today tomorrow", "hot cold", "front back",
)  # fmt: skip
NUMBERS = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
ROOMS = (
    "kitchen", "bedroom", "bathroom", "hallway", "office", "garage", "garden", "basement", "attic",
    "study", "nursery", "balcony",
)  # fmt: skip
Recordings = Sequence[tuple[str, Samples]]
"""What is said, and (n,) int16 mono at SAMPLE_RATE."""


def main() -> int:
    """Write the folders; return the exit status."""
    parser = argparse.ArgumentParser("scripts/measure phrase_sets", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--people", type=Path, required=True, metavar="CLONES")
    options = parser.parse_args()
    own = read_phrases(PACKAGED / "tiny.en" / PHRASES_FILE)
    taken = {one.text for one in sentences()}
    people: dict[str, list[tuple[str, Samples]]] = {"fit": [], "report": []}
    for half, text, sound in readings(options.people):
        if len(sound) <= LONGEST_S * SAMPLE_RATE and not own.parse(text.split()):
            people[half].append((text, sound))
    for half, seed in SEEDS.items():
        rng = random.Random(seed)
        found = (
            text
            for text in commands(seed, "test")
            if 3 <= len(text.split()) <= 12 and text not in taken and not own.parse(text.split())
        )
        texts = list(dict.fromkeys(islice(found, SAID + OTHERS)))
        folder = options.out / half
        write_sets(folder, "commands", speak(half, texts[:SAID], rng), texts, rng)
        rng = random.Random(f"{half} readings")
        rng.shuffle(people[half])
        listed = [text for text, _ in people[half]]
        write_sets(folder, "readings", people[half][:READ], listed, rng)
        write_recordings(folder / "talk", people[half])
        taken |= set(texts)
    return 0


def readings(clones: Path) -> Iterator[tuple[str, str, Samples]]:
    """Half, text and sound of what people held out from training read; a speaker is in one half."""
    readers = {"speechocean762": speechocean762, "librispeech": librispeech, "an4": an4}
    for name, reader in readers.items():
        clone = Clone(clones, name, manifest()[name]["commit"], manifest()[name]["repository"])
        for one in reader(clone):
            if one.split == "train":
                continue
            sound = read(clone.read(one.path), one.path)
            digest = hashlib.sha256(f"{name} {one.speaker}".encode()).digest()
            if sound is not None:
                yield ("fit", "report")[digest[1] % 2], one.texts[0], sound


def speak(half: str, texts: Sequence[str], rng: random.Random) -> Recordings:
    """The texts by synthesisers."""
    synthesizers, voices = Synthesizers(), VOICES["choose" if half == "fit" else "report"]
    spoken = []
    for text in texts:
        done = finish(*synthesizers.say(rng.choice(voices), text, rng))
        if done:
            spoken.append((text, done[0]))
    return spoken


def write_sets(
    folder: Path, name: str, spoken: Recordings, listed: Sequence[str], rng: random.Random
) -> None:
    """The same recordings with a list that contains what is said, and with one that does not."""
    texts = {text for text, _ in spoken}
    write_recordings(folder / name, spoken, sorted(set(listed)))
    words = [word for text in listed for word in text.split()]
    near = {differing(text, words, rng, beginnings=name == "readings") for text in texts}
    others = (near | set(listed)) - texts
    write_recordings(folder / f"{name}-other", spoken, sorted(one for one in others if one))


def differing(
    text: str, words: Sequence[str], rng: random.Random, *, beginnings: bool = False
) -> str:
    """A sentence that differs in one word: an opposite, number or room where there is one to put in
    its place, else any word; or, of `beginnings`, the first half of it."""
    spoken = text.split()
    if beginnings and len(spoken) > 3 and rng.random() < BEGINNING:
        return " ".join(spoken[: rng.randint(2, len(spoken) - 1)])
    choices = {place: others for place, word in enumerate(spoken) if (others := like(word))}
    place = rng.choice(list(choices) or range(len(spoken)))
    spoken[place] = rng.choice([one for one in choices.get(place, words) if one != spoken[place]])
    return " ".join(spoken)


def like(word: str) -> Sequence[str]:
    """Words of the same kind."""
    pairs = [pair.split() for pair in OPPOSITES]
    return next((kind for kind in (*pairs, NUMBERS, ROOMS) if word in kind), ())


def write_recordings(folder: Path, spoken: Recordings, expected: Sequence[str] = ()) -> None:
    """A folder for `scripts/measure phrases`, with the sentences that are expected in it."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: Mapping[str, str] = {f"{at:04}.flac": text for at, (text, _) in enumerate(spoken)}
    for name, (_, sound) in zip(rows, spoken, strict=True):
        soundfile.write(folder / name, sound, SAMPLE_RATE)
    lines = [f"{name}\t{text}\n" for name, text in rows.items()]
    (folder / "transcripts.tsv").write_text("file\ttext\n" + "".join(lines), "utf-8")
    if expected:
        listed = "".join(f'  "{text}",\n' for text in expected)
        (folder / PHRASES_FILE).write_text(f"[phrases]\nsaid = [\n{listed}]\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
