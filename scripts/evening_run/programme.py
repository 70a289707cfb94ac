"""The programme of an evening: the recordings, their rooms and their order.

The end of speech is read from the clean recording, before rooms and noise are added.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from evening_run.acoustics import Sound, beside, in_room, in_turn, kitchen, room, softened
from evening_run.endings import in_own_quiet, speech_ends, word_ends
from numpy.typing import NDArray
from rigs.recordings import SHARED_AUDIO, manifest, sentences
from rigs.sounds import NOT_SPEECH, read, to_int16

from appliance.records import SAMPLE_RATE

Samples = NDArray[np.int16]

SENTENCE, TALK, NOISE = "sentence", "talk", "noise"
ROOMS = tuple((rt60_s, metres) for rt60_s in (0.3, 0.6) for metres in (1, 3, 5))
KITCHEN_DB = (20, 10, 5)
TELEVISION_DB = 15.0
BEFORE_S, AFTER_S, FADE_S = 0.5, 1.3, 0.1
"""A person's recording is heard between so much of its own quietest part."""
DATED_S = 0.1
"""A recording whose last so much is loud does not tell where its speech ends."""
NOISE_BEFORE_S, NOISE_AFTER_S = 3.0, 2.5
VOICES = 8
"""On the television."""
TELEVISION_ROOM = (0.6, 3)
LOUDNESS = 1500.0
"""RMS of noise that is heard alone, -27 dBFS."""
NOISE_S, LONGEST_S = 10.0, 30.0
SEED = 11
"""Of the noises themselves, the same in every evening."""


@dataclass(frozen=True, slots=True)
class Item:
    """A sound, and what is to come of it."""

    name: str
    family: str
    """Of groups; a level has a number of each."""
    group: str
    """The table's line."""
    kind: str
    """sentence; talk that is meant for nobody; noise, music or silence."""
    text: str
    """What is said, word for word; "" where nobody knows or nobody speaks."""
    sound: Samples
    begin: int
    end: int
    """Samples at which the speech begins and ends."""
    unrelated: bool = False
    """True when nothing in it is a command: any action is a phantom."""
    dated: bool = True
    """False where something is loud up to the recording's end: when the speech ends is not known.
    """


@dataclass(frozen=True, slots=True)
class Level:
    """How much is tried."""

    most: dict[str, int]
    """Sounds of each group (a room, a distance and a noise level is one); others: all."""
    gap_s: tuple[float, float]
    reloads: int
    block_s: float
    rooms: tuple[tuple[float, int], ...] = ROOMS
    kitchen_db: tuple[int, ...] = KITCHEN_DB
    longest_s: float = LONGEST_S


SHORT = Level(
    {"speech": 4, "commands": 3, "orders": 0, "reading": 1, "rooms": 2, "kitchen": 1,
     "television": 1, "talk": 1, "noise": 2, "music": 0, "silence": 1},
    (2.0, 4.0), 6, 90.0, ((0.6, 3),), (10,), 8.0,
)  # fmt: skip
USUAL = Level(
    {"speech": 16, "commands": 26, "orders": 6, "reading": 14, "rooms": 4, "kitchen": 4,
     "television": 8, "talk": 8, "noise": 8, "music": 2, "silence": 2},
    (2.0, 20.0), 20, 180.0,
)  # fmt: skip
LEVELS = {"short": SHORT, "usual": USUAL}


@dataclass(frozen=True, slots=True)
class Step:
    """What is done when the stream is at a sample of the block."""

    at: int
    what: str
    """start, reload, wyoming, or a look at the processes."""
    item: int = -1


@dataclass
class Block:
    """A stretch of an evening."""

    items: list[Item] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """The sample of the block at which each item begins."""
    steps: list[Step] = field(default_factory=list)
    length: int = 0
    cuts: list[int] = field(default_factory=list)
    """Samples at which the stream goes on only when what was begun before is done."""

    def segments(self) -> list[tuple[int, int]]:
        """Return the first and the last sample of each part that is played without a stop."""
        places = [0, *(cut for cut in self.cuts if 0 < cut < self.length), self.length]
        return list(pairwise(places))

    def render(self) -> Samples:
        """Return the block's sound."""
        sound = np.zeros(self.length, np.int32)
        for item, at in zip(self.items, self.places, strict=True):
            sound[at : at + len(item.sound)] += item.sound
        return np.clip(sound, -32768, 32767).astype(np.int16)


def recorded(name: str, sound: Samples, family: str, text: str, *, synthetic: bool = False) -> Item:
    """Return a sentence from its recording."""
    find = speech_ends if synthetic else word_ends
    begin, end = len(sound) - find(sound[::-1]), find(sound)
    if synthetic:
        return Item(name, family, family, SENTENCE, text, sound, begin, end)
    quiet = in_own_quiet(sound, BEFORE_S, AFTER_S).astype(np.float64)
    around, lead = to_samples(softened(quiet, FADE_S)), int(BEFORE_S * SAMPLE_RATE)
    dated = end < len(sound) - int(DATED_S * SAMPLE_RATE)
    begin, end = begin + lead, end + lead
    return Item(name, family, family, SENTENCE, text, around, begin, end, dated=dated)


def to_samples(sound: Sound) -> Samples:
    """(n,) float64 as int16."""
    return to_int16((sound / 32767).astype(np.float32))


def spoken() -> list[Item]:
    """Return the sentences of tests/speech."""
    return [
        recorded(one.file.name, to_int16(read(one.file)), "speech", one.text, synthetic=True)
        for one in sentences()
    ]


