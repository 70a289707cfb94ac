"""Synthesise sentences with pauses, the test set for the end of speech.

    scripts/measure pause_set FOLDER [--sentences 80] [--seed 1]

Needs Debian's espeak-ng, libespeak-ng1, libflite1, flite, festival, festvox-kallpc16k,
festvox-kdlpc16k and festvox-us-slt-hts. The same arguments give the same sounds. FOLDER gets FLAC
files (16 kHz mono) and MANIFEST.tsv:

group      tuning or reporting: neither voices nor sentences are in both
condition  quiet (noise 45 dB below the speech), noise 15 dB, noise 5 dB (pink), television (two
           other voices in a room, one after the other without end, 15 dB below)
text       what is said; `before` is what is said before the pause, empty: there is none
pause_ms   200 to 900: from the last loud 10 ms (within 35 dB of the loudest) before it to the
           first loud ones after it; it begins at pause_s. Three in eight lie before the last word,
           as many between any two words
after      what follows the last word: nothing, the room's tail, a breath or a click
begin_s, end_s   first and last loud 10 ms, of the dry voice

The phones' times tell where the pause belongs: the engine is given a comma there. Festival, which
makes no pause of it, says the two parts one after the other.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from train.engines import EngineError, Speaker
from train.espeak import Espeak
from train.festival import Festival
from train.flite import Flite
from train.phones import tidy
from train.texts import Grammar

from appliance.lab.recordings import read_rows
from appliance.records import SAMPLE_RATE

Sound = NDArray[np.float64]
"""(n,) float64, 16 kHz, int16's scale."""

VOICES = {
    "tuning": (
        *(f"espeak:en-us+{name}" for name in ("m1", "m3", "f2", "Mario", "linda")),
        *("espeak:en+f4", "espeak:en-gb-scotland+m7", "flite:slt", "flite:rms"),
    ),
    "reporting": (
        *("festival:kal", "festival:ked", "festival:hts", "flite:awb", "flite:kal16"),
        *(f"espeak:en-us-nyc+{name}" for name in ("m5", "f5")),
        *("espeak:en-gb-x-rp+victor", "espeak:en-029+steph"),
    ),
}
CONDITIONS = {"quiet": 45.0, "noise 15 dB": 15.0, "noise 5 dB": 5.0, "television": 15.0}
"""How far below the speech the other sound is, dB; a television is heard in a quiet room."""
AFTER = ("nothing", "room", "breath", "click")
PAUSES_MS = range(200, 901, 50)
LEAD_S, REST_S = 4.0, 2.5
"""Before the first and behind the last word."""
LONGEST_WORDS = 12
STEP, WITHIN_DB = SAMPLE_RATE // 100, 35.0
FADE = SAMPLE_RATE // 25


@dataclass(frozen=True, slots=True)
class Row:
    """A line of MANIFEST.tsv."""

    file: str
    group: str
    condition: str
    voice: str
    after: str
    text: str
    before: str
    pause_ms: int
    pause_s: float
    begin_s: float
    end_s: float

    @classmethod
    def read(cls, row: dict[str, str]) -> Self:
        """A row as `read_rows` gives it."""
        casts = {"int": int, "float": float}
        values = {one.name: casts.get(str(one.type), str)(row[one.name]) for one in fields(cls)}
        return cls(**values)


def rows_of(folder: Path) -> list[Row]:
    """The lines of a set that was made before; FileNotFoundError where there is none."""
    return [Row.read(row) for row in read_rows(folder / "MANIFEST.tsv")]


