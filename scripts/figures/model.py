"""Measure a bundle's word errors through the appliance's own path: one table.

    scripts/measure model [--bundle tiny.en] [--recordings FOLDER]

Sentences are those of tests/speech. "windows" goes straight to the model, greedy, in zero-padded
windows; "pipeline" goes through voice detector, segmenter and gates as the microphone would. With
--recordings (default: $ROOMSCRIBE_SHARED/data/audio) noise, music and chimes of that folder's
MANIFEST.tsv are tried as well, and human speech is, for information.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from rigs.recordings import SHARED_AUDIO, manifest, sentences
from rigs.word_errors import word_error_rate, words

from appliance.capture.frames import Framer
from appliance.capture.segmenter import Segmenter
from appliance.capture.voice import VoiceDetector
from appliance.config import Settings
from appliance.infer.gates import judge
from appliance.infer.opening import open_transcriber
from appliance.infer.phrases import in_words
from appliance.infer.transcriber import Transcriber
from appliance.lab.recordings import listed_texts
from appliance.records import SAMPLE_RATE, Discarded, Samples, Transcription, Window

Sound = NDArray[np.float32]

PRE_ROLL_S, TAIL_S = 0.6, 0.3
OFFSETS_S = (0, 2, 4, 6, 8)
NOT_SPEECH = {"beep", "music", "noise", "silence"}
COMMANDS = {"speech-home-automation", "tts-home-automation"}
SEED = 7


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", default="tiny.en")
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO)
    options = parser.parse_args()
    settings = replace(Settings(), model=replace(Settings().model, bundle=options.bundle))
    test = Examination(settings)
    test.sentences()
    test.offsets()
    test.without_speech("synthetic silence and noise", synthetic_noises())
    if options.recordings.is_dir():
        test.recordings(options.recordings)


class Examination:
    """Prints a line for each test."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.transcriber: Transcriber = open_transcriber(settings)
        self.spoken = [one.text for one in sentences()]
        self.sounds = [read(one.file) for one in sentences()]

    def window(self, sound: Sound, lead_s: float) -> Transcription:
        """What the model makes of `sound` (n,) float32 behind `lead_s` of silence."""
        lead = np.zeros(int(lead_s * SAMPLE_RATE), np.float32)
        length = self.transcriber.bundle.window_s
        samples = to_int16(np.concatenate((lead, sound)))[: int(length * SAMPLE_RATE)]
        return self.transcriber.transcribe(Window("", 1, True, samples, 0.0, 0.0, 0.0))

    def pipeline(self, sound: Sound) -> Iterator[tuple[Transcription | None, str | None]]:
        """Transcriptions of `sound` with quiet before and after it; why each is discarded."""
        rng = np.random.default_rng(SEED)
        around = [quiet(rng, seconds) for seconds in (1, 2)]
        samples = to_int16(np.concatenate((around[0], sound, around[1])))
        for one in cut(samples, self.settings, self.transcriber.bundle.window_s):
            if isinstance(one, Discarded):
                yield None, one.reason
            else:
                result = self.transcriber.transcribe(one)
                yield result, judge(result, self.transcriber.gates, one.voiced_s)

    def kept(self, sound: Sound) -> str:
        """The text that the pipeline publishes for `sound`."""
        return " ".join(r.text for r, reason in self.pipeline(sound) if r and not reason)

    def sentences(self) -> None:
        """The test set: windows, windows in noise, pipeline."""
        rng = np.random.default_rng(SEED)
        tail = np.zeros(int(TAIL_S * SAMPLE_RATE), np.float32)
        plain = [np.concatenate((sound, tail)) for sound in self.sounds]
        self.line("windows", [self.window(sound, PRE_ROLL_S) for sound in plain])
        for snr_db in (15, 5):
            noisy = []
            for sound in plain:
                lead = np.zeros(int(PRE_ROLL_S * SAMPLE_RATE), np.float32)
                noisy.append(with_noise(rng, np.concatenate((lead, sound)), snr_db))
            self.line(f"windows, noise {snr_db} dB", [self.window(sound, 0) for sound in noisy])
        heard = [self.kept(sound) for sound in self.sounds]
        show("pipeline", f"WER {word_error_rate(self.spoken, heard):5.1f} %", self.right(heard))
        for spoken, text in zip(self.spoken, heard, strict=True):
            if words(spoken) != words(text):
                print(f"    said {spoken!r}, heard {text!r}")

    def offsets(self) -> None:
        """The same sentences starting anywhere in the window."""
        for lead_s in OFFSETS_S:
            fitting = [len(s) / SAMPLE_RATE + lead_s <= 10 for s in self.sounds]
            spoken = [t for t, fits in zip(self.spoken, fitting, strict=True) if fits]
            sounds = [s for s, fits in zip(self.sounds, fitting, strict=True) if fits]
            heard = [self.window(sound, lead_s).text for sound in sounds]
            rate = word_error_rate(spoken, heard)
            show(f"windows, speech at {lead_s} s", f"WER {rate:5.1f} %", f"{len(spoken)} sentences")

    def without_speech(self, name: str, sounds: list[tuple[str, Sound]]) -> None:
        """Share of the windows in which the pipeline publishes nothing, and what it published."""
        texts = [(label, self.kept(sound)) for label, sound in sounds]
        silent = sum(not text for _label, text in texts)
        show(f"pipeline, {name}", f"{silent} of {len(texts)} windows without text", "")
        for label, text in texts:
            if text:
                print(f"    {label}: heard {text!r}")

    def recordings(self, folder: Path) -> None:
        """Noise, music and chimes; and, for information, people."""
        people: dict[str, list[tuple[str, str]]] = {}
        noises = []
        for path, row in manifest(folder):
            if row["category"] in NOT_SPEECH:
                sound = read(path)
                size = 10 * SAMPLE_RATE
                pieces = range(0, max(1, len(sound) - SAMPLE_RATE), size)
                noises += [(f"{path.name} at {at // SAMPLE_RATE} s", sound[at : at + size])
                           for at in pieces]  # fmt: skip
            elif row["category"] in COMMANDS:
                set_name = row["path"].split("/")[0]
                text = self.kept(read(path))
                people.setdefault(set_name, []).append((row["transcript"], text))
        self.without_speech("recorded noise, music, chimes", noises)
        for name, pairs in people.items():
            rate = word_error_rate(
                *([" ".join(alike(text)) for text in side] for side in zip(*pairs, strict=True))
            )
            show(f"people, {name}", f"WER {rate:5.1f} %", f"{len(pairs)} recordings")

    def line(self, name: str, results: list[Transcription]) -> None:
        """Show the word error rate of the test set's sentences."""
        heard = [result.text for result in results]
        ended = sum(result.ended for result in results)
        rate = word_error_rate(self.spoken, heard)
        show(name, f"WER {rate:5.1f} %", f"{self.right(heard)}, end-of-text {ended}/{len(heard)}")

    def right(self, heard: list[str]) -> str:
        """How many sentences are right word for word."""
        right = sum(words(a) == words(b) for a, b in zip(self.spoken, heard, strict=True))
        return f"{right}/{len(heard)} sentences right"