def of_people(folder: Path = SHARED_AUDIO) -> list[Item]:
    """Return commands, orders and readings of people; none where there are no recordings."""
    found: list[Item] = []
    for file, row in manifest(folder) if (folder / "MANIFEST.tsv").is_file() else ():
        text, category = row["transcript"], row["category"]
        sound = to_int16(read(file))
        if category == "speech-home-automation" and text:
            found.append(recorded(row["path"], sound, "commands", text))
        elif category == "speech-slots":
            found.append(replace(recorded(row["path"], sound, "orders", ""), unrelated=True))
        elif category == "speech" and text:
            found.append(replace(recorded(row["path"], sound, "reading", text), unrelated=True))
    return found


def whole(name: str, family: str, kind: str, sound: Samples) -> Item:
    """Return a sound of which no sentence is to come."""
    return Item(name, family, family, kind, "", sound, 0, len(sound), unrelated=True)


def sounds(folder: Path, longest_s: float) -> list[Item]:
    """Return talk, noise, music and silence."""
    rng = np.random.default_rng(SEED)
    size = int(NOISE_S * SAMPLE_RATE)
    found = [
        whole(f"kitchen noise {n}", "noise", NOISE, to_samples(LOUDNESS * kitchen(rng, size)))
        for n in (1, 2)
    ]
    found += [
        whole(f"room tone {n}", "silence", NOISE, np.zeros(2 * size, np.int16)) for n in (1, 2)
    ]
    families = {"long": "talk", "long-labelled": "talk", "speech-oov": "talk", "music": "music"}
    families |= {"speech-no-transcript": "talk"}
    for file, row in manifest(folder) if (folder / "MANIFEST.tsv").is_file() else ():
        category = row["category"]
        if category in NOT_SPEECH or category in families:
            sound = to_int16(read(file))[: int(longest_s * SAMPLE_RATE)]
            family = families.get(category, "noise")
            faded = to_samples(softened(sound.astype(np.float64), FADE_S))
            found.append(whole(row["path"], family, TALK if family == "talk" else NOISE, faded))
    return found


def in_rooms(clean: Sequence[Item], rooms: Sequence[tuple[float, int]]) -> Iterator[list[Item]]:
    """Return the sentences as each room gives them, one list a room."""
    for rt60_s, metres in rooms:
        response = room(rt60_s, float(metres))
        group = f"room {rt60_s:g} s, {metres} m"
        yield [
            replace(
                one,
                name=f"{one.name} in {group}",
                family="rooms",
                group=group,
                sound=to_samples(in_room(one.sound.astype(np.float64), response)),
            )
            for one in clean
        ]


def beside_noise(
    clean: Sequence[Item], family: str, group: str, ratio_db: float, other: Callable[[int], Sound]
) -> list[Item]:
    """Return the sentences with another sound, so far below them, that begins before them and goes
    on behind them. `other` gives so many samples of it."""
    lead, rest = (int(seconds * SAMPLE_RATE) for seconds in (NOISE_BEFORE_S, NOISE_AFTER_S))
    found = []
    for one in clean:
        alone = np.concatenate((np.zeros(lead), one.sound.astype(np.float64), np.zeros(rest)))
        noise = softened(other(len(alone)), 0.3)
        found.append(
            replace(
                one,
                name=f"{one.name} beside {group}",
                family=family,
                group=group,
                sound=to_samples(beside(alone, noise, ratio_db)),
                begin=one.begin + lead,
                end=one.end + lead,
            )
        )
    return found


def television(voices: Sequence[Item]) -> Callable[[int], Sound]:
    """Return what gives any number of samples of a television in a room: these voices in turn."""
    words = [one.sound[one.begin : one.end].astype(np.float64) for one in voices]
    programme = in_room(in_turn(words), room(*TELEVISION_ROOM))
    rng = np.random.default_rng(SEED)

    def part(size: int) -> Sound:
        return np.resize(np.roll(programme, -int(rng.integers(len(programme)))), size)

    return part


def gather(level: Level, seed: int) -> list[Item]:
    """Return what is heard in an evening, in its order."""
    rng = random.Random(seed)
    people, synthetic = of_people(), spoken()
    pool: dict[str, list[Item]] = {"speech": synthetic}
    for one in [*people, *sounds(SHARED_AUDIO, level.longest_s)]:
        pool.setdefault(one.group, []).append(one)
    clean = pool.get("commands") or synthetic
    readers = pool.get("reading") or synthetic
    groups = [*in_rooms(draw(rng, clean, level, "rooms"), level.rooms)]
    noise = np.random.default_rng(SEED)
    for ratio_db in level.kitchen_db:
        some = draw(rng, clean, level, "kitchen")
        group = f"kitchen, {ratio_db} dB"
        groups.append(beside_noise(some, "kitchen", group, ratio_db, lambda n: kitchen(noise, n)))
    some = draw(rng, clean, level, "television")
    heard = television(rng.sample(readers, VOICES))
    groups.append(beside_noise(some, "television", "television", TELEVISION_DB, heard))
    groups += [draw(rng, each, level, family) for family, each in pool.items()]
    chosen = [one for each in groups for one in each]
    rng.shuffle(chosen)
    return chosen


def draw(rng: random.Random, items: Sequence[Item], level: Level, family: str) -> list[Item]:
    """Return as many of these as the level has of the family, in their order."""
    count = min(len(items), level.most.get(family, len(items)))
    return [items[n] for n in sorted(rng.sample(range(len(items)), count))]