class Engines:
    """The synthesisers, each started when it first speaks; one thread."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], Speaker]] = {
            "espeak": Espeak,
            "flite": Flite,
            "festival": Festival,
        }
        self._speakers: dict[str, Speaker] = {}

    def parts(self, voice: str, first: str, second: str, seed: str) -> tuple[Sound, Sound]:
        """What is said before and after the comma; one of them may be empty."""
        joined = f"{first}, {second}" if first and second else first or second
        samples, pauses = self._say(voice, joined, seed)
        if not (first and second):
            return samples, np.zeros(0)
        if len(pauses) == 1:
            return samples[: pauses[0]], samples[pauses[0] :]
        return self._say(voice, first, seed)[0], self._say(voice, second, seed)[0]

    def _say(self, voice: str, text: str, seed: str) -> tuple[Sound, list[int]]:
        """The samples, and the middle of every silence of 40 ms in them."""
        engine, name = voice.split(":")
        if engine not in self._speakers:
            self._speakers[engine] = self._makers[engine]()
        rng = random.Random(seed)
        take = self._speakers[engine].say(name, text, rng.uniform(0.85, 1.15), rng)
        segments = tidy(take.segments, len(take.samples) / take.rate)
        silent = [
            one for one in segments[1:-1] if one.phone == "sil" and one.end > one.start + 0.04
        ]
        middles = [int((one.start + one.end) / 2 * SAMPLE_RATE) for one in silent]
        return soxr.resample(take.samples.astype(np.float64), take.rate, SAMPLE_RATE, "HQ"), middles


def loud(sound: Sound, loudest_db: float) -> tuple[int, int]:
    """Samples before and up to the end of what is within WITHIN_DB of the loudest 10 ms."""
    steps = np.flatnonzero(levels(sound) > loudest_db - WITHIN_DB)
    return (int(steps[0]) * STEP, (int(steps[-1]) + 1) * STEP) if len(steps) else (0, len(sound))


def levels(sound: Sound) -> NDArray[np.float64]:
    """dB of each 10 ms."""
    steps = sound[: len(sound) // STEP * STEP].reshape(-1, STEP)
    decibels: NDArray[np.float64] = 10 * np.log10((steps**2).mean(axis=1) + 1e-2)
    return decibels


def faded(sound: Sound, begin: int, end: int) -> Sound:
    """That part of a sound, with FADE samples of its surroundings softly cut on either side."""
    first, last = max(0, begin - FADE), min(len(sound), end + FADE)
    part = sound[first:last].copy()
    ramp = np.linspace(0, 1, FADE)
    if begin > first:
        part[: begin - first] *= ramp[-(begin - first) :]
    if last > end:
        part[end - first :] *= ramp[: last - end][::-1]
    return np.concatenate((np.zeros(max(0, FADE - begin)), part, np.zeros(end + FADE - last)))


def pink(rng: np.random.Generator, size: int) -> Sound:
    """Pink noise, RMS 1."""
    spectrum = np.fft.rfft(rng.normal(size=size))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    spectrum[0] = 0
    sound: Sound = np.fft.irfft(spectrum, size)
    return np.asarray(sound / sound.std())


def in_room(rng: np.random.Generator, sound: Sound, decay_s: float, below_db: float) -> Sound:
    """With a tail of noise whose level falls by 60 dB in `decay_s`, so far below the voice."""
    size = int(decay_s * SAMPLE_RATE)
    tail = rng.normal(size=size) * 10 ** (-3 * np.arange(size) / size)
    tail[: SAMPLE_RATE // 200] = 0
    tail *= 10 ** (-below_db / 20) / np.sqrt((tail**2).sum())
    tail[0] = 1.0
    padded = 1 << (len(sound) + size).bit_length()
    both: Sound = np.fft.irfft(np.fft.rfft(sound, padded) * np.fft.rfft(tail, padded), padded)
    return np.asarray(both[: len(sound)])


def speech_power(sound: Sound) -> float:
    """Mean square of the 10 ms within 25 dB of the loudest."""
    level = levels(sound)
    return float((10 ** (level[level > level.max() - 25] / 10)).mean())


def scaled(sound: Sound, power: float) -> Sound:
    """That sound with such a mean square of its loud parts."""
    return np.asarray(sound * np.sqrt(power / speech_power(sound)))


def sentences(group: str, seed: int) -> Iterator[str]:
    """Home commands, each once; those of one group never occur in the other."""
    grammar = Grammar(random.Random(f"pauses-{seed}"))
    given: set[str] = set()
    while True:
        text = grammar.expand("{command}")
        mine = sum(text.encode()) % 2 == (group == "tuning")
        if mine and text not in given and len(text.split()) <= LONGEST_WORDS:
            given.add(text)
            yield text


def television(engines: Engines, group: str, seed: int) -> Sound:
    """Half a minute of two voices one after the other, in a room."""
    rng = random.Random(f"television-{group}-{seed}")
    grammar = Grammar(rng)
    spoken: list[Sound] = []
    while sum(map(len, spoken)) < 30 * SAMPLE_RATE:
        voice = VOICES[group][-1 - len(spoken) % 2]
        said, _ = engines.parts(voice, grammar.expand("{general}"), "", f"tv-{len(spoken)}")
        spoken += [scaled(said, 1e6), np.zeros(int(rng.uniform(0.05, 0.5) * SAMPLE_RATE))]
    return in_room(np.random.default_rng(seed), np.concatenate(spoken), 0.4, 3.0)


def follow(rng: random.Random, sound: Sound, end: int, after: str) -> Sound:
    """`sound` with what comes after its last word, which ends at `end`."""
    noise = np.random.default_rng(rng.getrandbits(32))
    if after == "room":
        return in_room(noise, sound, rng.uniform(0.25, 0.6), rng.uniform(3, 9))
    at = end + int(rng.uniform(0.1, 0.45) * SAMPLE_RATE)
    power = speech_power(sound)
    if after == "breath":
        size = int(rng.uniform(0.15, 0.35) * SAMPLE_RATE)
        breath = pink(noise, size) * np.sin(np.linspace(0, np.pi, size)) ** 2
        sound[at : at + size] += breath * np.sqrt(power) * 10 ** (-rng.uniform(24, 34) / 20)
    if after == "click":
        size = int(0.012 * SAMPLE_RATE)
        for place in (at, at + int(rng.uniform(0.06, 0.12) * SAMPLE_RATE)):
            click = noise.normal(size=size) * np.exp(-np.linspace(0, 5, size))
            sound[place : place + size] += click * np.sqrt(power) * 10 ** (-rng.uniform(0, 10) / 20)
    return sound


def cut_in_two(rng: random.Random, text: str) -> tuple[str, str]:
    """What is said before and after the pause; for one sentence in four, or of one word, no
    pause."""
    words = text.split()
    draw = rng.random()
    if draw < 0.25 or len(words) < 2:
        return text, ""
    at = len(words) - 1 if draw < 0.625 else rng.randrange(1, len(words))
    return " ".join(words[:at]), " ".join(words[at:])


class Studio:
    """Makes the sounds of one group."""

    def __init__(self, group: str, seed: int) -> None:
        self._group, self._seed, self._engines = group, seed, Engines()
        self._television = television(self._engines, group, seed)

    def make(self, number: int, text: str, condition: str) -> tuple[Row, NDArray[np.int16]]:
        """One sentence, and its line."""
        key = f"{self._group}-{self._seed}-{number}-{condition}"
        rng = random.Random(key)
        voice = VOICES[self._group][number % len(VOICES[self._group])]
        before, behind = cut_in_two(rng, text)
        first, second = self._engines.parts(voice, before, behind, f"{self._seed}-{number}")
        loudest = float(max(levels(one).max() for one in (first, second) if len(one)))
        parts = [faded(one, *loud(one, loudest)) for one in (first, second) if len(one)]
        pause_ms = rng.choice(PAUSES_MS) if behind else 0
        pause = np.zeros(max(0, pause_ms * SAMPLE_RATE // 1000 - 2 * FADE))
        dry = np.concatenate((parts[0], pause, *parts[1:]) if behind else parts)
        lead = int((LEAD_S + rng.uniform(0, 0.5)) * SAMPLE_RATE)
        begin, end = lead + FADE, lead + len(dry) - FADE
        whole = np.concatenate((np.zeros(lead), dry, np.zeros(int(REST_S * SAMPLE_RATE))))
        power = 10 ** (rng.uniform(55, 70) / 10)
        after = AFTER[rng.randrange(len(AFTER))]
        heard = follow(rng, scaled(whole, power), end, after)
        heard = self._mixed(rng, heard, power, condition)
        name = f"{self._group}-{number:03}-{condition.replace(' ', '-')}.flac"
        row = Row(
            name, self._group, condition, voice, after, text, before if behind else "", pause_ms,
            round((begin + len(parts[0]) - 2 * FADE) / SAMPLE_RATE, 3) if behind else 0.0,
            round(begin / SAMPLE_RATE, 3), round(end / SAMPLE_RATE, 3),
        )  # fmt: skip
        return row, np.clip(np.rint(heard), -32768, 32767).astype(np.int16)

    def _mixed(self, rng: random.Random, sound: Sound, power: float, condition: str) -> Sound:
        """`sound`, whose speech is so loud, beside the other sound."""
        noise = np.random.default_rng(rng.getrandbits(32))
        tv = condition == "television"
        below_db = CONDITIONS["quiet"] if tv else CONDITIONS[condition]
        sound = sound + pink(noise, len(sound)) * np.sqrt(power) * 10 ** (-below_db / 20)
        if tv:
            begun = np.roll(self._television, -int(noise.integers(len(self._television))))
            other = scaled(np.resize(begun, len(sound)), power)
            sound = sound + other * 10 ** (-CONDITIONS[condition] / 20)
        return sound


def build(folder: Path, count: int, seed: int) -> list[Row]:
    """Write the set into a folder; the list comes last, so that half a set has none."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for group in VOICES:
        studio, texts = Studio(group, seed), sentences(group, seed)
        for number, text in zip(range(count), texts, strict=False):
            for condition in CONDITIONS:
                row, sound = studio.make(number, text, condition)
                soundfile.write(folder / row.file, sound, SAMPLE_RATE, subtype="PCM_16")
                rows.append(row)
    with (folder / "MANIFEST.tsv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(
            file, [one.name for one in fields(Row)], delimiter="\t", lineterminator="\n"
        )
        table.writeheader()
        table.writerows(asdict(row) for row in rows)
    return rows


def main() -> int:
    """Build the set; 1 where a synthesiser is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sentences", type=int, default=80, help="of each group; default 80")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        rows = build(options.folder, options.sentences, options.seed)
    except EngineError as error:
        print(f"pause_set: {error}", file=sys.stderr)
        return 1
    paused = sum(bool(row.pause_ms) for row in rows)
    print(f"{options.folder}: {len(rows)} recordings, {paused} of them with a pause")
    return 0


if __name__ == "__main__":
    sys.exit(main())
