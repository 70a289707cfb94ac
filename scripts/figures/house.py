"""Several rooms hear one sentence: is the nearest one chosen, and are two sentences told apart?

    scripts/measure house [--fit] [--recordings FOLDER]

Rooms are simulated: the speaker is 1 to 3 m from the near microphone; the far one is in another
room, 9 to 15 dB softer, behind a door (a low-pass of 1 to 2.5 kHz) and with a longer reverberation.
Each microphone has a gain of its own (-6 to 6 dB) and its own noise. Both hear the sound through
the appliance's detector, segmenter and model. A pair counts if both rooms have a text.

The figures are of the voices of tests/speech and, with --recordings (default:
$ROOMSCRIBE_SHARED/data/audio), of people's commands there. --fit prints weights for
appliance/house/score.py, fitted on voices of espeak-ng and flite, and on people's readings; none of
them is in a figure. It needs Debian's espeak-ng and flite.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from evening_run.acoustics import in_room, room
from figures.model import COMMANDS, coloured, cut, read
from figures.pause_set import speech_power
from numpy.typing import NDArray
from rigs.recordings import SHARED_AUDIO, manifest, sentences
from train.texts import commands

from appliance.config import Settings
from appliance.daemon.transcription import compose
from appliance.house.acoustics import measure_window
from appliance.house.claims import SAME_END_S, Claim, is_same_sentence
from appliance.house.score import WEIGHTS, properties
from appliance.infer.gates import judge
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Transcriber
from appliance.lab.fit.statistics import logistic
from appliance.records import SAMPLE_RATE, Discarded

Sound = NDArray[np.float64]
SEED = 11
RESPONSES = 6
"""Impulse responses of each kind."""
NEAR_DBFS = -30.0
LEAD_S, TAIL_S = 0.7, 1.3
FIT_SENTENCES = 60
READING_S = 4.0
OVERLAP_S = 2.0
"""Two people who talk at once, 2 s each, end within this time of each other."""
READINGS = 20


@dataclass(frozen=True)
class Heard:
    """A sentence as one room heard it."""

    text: str
    start_s: float
    end_s: float
    found: dict[str, float]
    """Its properties, as the score has them."""
    sketch: bytes
    gain_db: float
    """Extra level that the microphone had."""

    def score(self) -> float:
        """The score with the shipped weights."""
        return sum(WEIGHTS[name] * value for name, value in self.found.items())

    def claim(self, later_s: float = 0.0) -> Claim:
        """What the room claims if it heard this so much later."""
        start_s, end_s = self.start_s + later_s, self.end_s + later_s
        return Claim("", "", "", start_s, end_s, 1, self.score(), self.sketch)


@dataclass(frozen=True)
class Pair:
    """One sentence in the near room and in the far one; None for a room without a text."""

    near: Heard | None
    far: Heard | None


class Rooms:
    """Simulates rooms, and hears what is said in them."""

    def __init__(self) -> None:
        self._settings = replace(Settings(), model=replace(Settings().model, bundle="tiny.en"))
        self._transcriber: Transcriber = open_transcriber(self._settings)
        chance = random.Random(SEED)
        self._near = [
            room(chance.uniform(0.3, 0.5), chance.uniform(1.0, 3.0), at) for at in range(RESPONSES)
        ]
        self._far = [
            room(chance.uniform(0.5, 0.8), chance.uniform(3.0, 5.0), at) for at in range(RESPONSES)
        ]

    def pairs(self, sounds: Sequence[Sound], seed: int) -> list[Pair]:
        """Return what the two rooms hear of each sound, (n,) float64."""
        chance = random.Random(seed)
        return [self._pair(sound, chance) for sound in sounds]

    def _pair(self, sound: Sound, chance: random.Random) -> Pair:
        rng = np.random.default_rng(chance.getrandbits(32))
        sound = np.concatenate(
            (np.zeros(int(LEAD_S * SAMPLE_RATE)), sound, np.zeros(int(TAIL_S * SAMPLE_RATE)))
        )
        near = _levelled(in_room(sound, chance.choice(self._near)), NEAR_DBFS)
        softer_db = chance.uniform(9.0, 15.0)
        behind = low_pass(in_room(sound, chance.choice(self._far)), chance.uniform(1000, 2500))
        far = _levelled(behind, NEAR_DBFS - softer_db)
        noise_dbfs = NEAR_DBFS - chance.uniform(25.0, 40.0)
        heard = []
        for one in (near, far):
            own_dbfs = noise_dbfs + chance.uniform(-3.0, 3.0)
            noise = coloured(rng, len(one), 1.0) * 10 ** (own_dbfs / 20)
            gain_db = chance.uniform(-6.0, 6.0)
            heard.append(self._hear((one + noise) * 10 ** (gain_db / 20), gain_db))
        return Pair(*heard)

    def _hear(self, sound: Sound, gain_db: float) -> Heard | None:
        samples = np.clip(np.rint(sound * 32768), -32768, 32767).astype(np.int16)
        for one in cut(samples, self._settings, self._transcriber.bundle.window_s):
            if isinstance(one, Discarded):
                continue
            result = self._transcriber.transcribe(one)
            if judge(result, self._transcriber.gates, one.voiced_s):
                continue
            transcript = compose(one, result, "tiny.en", 0.0)
            measured = measure_window(one)
            found = properties(transcript, measured.decay_db)
            return Heard(
                transcript.text, one.start_s, one.speech_end_s, found, measured.sketch, gain_db
            )
        return None


def low_pass(sound: Sound, corner_hz: float) -> Sound:
    """Return the sound behind a door: 6 dB per octave above `corner_hz`."""
    hz = np.fft.rfftfreq(len(sound), 1 / SAMPLE_RATE)
    return np.asarray(
        np.fft.irfft(np.fft.rfft(sound) / np.sqrt(1 + (hz / corner_hz) ** 2), len(sound))
    )


def _levelled(sound: Sound, dbfs: float) -> Sound:
    return np.asarray(sound * 10 ** (dbfs / 20) / np.sqrt(speech_power(sound)))


def spoken_to_fit() -> Iterator[Sound]:
    """Yield home commands by voices that no figure uses."""
    voices = [f"espeak-ng:en-us+{one}" for one in ("m1", "m3", "m7", "f2", "f4", "Andy", "linda")]
    voices += ["espeak-ng:en-gb-x-rp+f3", "espeak-ng:en+m5", "flite:slt", "flite:rms", "flite:awb"]
    texts = itertools.islice(commands(SEED, "train"), FIT_SENTENCES)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "a.wav")
        for text, voice in zip(texts, itertools.cycle(voices), strict=False):
            program, name = voice.split(":")
            said = ["-v", name, "-w", str(file), text]
            if program == "flite":
                said = ["-voice", name, "-t", text, "-o", str(file)]
            subprocess.run([program, *said], check=True, capture_output=True)
            yield read(file).astype(np.float64)


def readings_to_fit(folder: Path) -> Iterator[Sound]:
    """Yield the beginnings of people's readings."""
    found = [path for path, row in manifest(folder) if row["category"] == "speech"]
    for path in found[:READINGS]:
        sound = read(path).astype(np.float64)
        yield sound[: int(READING_S * SAMPLE_RATE)]


