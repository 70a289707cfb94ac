"""Measure how many listed words become right with contextual biasing, and its effect on others.

    scripts/measure words [--bundle tiny.en] [--recordings FOLDER]

30 words that the built-in model never saw stand in made-up sentences, 100 others are listed beside
them; other sentences are the grammar's test split, and tests/speech. All are said by the training's
synthesisers. `choose` is the set on which `vocabulary_boost` and DOUBTED are chosen, `report` has
other words and other voices. Lists of short names show what they do to other sentences. With
--recordings the people of that folder's MANIFEST.tsv are heard, too: of each recording two words of
six letters and more are listed.

Errors are word errors in percent; `right` is how many sentences are right word for word; `ms more`
is CPU time for a sentence.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from figures.model import read, to_int16
from rigs.recordings import manifest, sentences
from rigs.word_errors import words
from train.bank import finish
from train.texts import commands
from train.voices import Synthesizers

from appliance.config import Settings, VocabularySettings
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Encoded
from appliance.infer.vocabulary import Span, Words
from appliance.records import SAMPLE_RATE, Samples, Window

PEOPLE, ROOMS, DEVICES, PLACES = (
    ("call {}", "remind {} to feed the cat", "is {} at home", "send a message to {}",
     "tell {} to come downstairs", "when is the birthday of {}", "let {} in"),
    ("turn on the light in the {}", "set the {} to twenty degrees", "is anyone in the {}",
     "turn off the {} lights", "how warm is it in the {}", "close the window in the {}"),
    ("turn on the {}", "switch off the {}", "is the {} on", "start the {} at seven",
     "turn off the {} in ten minutes", "stop the {}"),
    ("what is the weather like in {}", "how far is it to {}", "what is the time in {}",
     "how long does it take to {}", "when is the next train to {}"),
)  # fmt: skip
SAID = {
    "choose": (
        (PEOPLE, "priscilla barnaby theodora winston beatrix caspar delphine ezekiel fiona gideon "
                 "harriet ignatius jasmine kieran leopold"),
        (ROOMS, "pantry conservatory larder gazebo mudroom"),
        (DEVICES, "tumble_dryer air_fryer roomba chandelier aquarium"),
        (PLACES, "prague helsinki lisbon zurich naples"),
    ),
    "report": (
        (PEOPLE, "octavia percival quentin rosalind sebastian tabitha ursula valentina wilfred "
                 "xavier yolanda zachary bernadette cornelius dominic"),
        (ROOMS, "scullery veranda vestibule sauna greenhouse"),
        (DEVICES, "dehumidifier blender wine_cooler sound_bar espresso_maker"),
        (PLACES, "budapest geneva lagos brussels melbourne"),
    ),
}  # fmt: skip
DECOYS = (
    "adelaide ambrose anastasia archibald augustus benedict blanche bronwyn calliope camilla "
    "cassandra cecilia clementine constance cordelia cyrus dagmar dorothea edmund eleanora elspeth "
    "evangeline felicity florian franziska gabriel genevieve gertrude giovanni gwendolyn hector "
    "hermione hortensia humphrey imogen ingrid isidore jemima joaquin josephine juliet katarina "
    "konrad lavinia leander lorenzo lucinda magdalena malachi marguerite maximilian mirabel "
    "montgomery nathaniel nigel ophelia orlando patricia penelope philippa reginald roderick "
    "rupert salome seraphina siegfried solomon stanislaus thaddeus tristan ulrich veronica "
    "vincenzo wendell winifred yvonne attic_bathroom boot_room utility_closet lanai sunroom "
    "ice_maker juicer pressure_cooker rice_cooker steam_iron slow_cooker towel_warmer subwoofer "
    "wall_panel pool_pump weather_station copenhagen dresden edinburgh florence ljubljana "
    "marseille salzburg toulouse"
)
SHORT = {
    "4 names": "tom theo ian ann",
    "16 names": "den hall fan heater anna max lamp tv attic sofa desk leo mia ben eva porch",
    "50 names": (
        "tom theo ian ann max anna leo mia ben eva tim sam joe kim lee amy dan roy ada ivy den "
        "hall fan heater lamp tv attic sofa desk porch shed loft spot oven bed_lamp door_lock "
        "hall_fan tv_lamp floor_lamp side_door night_light ceiling_fan desk_light front_gate "
        "coffee_bar sound_bar guest_bath tea_pot ground_floor top_floor"
    ),
}  # fmt: skip
"""Lists of short names, of which tests/speech has nearly none: what they cost."""
ACCENTS = ("en-us", "en", "en-gb-x-rp")
VARIANTS = ("plain", "m1", "m3", "f2", "Andrea", "Andy", "Michael", "linda", "belinda", "edward")
ESPEAK = [f"espeak:{accent}+{variant}" for accent in ACCENTS for variant in VARIANTS]
VOICES = {
    "choose": ESPEAK[:15] + 5 * ["flite:slt", "flite:rms"],
    "report": ESPEAK[15:]
    + 5 * ["flite:awb", "flite:kal16", "festival:hts", "festival:kal", "festival:ked"],
}
BOOSTS = (0.0, 1.0, 2.0, 2.5)
TIMES, OTHERS, SEED = 8, 200, 5
GRAMMAR = {"choose": 11, "report": 12}
"""Seeds of the other sentences."""
NAMED_LETTERS, NAMED = 6, 2


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """A sentence as the encoder left it, and the words in it that are listed."""

    text: str
    listed: frozenset[str]
    encoded: Encoded


def main() -> int:
    """Print the tables; the exit status."""
    parser = argparse.ArgumentParser("scripts/measure words", description=__doc__)
    parser.add_argument("--bundle", default="tiny.en")
    parser.add_argument("--recordings", type=Path)
    options = parser.parse_args()
    quiet = replace(Settings().phrases, file="")
    settings = replace(
        Settings(), phrases=quiet, model=replace(Settings().model, bundle=options.bundle)
    )
    print(
        f"{'set':17} {'boost':>5} {'listed':>7} {'their rest':>10} {'others':>7} {'right':>7} "
        f"{'ms more':>8}"
    )
    for name, lists in SAID.items():
        with_words, without = synthesised(settings, name)
        known = [*spelled(" ".join(words for _, words in lists)), *spelled(DECOYS)]
        show(settings, name, known, with_words, *without)
        if name == "report":
            spoken = [(one.text, frozenset[str](), read_sound(one.file)) for one in sentences()]
            speech = list(encode(settings, spoken))
            show(settings, "speech", known, [], *speech)
        for title, short in SHORT.items():
            show(settings, f"{name}, {title}", spelled(short), [], *without)
    for title, short in SHORT.items():
        show(settings, f"speech, {title}", spelled(short), [], *speech)
    if options.recordings:
        people = list(recorded(options.recordings))
        known = [*sorted({word for _, listed, _ in people for word in listed}), *spelled(DECOYS)]
        show(settings, "people", known, list(encode(settings, people)))
    search()
    return 0


def spelled(listed: str) -> list[str]:
    """Words of a list; _ is a space in one."""
    return [word.replace("_", " ") for word in listed.split()]


def read_sound(path: Path) -> Samples:
    """(n,) int16 mono at SAMPLE_RATE."""
    return to_int16(read(path))


def synthesised(settings: Settings, name: str) -> tuple[list[Said], list[Said]]:
    """Sentences with the listed words, and others."""
    rng, synthesizers = random.Random(SEED), Synthesizers()

    def speak(text: str) -> Samples | None:
        done = finish(*synthesizers.say(rng.choice(VOICES[name]), text, rng))
        return None if done is None else done[0]

    texts = [
        (rng.choice(templates).format(word), frozenset(words(word)))
        for templates, listed in SAID[name]
        for word in spelled(listed)
        for _ in range(TIMES)
    ]
    plain = (text for text in commands(GRAMMAR[name], "test") if 3 <= len(text.split()) <= 12)
    texts += [(text, frozenset()) for text in islice(plain, OTHERS)]
    spoken = [(text, listed, speak(text)) for text, listed in texts]
    heard = list(encode(settings, ((a, b, sound) for a, b, sound in spoken if sound is not None)))
    return [one for one in heard if one.listed], [one for one in heard if not one.listed]


def recorded(folder: Path) -> Iterator[tuple[str, frozenset[str], Samples]]:
    """What people say in the recordings of up to 9 s, with their longest words listed."""
    for file, row in manifest(folder):
        text = row["transcript"]
        if not row["category"].startswith("speech") or not text or float(row["duration_s"]) > 9:
            continue
        long = {word for word in words(text) if len(word) >= NAMED_LETTERS}
        yield text, frozenset(sorted(long, key=len)[-NAMED:]), read_sound(file)


def encode(
    settings: Settings, spoken: Iterable[tuple[str, frozenset[str], Samples]]
) -> Iterator[Said]:
    """One window of each, with silence around it."""
    with open_transcriber(settings) as transcriber:
        longest = int(transcriber.bundle.window_s * SAMPLE_RATE)
        for text, listed, sound in spoken:
            samples = np.pad(sound, (SAMPLE_RATE * 6 // 10, SAMPLE_RATE * 3 // 10))
            if len(samples) <= longest:
                window = Window("", 1, True, samples, 0.0, 0.0, 0.0)
                yield Said(text, listed, transcriber.encode(window))


def show(
    settings: Settings, name: str, known: Sequence[str], listed: Sequence[Said], *others: Said
) -> None:
    """A line for each boost."""
    free_ms = 0.0
    for boost in BOOSTS:
        vocabulary = VocabularySettings(words=tuple(known), boost=boost)
        with open_transcriber(replace(settings, vocabulary=vocabulary)) as transcriber:
            transcriber.warm_up()
            begun_s = time.process_time()
            heard = [transcriber.decode(one.encoded).text for one in (*listed, *others)]
            each_ms = 1000 * (time.process_time() - begun_s) / len(heard)
        free_ms = free_ms or each_ms
        named = [errors(one, text) for one, text in zip(listed, heard, strict=False)]
        plain = [errors(one, text) for one, text in zip(others, heard[len(listed) :], strict=True)]
        cells = [
            percent([one[:2] for one in named]),
            percent([one[2:] for one in named]),
            percent([one[2:] for one in plain]),
        ]
        right = sum(not sum(one[::2]) for one in (*named, *plain))
        line = f"{cells[0]:>7} {cells[1]:>10} {cells[2]:>7} {right:7}"
        print(f"{name:17} {boost:5g} {line} {each_ms - free_ms:8.1f}", flush=True)


def percent(counts: Sequence[tuple[int, int]]) -> str:
    """Errors of how many words."""
    total = sum(count for _, count in counts)
    return f"{100 * sum(wrong for wrong, _ in counts) / total:.1f}" if total else "-"


def errors(spoken: Said, heard: str) -> tuple[int, int, int, int]:
    """Listed words that are wrong and how many there are, and the same of all others; what was
    inserted counts with the others."""
    wanted, found = words(spoken.text), words(heard)
    costs = np.zeros((len(wanted) + 1, len(found) + 1), int)
    costs[:, 0], costs[0] = range(len(wanted) + 1), range(len(found) + 1)
    for row, one in enumerate(wanted, 1):
        for column, other in enumerate(found, 1):
            changed = costs[row - 1, column - 1] + (one != other)
            costs[row, column] = min(
                changed, costs[row - 1, column] + 1, costs[row, column - 1] + 1
            )
    row, column = costs.shape[0] - 1, costs.shape[1] - 1
    wrong = {True: 0, False: 0}
    while row or column:
        same = row and column and wanted[row - 1] == found[column - 1]
        if row and column and costs[row, column] == costs[row - 1, column - 1] + (not same):
            wrong[wanted[row - 1] in spoken.listed] += not same
            row, column = row - 1, column - 1
        elif row and costs[row, column] == costs[row - 1, column] + 1:
            wrong[wanted[row - 1] in spoken.listed] += 1
            row -= 1
        else:
            wrong[False] += 1
            column -= 1
    count = sum(word in spoken.listed for word in wanted)
    return wrong[True], count, wrong[False], len(wanted) - count


def search() -> None:
    """What it takes to find the words of a text that are like listed ones, no pass among it."""
    text = words("tell wind stone to come downstairs and switch off the lamp in the rough castle")
    half = [re.sub(r"^(.*?[aeiou][^aeiou]).*$", r"\1", one) for one in spelled(DECOYS)]
    many = dict.fromkeys([*spelled(DECOYS), *(a + b for a in half for b in half)])
    for count in (10, 100, 1000):
        listed = Words(islice(many, count))
        spans = [
            Span(first, last, " ".join(text[first:last]))
            for last in range(1, len(text) + 1)
            for first in range(max(0, last - listed.longest), last)
        ]
        taken = []
        for _ in range(20):
            begun_s = time.thread_time()
            listed.near(spans)
            taken.append(1000 * (time.thread_time() - begun_s))
        print(
            f"search in {count} words, a text of {len(text)}: {np.median(taken):.2f} ms of a core"
        )


if __name__ == "__main__":
    sys.exit(main())
