"""Measure what front ends gain in rooms with echo: high-pass, automatic gain, dereverberation.

    scripts/measure frontends [--sentences 40]
    scripts/measure frontends --each RT60 METRES    what becomes of each of people's commands

Speech has -27 dBFS at 1 m, in simulated rooms (RT60 0.3 and 0.6 s; 1, 3 and 5 m); the noise of the
room is pink, -67 dBFS. Each sentence goes through front end, voice detector, segmenter, model and
gates. The values of each front end are chosen on synthetic voices (tests/speech; RT60 0.6 s, 3 m)
by their words wrong, and reported on people's commands ($ROOMSCRIBE_SHARED/data/audio).

high-pass     Butterworth's amplitude of the second order, without its phase
gain          the loudest 30 ms, which fade by 60 dB in 12 s, get -20 dBFS, within so many dB
dereverberate weighted prediction error (Nakatani 2010) of each window before the model

words         words wrong, %
sentences     expected sentences found with a confidence of 70 % and more
no text       sentences without a text
ms/s          CPU time of the front end for a second of sound
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from evening_run.acoustics import Sound, in_room, room
from evening_run.programme import ROOMS, Item, of_people, spoken
from figures.model import alike, cut
from figures.pause_set import pink, speech_power
from figures.reference import LOUD, NOISE_RMS, to_samples
from numpy.typing import NDArray
from rigs.word_errors import word_error_rate

from appliance.config import Settings
from appliance.infer.gates import Gates
from appliance.infer.opening import open_transcriber
from appliance.records import SAMPLE_RATE, Window

LEAD_S, TAIL_S = 1.0, 1.5
SENTENCE_CONFIDENCE = 0.7
TUNED_IN = (0.6, 3.0)
SEED = 5

FRAME = 480
FADE_DB = 60 / 12 * FRAME / SAMPLE_RATE
"""By which the loudest sound is forgotten, per frame."""
TARGET_RMS = 3277.0
SIZE, HOP = 512, 128
"""Of the frames in which reverberation is predicted."""
ROUNDS = 3

FrontEnd = Callable[[Sound], Sound]


@dataclass(frozen=True)
class Treatment:
    """What is done to the sound before the detector, and to each window before the model."""

    name: str
    stream: FrontEnd | None = None
    window: FrontEnd | None = None


@dataclass
class Score:
    """What became of some sentences."""

    said: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    sentences: int = 0
    without_text: int = 0

    def add(self, text: str, heard: str, sentence: str) -> None:
        """Count a sentence with this text, which was heard so."""
        self.said.append(" ".join(alike(text)))
        self.heard.append(" ".join(alike(heard)))
        self.sentences += bool(sentence) and alike(sentence) == alike(text)
        self.without_text += not heard

    def join(self, other: Score) -> None:
        """Add another score."""
        self.said += other.said
        self.heard += other.heard
        self.sentences += other.sentences
        self.without_text += other.without_text

    @property
    def words_wrong(self) -> float:
        """Word errors, %."""
        return word_error_rate(self.said, self.heard)

    def __str__(self) -> str:
        return f"{self.words_wrong:5.1f} {self.sentences:3d} {self.without_text:3d}"


class Listener:
    """The path from the detector to the text."""

    def __init__(self) -> None:
        self._settings = Settings()
        self._transcriber = open_transcriber(self._settings)

    def windows(self, sound: Sound) -> list[Window]:
        """Return the windows of a stream, (n,) float64 in int16's scale."""
        length_s = self._transcriber.bundle.window_s
        found = cut(to_samples(sound), self._settings, length_s)
        return [one for one in found if isinstance(one, Window)]

    def explain(self, sound: Sound) -> Iterator[tuple[str, str, str, float]]:
        """Yield for each window, and each discarded sound: the reason without a text, the text,
        the likeliest expected sentence and its confidence."""
        gates = Gates(self._settings.gates)
        for window in cut(to_samples(sound), self._settings, self._transcriber.bundle.window_s):
            if not isinstance(window, Window):
                yield window.reason, "", "", 0.0
                continue
            result, reason = gates.apply(window, self._transcriber.transcribe(window))
            found = result.phrase
            sentence, confidence = (found.sentence, found.confidence) if found else ("", 0.0)
            yield reason or "", result.text, sentence, confidence

    def listen(self, windows: Iterable[Window]) -> tuple[str, str]:
        """Return the text of one sentence's windows, and the expected sentence."""
        texts, sentence, gates = [], "", Gates(self._settings.gates)
        for window in windows:
            result, reason = gates.apply(window, self._transcriber.transcribe(window))
            if reason or not result.text:
                continue
            texts.append(result.text)
            if result.phrase and result.phrase.confidence >= SENTENCE_CONFIDENCE:
                sentence = result.phrase.sentence
        return " ".join(texts), sentence