def fit(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the weights of a logistic regression of which of two rooms is nearer.

    Properties are divided by their spread, and a ridge of 1 keeps the weights small.
    """
    names = list(WEIGHTS)
    both = [(one.near, one.far) for one in pairs if one.near and one.far]
    differences = np.array(
        [[near.found[name] - far.found[name] for name in names] for near, far in both]
    )
    spread = np.sqrt(np.mean(differences**2, axis=0)) + 1e-9
    scaled = differences / spread
    ones = np.ones(len(scaled))
    weights = logistic(scaled, ones, ones, ridge=1.0)
    return {name: float(value) for name, value in zip(names, weights / spread, strict=True)}


def report(name: str, pairs: Sequence[Pair]) -> None:
    """Print how often the nearest room is chosen, and how well sentences are told apart."""
    both = [(one.near, one.far) for one in pairs if one.near and one.far]
    if not both:
        print(f"{name}: no sentence was heard in both rooms")
        return
    chosen = sum(near.score() > far.score() for near, far in both)
    alone = sum(bool(one.near) for one in pairs)
    print(f"{name}: {len(pairs)} sentences, {alone} heard near, {len(both)} in both rooms")
    share = 100 * chosen / len(both)
    print(f"    nearest room chosen           {chosen} of {len(both)} ({share:.0f} %)")
    for feature in WEIGHTS:
        right = sum(near.found[feature] > far.found[feature] for near, far in both)
        print(f"    by {feature:26s} {right}")
    apart = [abs(near.end_s - far.end_s) for near, far in both]
    print(
        f"    ends apart: median {np.median(apart):.2f} s, longest {max(apart):.2f} s, "
        f"more than {SAME_END_S} s: {sum(one > SAME_END_S for one in apart)}"
    )
    print(f"    same text in both rooms       {sum(near.text == far.text for near, far in both)}")
    chance = random.Random(SEED)
    split = sum(not is_same_sentence(near.claim(), far.claim()) for near, far in both)
    print(f"    one sentence taken for two    {split} of {len(both)}")
    others = [
        (one, two, one.end_s - two.end_s + chance.uniform(-OVERLAP_S, OVERLAP_S))
        for (one, _), (again, two) in itertools.permutations(both, 2)
        if one.text != again.text
    ]
    mixed = sum(is_same_sentence(one.claim(), two.claim(later_s)) for one, two, later_s in others)
    share = 100 * mixed / max(1, len(others))
    print(f"    two sentences at once taken for one  {mixed} of {len(others)} ({share:.1f} %)")


def main() -> None:
    """Print the figures, or fitted weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="print weights instead")
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO)
    options = parser.parse_args()
    rooms = Rooms()
    if options.fit:
        sounds = [*spoken_to_fit()]
        if options.recordings.is_dir():
            sounds += readings_to_fit(options.recordings)
        pairs = rooms.pairs(sounds, SEED)
        for name, value in fit(pairs).items():
            print(f'    "{name}": {value:.3g},')
        report("voices of the fit, with the shipped weights", pairs)
        return
    report("tests/speech", rooms.pairs([read(one.file).astype(float) for one in sentences()], SEED))
    if options.recordings.is_dir():
        people = [
            read(path).astype(float)
            for path, row in manifest(options.recordings)
            if row["category"] in COMMANDS and row["category"].startswith("speech")
        ]
        report("people's commands", rooms.pairs(people, SEED))


if __name__ == "__main__":
    main()
