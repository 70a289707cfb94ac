"""Measure echo cancellation with a reference: commands beside a television, and its own speech.

    scripts/measure reference [--commands 20] [--sentences 200]

People's commands ($ROOMSCRIBE_SHARED/data/audio) are spoken while a television, which reads without
a pause in a room (RT60 0.3 and 0.6 s, 3 m away), is so many dB below them. The reference is the
television's sound 120 ms before it is heard, by a clock that is 50 ppm off. Everything goes through
echo canceller, voice detector, segmenter, model and gates, as from the microphone, in one stream
for each line. The filter has 10 s of the television to learn from first.

words wrong   of the commands, by the texts published while they are spoken
end found     from the end of speech to the moment when the window is complete, 95th percentile;
              without early ends, which need the daemon
others        texts published at other times: the television's
reduction     by how much the television alone becomes softer, while it is loud

The television's own commands (tests/speech) are counted in the last lines: `texts` are published,
`held` are discarded with the reason `reference`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from evening_run.acoustics import Sound, in_room, in_turn, room
from evening_run.programme import Item, of_people, spoken
from figures.model import alike
from figures.pause_set import speech_power
from rigs.word_errors import word_error_rate

from appliance.capture.echo import EchoCanceller, ReferenceBuffer
from appliance.capture.frames import Framer
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import VoiceDetector
from appliance.config import Settings
from appliance.infer.gates import Gates
from appliance.infer.opening import open_transcriber
from appliance.records import SAMPLE_RATE, Discarded, Frame, Samples, Window
from appliance.system import resident_mb

LEARN_S, BETWEEN_S = 10.0, 3.0
DISTANCE_M, DELAY_S, DRIFT_PPM = 3.0, 0.12, 50.0
NOISE_RMS = 15.0
"""Of the room, -67 dBFS."""
LOUD = 1500.0
ROOMS_S = (0.3, 0.6)
RATIOS_DB = (10.0, 5.0, 0.0)
SPEAKERS = 12
STEP = 480


@dataclass
class Scene:
    """A stream of the microphone, and the reference that belongs to it."""

    sound: Samples
    reference: Samples | None
    items: list[tuple[Item, int]] = field(default_factory=list)
    """What people say, and the sample at which it begins."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=20)
    parser.add_argument("--sentences", type=int, default=200)
    options = parser.parse_args()
    people = of_people()
    commands = [one for one in people if one.group == "commands" and one.dated]
    readers = [one for one in people if one.group == "reading"][:SPEAKERS]
    if not readers:
        sys.exit("expected recordings of people in $ROOMSCRIBE_SHARED/data/audio, found none")
    run = Run(Settings())
    commands = commands[:: max(1, len(commands) // options.commands)][: options.commands]
    run.show("quiet", beside(commands, readers, None, 0.3))
    for ratio_db in RATIOS_DB:
        scene = beside(commands, readers, ratio_db, 0.3)
        run.show(f"television {ratio_db:g} dB below, no reference", without_reference(scene))
        for rt60_s in ROOMS_S:
            name = f"television {ratio_db:g} dB below, RT60 {rt60_s:g} s"
            run.show(name, beside(commands, readers, ratio_db, rt60_s))
    sentences = spoken()
    few = alone(sentences, min(options.sentences, 40), ROOMS_S[0])
    run.show("television's commands, no reference", without_reference(few))
    for rt60_s in ROOMS_S:
        scene = alone(sentences, options.sentences // len(ROOMS_S), rt60_s)
        run.show(f"television's commands, RT60 {rt60_s:g} s", scene)


def with_drift(sound: Sound, ppm: float) -> Sound:
    """Return the sound as a clock that is slower by so much counts it."""
    at = np.arange(int(len(sound) / (1 + ppm * 1e-6)) - 40) * (1 + ppm * 1e-6)
    first = at.astype(np.int64)
    result = np.zeros(len(at))
    for tap in range(-15, 17):
        offset = tap - (at - first)
        weight = np.sinc(offset) * np.cos(np.pi * offset / 34) ** 2
        result += sound[np.clip(first + tap, 0, len(sound) - 1)] * weight
    return result


def to_samples(sound: Sound) -> Samples:
    """(n,) float64 as int16."""
    return np.clip(np.rint(sound), -32768, 32767).astype(np.int16)


def heard_by_microphone(played: Sound, rt60_s: float) -> tuple[Sound, Sound]:
    """Return a sound of the television in the room, as loud as it was, and its reference."""
    echo = in_room(played, room(rt60_s, DISTANCE_M))
    echo *= np.sqrt(speech_power(played) / speech_power(echo))
    late = np.concatenate((np.zeros(int(DELAY_S * SAMPLE_RATE)), echo))[: len(played)]
    return late, with_drift(played, DRIFT_PPM)


def beside(
    commands: Sequence[Item], readers: Sequence[Item], ratio_db: float | None, rt60_s: float
) -> Scene:
    """Return the commands one after the other beside the television; None: without it."""
    at, places = int(LEARN_S * SAMPLE_RATE), []
    for one in commands:
        places.append((one, at))
        at += len(one.sound) + int(BETWEEN_S * SAMPLE_RATE)
    speech = np.zeros(at)
    for one, begin in places:
        voice = one.sound.astype(np.float64)
        level = np.sqrt(speech_power(voice[one.begin : one.end]))
        speech[begin : begin + len(voice)] += voice * (LOUD / level)
    noise = np.random.default_rng(1).normal(size=at) * NOISE_RMS
    if ratio_db is None:
        return Scene(to_samples(speech + noise), None, places)
    words = [one.sound[one.begin : one.end].astype(np.float64) for one in readers]
    programme = in_turn(words)
    played = np.resize(programme, at) * LOUD * 10 ** (-ratio_db / 20)
    echo, reference = heard_by_microphone(played, rt60_s)
    return Scene(to_samples(speech + echo + noise), to_samples(reference), places)


def alone(sentences: Sequence[Item], count: int, rt60_s: float) -> Scene:
    """Return so many sentences that the television says, with pauses."""
    chosen = [sentences[number % len(sentences)] for number in range(count)]
    words = [one.sound[one.begin : one.end].astype(np.float64) for one in chosen]
    played = in_turn(words, 1.5) * LOUD
    echo, reference = heard_by_microphone(played, rt60_s)
    noise = np.random.default_rng(1).normal(size=len(played)) * NOISE_RMS
    return Scene(to_samples(echo + noise), to_samples(reference))


def without_reference(scene: Scene) -> Scene:
    """Return the scene as an appliance without a reference has it."""
    return Scene(scene.sound, None, scene.items)


class Run:
    """The path from the microphone to the text."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._transcriber = open_transcriber(settings)
        self._gates = Gates(settings.gates)

    def show(self, name: str, scene: Scene) -> None:
        """Print one line."""
        before_mb = resident_mb()
        frames, cpu_ms, reduction = cancelled(scene)
        added_mb = resident_mb() - before_mb
        texts, held, other_reasons = [], 0, 0
        for window, complete_s in self._windows(frames):
            if isinstance(window, Discarded):
                held += window.reason == "reference"
                other_reasons += window.reason != "reference"
                continue
            result, reason = self._gates.apply(window, self._transcriber.transcribe(window))
            if result.text and not reason:
                texts.append((window, complete_s, result.text))
        figures = [f"words wrong {self._words_wrong(scene, texts):5.1f} %"] if scene.items else []
        late_s = list(ends_found(scene, texts))
        if late_s:
            figures.append(f"end found {np.percentile(late_s, 95):.2f} s ({len(late_s)})")
        others = [text for window, _, text in texts if not command_of(scene, window)]
        figures.append(f"{'others' if scene.items else 'texts'} {len(others)}")
        if scene.reference is not None:
            figures.append(f"held {held}, reduction {reduction:.0f} dB")
            figures.append(f"CPU {cpu_ms:.1f} ms/s, {added_mb:+.1f} MB")
        print(f"{name:42s} {'; '.join(figures)}", flush=True)
        for text in others[:5] if scene.reference is not None else ():
            print(f"    heard {text!r}")

    def _windows(self, frames: Sequence[Frame]) -> Iterator[tuple[Window | Discarded, float]]:
        settings = self._settings
        length_s = self._transcriber.bundle.window_s
        segmenter = Segmenter(VoiceDetector(settings.voice), settings.segmenter, length_s)
        for frame in frames:
            for one in segmenter.push(frame):
                yield one, frame.end_s
        for one in segmenter.flush():
            yield one, frames[-1].end_s

    def _words_wrong(self, scene: Scene, texts: Sequence[tuple[Window, float, str]]) -> float:
        said, heard = [], []
        for item, begin in scene.items:
            said.append(" ".join(alike(item.text)))
            found = [text for window, _, text in texts if command_of(scene, window) == begin]
            heard.append(" ".join(alike(" ".join(found))))
        return word_error_rate(said, heard)


def cancelled(scene: Scene) -> tuple[list[Frame], float, float]:
    """Return the frames that reach the detector, the CPU in ms per second of sound, and the
    reduction in dB."""
    framer = Framer()
    if scene.reference is None:
        return list(framer.push(scene.sound, 0.0)), 0.0, math.nan
    buffer = ReferenceBuffer()
    canceller = EchoCanceller(buffer)
    frames = list[Frame]()
    began_s = time.process_time()
    for at in range(0, min(len(scene.sound), len(scene.reference)), STEP):
        buffer.push(scene.reference[at : at + STEP], (at + STEP) / SAMPLE_RATE)
        for frame in framer.push(scene.sound[at : at + STEP], at / SAMPLE_RATE):
            frames += canceller.push(frame)
    cpu_ms = (time.process_time() - began_s) * 1000 / (len(scene.sound) / SAMPLE_RATE)
    return frames, cpu_ms, canceller.state.reduction_db or math.nan


def command_of(scene: Scene, window: Window) -> int | None:
    """Return where the command begins that is spoken in the window; None: none is."""
    for item, begin in scene.items:
        first, last = (begin + item.begin) / SAMPLE_RATE, (begin + item.end) / SAMPLE_RATE
        end_s = window.start_s + window.duration_s
        if min(end_s, last) - max(window.start_s, first) > 0.3 * (last - first):
            return begin
    return None


def ends_found(scene: Scene, texts: Sequence[tuple[Window, float, str]]) -> Iterator[float]:
    """Yield for each command with a text how long after its end its last window was complete."""
    for item, begin in scene.items:
        found = [
            complete_s for window, complete_s, _ in texts if command_of(scene, window) == begin
        ]
        if found:
            yield max(found) - (begin + item.end) / SAMPLE_RATE


if __name__ == "__main__":
    main()