def cut(samples: Samples, settings: Settings, window_s: float) -> list[Window | Discarded]:
    """What detector and segmenter make of a stream, (n,) int16 at 16 kHz."""
    segmenter = Segmenter(VoiceDetector(settings.voice), settings.segmenter, window_s)
    found = [one for frame in Framer().push(samples, 0.0) for one in segmenter.push(frame)]
    return [*found, *segmenter.flush()]


def show(name: str, figure: str, more: str) -> None:
    """Print one line of the table."""
    print(f"{name:45s} {figure:35s} {more}", flush=True)


def read(path: Path) -> Sound:
    """A recording as (n,) float32 at 16 kHz mono."""
    sound, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    mono = sound.mean(axis=1)
    if rate_hz != SAMPLE_RATE:
        mono = soxr.resample(mono, rate_hz, SAMPLE_RATE)
    return np.asarray(mono, np.float32)


def said_texts(folder: Path) -> dict[str, str]:
    """What is said in each recording of the folder's list; those that have only what was meant
    (SLOTS:) are left out. Exits where there is no list."""
    texts = listed_texts(folder)
    if texts is None:
        sys.exit(f"{folder}: expected MANIFEST.tsv or transcripts.tsv in it, found neither")
    return {name: text for name, text in texts.items() if not text.startswith("SLOTS:")}


def alike(text: str) -> list[str]:
    """The words of a text, as they are compared."""
    spelled = re.sub(r"\d{1,3}", lambda number: f" {in_words(int(number[0]))} ", text)
    return words(spelled.lower().replace("what's", "what is"))


def to_int16(sound: Sound) -> NDArray[np.int16]:
    """(n,) float32 in -1..1 as int16."""
    return np.clip(np.rint(sound * 32767), -32768, 32767).astype(np.int16)


def quiet(rng: np.random.Generator, seconds: float) -> Sound:
    """Room tone: white noise at -66 dBFS."""
    return (rng.standard_normal(int(seconds * SAMPLE_RATE)) * 5e-4).astype(np.float32)


def with_noise(rng: np.random.Generator, sound: Sound, snr_db: float) -> Sound:
    """`sound` in pink noise; the ratio is that of the mean powers."""
    noise = coloured(rng, len(sound), 1.0)
    gain = np.sqrt(np.mean(sound**2) / np.mean(noise**2)) * 10 ** (-snr_db / 20)
    return np.asarray(sound + gain * noise, np.float32)


def coloured(rng: np.random.Generator, length: int, slope: float) -> Sound:
    """Noise (length,) whose power falls with frequency to the power of `slope`, RMS 1."""
    spectrum = np.fft.rfft(rng.standard_normal(length))
    spectrum[1:] /= np.arange(1, len(spectrum)) ** (slope / 2)
    spectrum[0] = 0
    noise = np.fft.irfft(spectrum, length)
    return np.asarray(noise / np.sqrt(np.mean(noise**2)), np.float32)


def synthetic_noises() -> list[tuple[str, Sound]]:
    """Silence and noise of several colours and levels, 10 s each."""
    rng = np.random.default_rng(SEED)
    length = 10 * SAMPLE_RATE
    found: list[tuple[str, Sound]] = [("silence", np.zeros(length, np.float32))]
    for slope, name in ((0.0, "white"), (1.0, "pink"), (2.0, "brown")):
        for dbfs in (-60, -40, -30, -20):
            gain = np.float32(10 ** (dbfs / 20))
            noise = np.asarray(coloured(rng, length, slope) * gain, np.float32)
            found.append((f"{name} noise at {dbfs} dBFS", noise))
    hum = np.sin(2 * np.pi * 50 * np.arange(length) / SAMPLE_RATE).astype(np.float32) * 0.05
    return [*found, ("50 Hz hum", hum)]


if __name__ == "__main__":
    main()