def main() -> None:
    """Choose the values, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=40)
    parser.add_argument("--each", type=float, nargs=2, metavar=("RT60", "METRES"))
    options = parser.parse_args()
    people = commands()
    listener = Listener()
    if options.each:
        show_each(listener, people, *options.each)
        return
    chosen = [Treatment("none")]
    voices = spoken()[: options.sentences]
    print(f"{len(voices)} synthetic sentences, RT60 {TUNED_IN[0]:g} s, {TUNED_IN[1]:g} m")
    for variants in CHOICES:
        wrong = {}
        for one in (*(chosen if len(chosen) == 1 else ()), *variants):
            score, cpu_ms = measure(listener, voices, one, *TUNED_IN)
            print(f"  {one.name:32s} {score}  {cpu_ms:5.1f} ms/s", flush=True)
            wrong[one.name] = score.words_wrong
        chosen.append(min(variants, key=lambda one: wrong[one.name]))
    print(f"\n{len(people)} of people's commands: words wrong %, sentences found, no text")
    rooms = " ".join(f"{f'{rt60_s:g} s {metres} m':>13}" for rt60_s, metres in ROOMS)
    print(f"{'':25} {rooms} {'all':>13}   ms/s")
    for one in chosen:
        report(listener, people, one)


def commands() -> list[Item]:
    """Return people's commands; exits without recordings."""
    found = [one for one in of_people() if one.group == "commands"]
    if not found:
        sys.exit("expected recordings of people in $ROOMSCRIBE_SHARED/data/audio, found none")
    return found


def show_each(listener: Listener, people: Sequence[Item], rt60_s: float, distance_m: float) -> None:
    """Print what becomes of each command, and count it."""
    counts: Counter[str] = Counter()
    for number, item in enumerate(people):
        lines = list(listener.explain(across(item, number, room(rt60_s, distance_m))))
        heard = " ".join(text for reason, text, _, _ in lines if text and not reason)
        counts["without a text" if not heard else "with a text"] += 1
        counts["text right"] += alike(heard) == alike(item.text)
        for reason, _, sentence, confidence in lines:
            counts[f"discarded: {reason}"] += bool(reason)
            sure = "from" if confidence >= SENTENCE_CONFIDENCE else "below"
            right = "right" if alike(sentence) == alike(item.text) else "wrong"
            counts[f"sentence {right}, {sure} 70 %"] += bool(sentence) and not reason
        print(f"{item.text!r}: {lines or 'not detected'}", flush=True)
    for name, count in sorted(counts.items()):
        if count:
            print(f"{count:3d} {name}")


def across(item: Item, number: int, response: Sound) -> Sound:
    """Return the sound of an item in a room with this response, and the room's noise."""
    sound = in_room(dry(item), response)
    sound += pink(np.random.default_rng(SEED + number), len(sound)) * NOISE_RMS
    return sound


def report(listener: Listener, people: Sequence[Item], treatment: Treatment) -> None:
    """Print a line of the table."""
    total, cells, times_ms = Score(), [], []
    for rt60_s, metres in ROOMS:
        score, cpu_ms = measure(listener, people, treatment, rt60_s, metres)
        cells.append(str(score))
        times_ms.append(cpu_ms)
        total.join(score)
    cost_ms = float(np.mean(times_ms))
    print(f"{treatment.name:25} {' '.join(cells)} {total} {cost_ms:6.1f}", flush=True)


def measure(
    listener: Listener,
    items: Sequence[Item],
    treatment: Treatment,
    rt60_s: float,
    distance_m: float,
) -> tuple[Score, float]:
    """Return what becomes of the sentences, and the CPU time of the front end, ms per second."""
    score, spent_s, length_s = Score(), 0.0, 0.0
    response = room(rt60_s, float(distance_m))
    for number, item in enumerate(items):
        sound = across(item, number, response)
        length_s += len(sound) / SAMPLE_RATE
        began_s = time.process_time()
        if treatment.stream:
            sound = treatment.stream(sound)
        spent_s += time.process_time() - began_s
        windows = listener.windows(sound)
        began_s = time.process_time()
        if treatment.window:
            windows = [treated(one, treatment.window) for one in windows]
        spent_s += time.process_time() - began_s
        score.add(item.text, *listener.listen(windows))
    return score, 1000 * spent_s / length_s


