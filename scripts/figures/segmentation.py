"""Measure what each number for start, end and cut of a sentence is worth, one line each.

    scripts/measure segmentation [NAME...]

A line has the number and how many windows differ in start, end or speech, and how many there are
more, with three quarters and four thirds of it. The sound is that of all recordings in
$ROOMSCRIBE_SHARED/data/audio, apart and mixed with noise. No text ends one early.
"""

import ast
import inspect
import sys
from collections.abc import Iterator

import numpy as np
from rigs.recordings import SHARED_AUDIO
from rigs.sounds import read, to_int16

from appliance.capture import (
    Framer,
    Segmenter,
    VoiceDetector,
    cuts,
    endpoint,
    segmenter,
    utterance,
    voice,
)
from appliance.capture.voice import Judgement
from appliance.config import SegmenterSettings, VoiceSettings
from appliance.lab.recordings import read_rows
from appliance.records import SAMPLE_RATE, Frame, Samples, Window

MODULES = (voice, endpoint, segmenter, utterance, cuts)
FACTORS = (3 / 4, 4 / 3)
NOISE = (0, 30, 100, 400)
"""RMS of the noise in a mix of recordings."""
Windows = set[tuple[int, int, float, float, float]]


class Played(VoiceDetector):
    """Gives the judgements of another detector."""

    def __init__(self, judged: list[Judgement]) -> None:
        self._judged = iter(judged)

    def push(self, frame: Frame) -> Judgement:
        """Return the judgement of the next frame."""
        return next(self._judged)

    def reset(self) -> None:
        """Forget nothing."""


def noise(rng: np.random.Generator, seconds: float, rms: float) -> Samples:
    """Return white noise."""
    return np.rint(rng.normal(size=int(seconds * SAMPLE_RATE)) * rms).astype(np.int16)


def streams() -> Iterator[list[Frame]]:
    """Yield each recording between noise, then mixes of 25 of them."""
    rng = np.random.default_rng(0)
    rows = read_rows(SHARED_AUDIO / "MANIFEST.tsv")
    sounds = [to_int16(read(SHARED_AUDIO / row["path"]))[: 20 * SAMPLE_RATE] for row in rows]
    mixes = [[noise(rng, 3.5, 3), sound, noise(rng, 1.5, 3)] for sound in sounds]
    for _ in NOISE:
        chosen = (sounds[number] for number in rng.choice(len(sounds), 25, replace=False))
        pauses = (noise(rng, float(rng.choice([0.3, 0.5, 0.8, 2.0])), 10) for _ in range(25))
        mixes.append([part for pair in zip(chosen, pauses, strict=True) for part in pair])
    for mix, rms in zip(mixes, (*[0] * len(sounds), *NOISE), strict=True):
        sound = np.concatenate(mix).astype(np.int32)
        sound += noise(rng, len(sound) / SAMPLE_RATE + 1, rms)[: len(sound)]
        yield list(Framer().push(np.clip(sound, -32768, 32767).astype(np.int16), 0.0))


def detect(sounds: list[list[Frame]]) -> list[list[Judgement]]:
    """Return the detector's judgement of each frame."""
    detectors = [VoiceDetector(VoiceSettings()) for _ in sounds]
    pairs = zip(detectors, sounds, strict=True)
    return [[detector.push(frame) for frame in frames] for detector, frames in pairs]


def cut(sounds: list[list[Frame]], judged: list[list[Judgement]]) -> Windows:
    """Return stream, index, start, end and end of speech of each window."""
    found: Windows = set()
    for number, (frames, judgements) in enumerate(zip(sounds, judged, strict=True)):
        room = Segmenter(Played(judgements), SegmenterSettings(), 10.0)
        results = [one for frame in frames for one in room.push(frame)]
        found |= {
            (number, one.index, one.start_s, one.duration_s, one.speech_end_s)
            for one in (*results, *room.flush())
            if isinstance(one, Window)
        }
    return found


def numbers() -> Iterator[tuple[str, float]]:
    """Yield name and value of each number that is written in one of MODULES."""
    for module in MODULES:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.Tuple):
                for name in ast.unparse(node.targets[0]).strip("()").split(", "):
                    yield name, getattr(module, name)


def main() -> None:
    """Print the table."""
    sounds = list(streams())
    judged = detect(sounds)
    usual = cut(sounds, judged)
    print(f"{len(usual)} windows")
    for name, value in numbers():
        if name not in (sys.argv[1:] or [name]):
            continue
        holders = [module for module in MODULES if hasattr(module, name)]
        line = f"{name:18}{value:7g}"
        for factor in FACTORS:
            changed = round(value * factor) if isinstance(value, int) else value * factor
            for module in holders:
                setattr(module, name, changed)
            found = cut(sounds, detect(sounds) if voice in holders else judged)
            line += f"  x{factor:.2f}: {len(found - usual):4}, {len(found) - len(usual):+3}"
        for module in holders:
            setattr(module, name, value)
        print(line, flush=True)


if __name__ == "__main__":
    main()
