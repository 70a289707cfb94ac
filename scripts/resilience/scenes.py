"""Make a day's sound for the soak: talk, noise, music and silence, with their true texts.

Scene number n of a seed is always the same. A chime comes again after a pause, as chimes do; other
noises go on without one. With $ROOMSCRIBE_SHARED its recordings are used; else
the sentences of tests/speech and made noise alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from resilience.rig import RATE, Sound
from rigs.recordings import SHARED_AUDIO, manifest, sentences

Wave = NDArray[np.float32]
"""(n,) float32 at 16 kHz, full scale 1."""

TALK, NOISE = 0.55, 0.25
"""Shares of the scenes; the rest is quiet."""
ROOM_DBFS = (-75.0, -60.0)
"""Loudness of a quiet room's hiss."""
BED_DBFS = (-60.0, -38.0)
"""Of noise or music under talk."""
ALONE_DBFS = (-45.0, -18.0)
"""Of noise or music alone."""
FADE = RATE // 10
CHIME_PAUSE_S = 4.0
SPEECH_KINDS = {"speech", "speech-home-automation", "tts-home-automation", "speech-slots"}
NOISE_KINDS = {"noise", "music", "beep"}
LONG_KINDS = {"long", "long-labelled", "speech-no-transcript", "speech-oov"}


@dataclass(frozen=True)
class Item:
    """Something said, seconds from the scene's beginning."""

    kind: str
    """known (a sentence of tests/speech, `text` is its truth), command or other."""
    begin_s: float
    end_s: float
    text: str
    bed: bool
    """True when noise or music ran under it."""


@dataclass
class Scene:
    """Some seconds of sound and what is in them."""

    kind: str
    """talk, noise or quiet."""
    sound: Sound
    items: list[Item] = field(default_factory=list)

    @property
    def length_s(self) -> float:
        """Seconds."""
        return len(self.sound) / RATE


@dataclass(frozen=True)
class Clip:
    """A recording in memory."""

    kind: str
    wave: Wave
    text: str = ""


class Sounds:
    """Every recording, in memory from the start, so that it does not grow."""

    def __init__(self) -> None:
        self.speech = [Clip("known", _wave(one.file), one.text) for one in sentences()]
        self.noise: list[Wave] = [_made(60, 0.0), _made(60, 1.0)]
        if SHARED_AUDIO.is_dir():
            for file, row in manifest(SHARED_AUDIO):
                self._take(file, row["category"])

    def _take(self, path: Path, kind: str) -> None:
        if kind in NOISE_KINDS:
            pause = np.zeros(int(CHIME_PAUSE_S * RATE) if kind == "beep" else 0, np.float32)
            self.noise.append(np.concatenate((_wave(path), pause)))
        elif kind in SPEECH_KINDS | LONG_KINDS:
            spoken = "command" if "automation" in kind or kind == "speech-slots" else "other"
            self.speech.append(Clip(spoken, _wave(path)))

    def pick(self, chance: random.Random) -> Clip:
        """Half of what is said are the known sentences, a third of the rest commands."""
        draw = chance.random()
        kind = "known" if draw < 0.5 else "command" if draw < 0.8 else "other"
        fitting = [clip for clip in self.speech if clip.kind == kind]
        return chance.choice(fitting or self.speech)


def scene(sounds: Sounds, seed: int, number: int) -> Scene:
    """Scene `number` of a day."""
    chance = random.Random(f"{seed} {number}")
    draw = chance.random()
    if draw < TALK:
        return _talk(sounds, chance)
    seconds = chance.uniform(20, 60 if draw < TALK + NOISE else 120)
    room = _room(seconds, chance)
    if draw < TALK + NOISE:
        room += _bed(chance.choice(sounds.noise), len(room), ALONE_DBFS, chance)
        return Scene("noise", _samples(room))
    return Scene("quiet", _samples(room))


def _talk(sounds: Sounds, chance: random.Random) -> Scene:
    """One to four things said with pauses of 2 to 25 s, over a bed every other time."""
    parts, items, at = [], [], 0
    bed = chance.random() < 0.5
    for _ in range(chance.randint(1, 4)):
        pause = int(chance.uniform(2, 25) * RATE)
        clip = sounds.pick(chance)
        begin = at + pause
        at = begin + len(clip.wave)
        spoken = Item(clip.kind, begin / RATE, at / RATE, clip.text, bed)
        parts.append((begin, clip.wave * 10 ** (chance.uniform(-10, 0) / 20)))
        items.append(spoken)
    whole = _room(at / RATE + 3.0, chance)
    for begin, wave in parts:
        whole[begin : begin + len(wave)] += wave
    if bed:
        whole += _bed(chance.choice(sounds.noise), len(whole), BED_DBFS, chance)
    return Scene("talk", _samples(whole), items)


def _room(seconds: float, chance: random.Random) -> Wave:
    """Hiss of a quiet room."""
    generator = np.random.default_rng(chance.getrandbits(32))
    hiss = generator.standard_normal(int(seconds * RATE), dtype=np.float32)
    return (hiss * 10 ** (chance.uniform(*ROOM_DBFS) / 20)).astype(np.float32)


def _bed(wave: Wave, length: int, dbfs: tuple[float, float], chance: random.Random) -> Wave:
    """A noise, repeated to `length`, at a random loudness, faded in and out."""
    begin = chance.randrange(len(wave))
    bed = np.resize(np.roll(wave, -begin), length).astype(np.float32)
    sounding = wave[wave != 0]
    rms = float(np.sqrt(np.mean(np.square(sounding, dtype=np.float64)))) or 1.0
    bed *= np.float32(10 ** (chance.uniform(*dbfs) / 20) / rms)
    ramp = np.linspace(0, 1, FADE, dtype=np.float32)
    bed[:FADE] *= ramp
    bed[-FADE:] *= ramp[::-1]
    return bed


def _made(seconds: int, tilt: float) -> Wave:
    """White (tilt 0) or pink (1) noise."""
    white = np.random.default_rng(int(tilt)).standard_normal(seconds * RATE)
    spectrum = np.fft.rfft(white)
    spectrum[1:] /= np.arange(1, len(spectrum)) ** (tilt / 2)
    made = np.fft.irfft(spectrum, len(white))
    noise: Wave = (made / made.std() * 0.1).astype(np.float32)
    return noise


def _wave(path: Path) -> Wave:
    """A recording at 16 kHz, mono."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    if rate == RATE and samples.shape[1] == 1:
        left: Wave = samples[:, 0]
        return left
    from appliance.capture.frames import Resampler

    parts = Resampler(rate).push(samples, last=True)
    return parts.astype(np.float32) / np.float32(32768)


def _samples(wave: Wave) -> Sound:
    return np.clip(np.rint(wave * 32767), -32768, 32767).astype(np.int16)