def dry(item: Item) -> Sound:
    """Return a sentence with silence around it, as loud as all others."""
    voice = item.sound.astype(np.float64)
    voice *= LOUD / np.sqrt(speech_power(voice[item.begin : item.end]))
    lead, tail = (np.zeros(int(seconds * SAMPLE_RATE)) for seconds in (LEAD_S, TAIL_S))
    return np.concatenate((lead, voice, tail))


def treated(window: Window, front_end: FrontEnd) -> Window:
    """Return the window with other samples."""
    return replace(window, samples=to_samples(front_end(window.samples.astype(np.float64))))


def high_pass(corner_hz: float, sound: Sound) -> Sound:
    """Return the sound without what is below the corner."""
    hz = np.fft.rfftfreq(len(sound), 1 / SAMPLE_RATE)
    passed = hz**2 / np.sqrt(hz**4 + corner_hz**4)
    return np.asarray(np.fft.irfft(np.fft.rfft(sound) * passed, len(sound)))


def automatic_gain(most_db: float, sound: Sound) -> Sound:
    """Return the sound with a level that follows its loudest part."""
    gains, loudest = [], TARGET_RMS
    for at in range(0, len(sound), FRAME):
        rms = float(np.sqrt(np.mean(sound[at : at + FRAME] ** 2)))
        loudest = max(rms, loudest * 10 ** (-FADE_DB / 20), 1.0)
        gains.append(min(TARGET_RMS / loudest, 10 ** (most_db / 20)))
    ends = np.arange(1, len(gains) + 1) * FRAME
    return np.asarray(sound * np.interp(np.arange(len(sound)), ends, gains))


def dereverberate(taps: int, delay: int, sound: Sound) -> Sound:
    """Return the sound without what can be predicted from what is `delay` and more frames of 8 ms
    older (weighted prediction error)."""
    heard = spectrum(sound)
    bins, times = heard.shape
    older = np.zeros((bins, taps, times), complex)
    for tap in range(taps):
        shift = delay + tap
        older[:, tap, shift:] = heard[:, : times - shift]
    clean = heard
    floor = 1e-6 * float(np.mean(np.abs(heard) ** 2))
    for _ in range(ROUNDS):
        weighted = older / np.maximum(np.abs(clean) ** 2, floor)[:, None]
        covariance = weighted @ older.conj().transpose(0, 2, 1)
        covariance += 1e-9 * np.trace(covariance, axis1=1, axis2=2)[:, None, None] * np.eye(taps)
        correlation = weighted @ heard.conj()[:, :, None]
        filters = np.linalg.solve(covariance, correlation)
        clean = heard - (filters.conj().transpose(0, 2, 1) @ older)[:, 0]
    return overlap_add(clean, len(sound))


def spectrum(sound: Sound) -> NDArray[np.complex128]:
    """Return the short-time spectrum, (bins, frames)."""
    around = np.pad(sound, (SIZE, SIZE + HOP))
    frames = np.lib.stride_tricks.sliding_window_view(around, SIZE)[::HOP]
    return np.asarray(np.fft.rfft(frames * WINDOW, axis=1).T)


def overlap_add(frames: NDArray[np.complex128], size: int) -> Sound:
    """Return the sound, (size,), of a spectrum."""
    parts = np.fft.irfft(frames.T, SIZE, axis=1) * WINDOW
    sound = np.zeros((len(parts) - 1) * HOP + SIZE)
    for number, part in enumerate(parts):
        sound[number * HOP : number * HOP + SIZE] += part
    return np.asarray(sound[SIZE : SIZE + size] * HOP / np.sum(WINDOW**2))


WINDOW = np.sin(np.pi * (np.arange(SIZE) + 0.5) / SIZE)
"""The root of Hann's window: used twice, its parts add up to a constant."""
CHOICES = (
    [
        Treatment(f"high-pass {hz} Hz", functools.partial(high_pass, float(hz)))
        for hz in (60, 100, 150, 200)
    ],
    [
        Treatment(f"gain up to {most_db} dB", functools.partial(automatic_gain, float(most_db)))
        for most_db in (10, 20, 30)
    ],
    [
        Treatment(
            f"dereverberate {taps} x 8 ms, delay {8 * delay} ms",
            window=functools.partial(dereverberate, taps, delay),
        )
        for taps, delay in ((10, 3), (20, 3), (20, 6), (40, 4))
    ],
)


if __name__ == "__main__":
    main()
