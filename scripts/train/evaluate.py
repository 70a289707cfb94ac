"""Evaluate a trained network: one table of word error rates and of text without speech.

Greedy decoding in 10 s windows of the held-out shards, as at run time: 600 ms of
pre-roll, zeros behind the clip. Background sounds and rooms come from seeds unlike training's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rigs.word_errors import word_error_rate, words
from scipy import signal
from train.checkpoint import load_model
from train.features import FILTER_DELAY, HOP, PRE_ROLL_S, decibels, level
from train.network import Whisper
from train.plans import WINDOW_FRAMES
from train.scoring import transcribe, window_of
from train.shards import SAMPLE_RATE, Bank
from train.sounds import Sound, make_channels, make_sounds
from train.wordpieces import Wordpieces

SPLITS = {
    "homeseen": "home, seen voices",
    "homeunseen": "home, unseen voices",
    "dev": "all, seen voices",
    "unseen": "all, unseen voices",
}
"""Kinds of the bank's shards, and what the table calls them; the harder tests are of the first."""
SEED = 90_001
FAR_M = (3.0, 5.0)
TAIL_S = 0.4
OFFSETS_S = (0.0, 2.0, 4.0, 6.0, 8.0)
OFFSET_SPEECH_S = 1.9
"""Longest utterance in the offset test: it has to fit behind 8 s."""


def spoken(bank: Bank, count: int, longest_s: float = 9.0) -> tuple[list[str], list[Sound]]:
    """Texts and sounds of up to `count` utterances, spread over the bank."""
    fitting = np.flatnonzero(bank.durations <= longest_s)
    chosen = fitting[np.linspace(0, len(fitting) - 1, min(count, len(fitting))).astype(int)]
    sounds = [bank.utterance(int(i)).audio.astype(np.float32) / np.float32(32768) for i in chosen]
    return [bank.text(int(i)) for i in chosen], sounds


def with_noise(
    rng: np.random.Generator, sound: Sound, noises: NDArray[np.int16], snr_db: float
) -> Sound:
    """A 10 s window with background from its start until shortly after speech."""
    window = window_of(sound, PRE_ROLL_S)
    end = min(len(window), int((PRE_ROLL_S + TAIL_S) * SAMPLE_RATE) + len(sound))
    noise = noises[int(rng.integers(len(noises)))][:end].astype(np.float32) / 32768
    window[:end] += noise * (level(sound) / level(noise) * decibels(-snr_db))
    return window


def in_room(rng: np.random.Generator, sound: Sound, rooms: Sequence[Sound]) -> Sound:
    """A 10 s window of `sound` in a random room."""
    response = rooms[int(rng.integers(len(rooms) // 2)) * 2 + 1]
    window = signal.oaconvolve(window_of(sound, PRE_ROLL_S), response)
    window = window[FILTER_DELAY : FILTER_DELAY + WINDOW_FRAMES * HOP]
    window[int((PRE_ROLL_S + TAIL_S) * SAMPLE_RATE) + len(sound) :] = 0
    heard: Sound = window.astype(np.float32)
    return heard


def files_in(folder: Path) -> list[tuple[str, Sound]]:
    """10 s windows of every recording under `folder`, cut one after the other, with their names."""
    import soundfile
    import soxr

    windows = []
    for path in sorted(p for p in folder.rglob("*") if p.suffix in {".wav", ".flac", ".ogg"}):
        audio, rate = soundfile.read(path, dtype="float32", always_2d=True)
        mono = soxr.resample(audio.mean(axis=1), rate, SAMPLE_RATE)[: 60 * SAMPLE_RATE]
        for at in range(0, max(1, len(mono) - SAMPLE_RATE), WINDOW_FRAMES * HOP):
            part = mono[at : at + WINDOW_FRAMES * HOP].astype(np.float32)
            windows.append((f"{path.name} at {at // SAMPLE_RATE} s", window_of(part, 0.0)))
    return windows


class Examination:
    """Runs the tests on one network and gathers the lines of the table."""

    def __init__(self, model: Whisper, pieces: Wordpieces) -> None:
        self.model = model
        self.pieces = pieces
        self.results: dict[str, float] = {}
        self.examples: list[str] = []

    def words_of(self, name: str, texts: list[str], audio: list[Sound]) -> None:
        """WER of windows, the share that is right word for word, and the share that ended."""
        if not texts:
            return
        heard, ended = transcribe(self.model, self.pieces, audio)
        self.results[f"{name}: WER %"] = word_error_rate(texts, heard)
        right = [words(a) == words(b) for a, b in zip(texts, heard, strict=True)]
        self.results[f"{name}: sentences right %"] = 100 * float(np.mean(right))
        self.results[f"{name}: ended %"] = 100 * float(np.mean(ended))
        self.examples += [
            f"{name}: {texts[i]!r} heard {heard[i]!r}" for i in range(min(3, len(texts)))
        ]

    def silence_of(self, name: str, audio: list[Sound], labels: Sequence[str] = ()) -> None:
        """The share of windows without speech that give no text."""
        if not audio:
            return
        heard, _ = transcribe(self.model, self.pieces, audio)
        self.results[f"{name}: no text %"] = 100 * float(np.mean([not words(t) for t in heard]))
        for i, text in enumerate(heard):
            if words(text) and labels:
                self.examples.append(f"{name}: {labels[i]} heard {text!r}")


def examine(test: Examination, bank: Path, count: int, noise_folder: Path | None) -> None:
    """All tests, with `count` utterances each."""
    rng = np.random.default_rng(SEED)
    noises = make_sounds(SEED, 80, 10.0)
    rooms = make_channels(SEED, 80)
    splits = {name: Bank(bank, name) for name in SPLITS}
    for name, split in splits.items():
        split.join(split.on_disk())
        said, clips = spoken(split, count)
        test.words_of(SPLITS[name], said, [window_of(clip, PRE_ROLL_S) for clip in clips])
    texts, sounds = spoken(splits["homeseen"], count)
    for snr_db in (15.0, 5.0):
        noisy = [with_noise(rng, s, noises, snr_db) for s in sounds]
        test.words_of(f"noise {snr_db:.0f} dB", texts, noisy)
    test.words_of("reverberation", texts, [in_room(rng, s, rooms) for s in sounds])
    far = make_channels(SEED + 1, 80, FAR_M)
    test.words_of("3 to 5 m away", texts, [in_room(rng, s, far) for s in sounds])
    short_texts, short = spoken(splits["homeseen"], count, OFFSET_SPEECH_S)
    for offset_s in OFFSETS_S:
        moved = [window_of(s, offset_s) for s in short]
        test.words_of(f"speech at {offset_s:.0f} s", short_texts, moved)
    test.silence_of("digital silence", [np.zeros(WINDOW_FRAMES * HOP, np.float32)])
    quiet = [noise[: WINDOW_FRAMES * HOP].astype(np.float32) / 32768 for noise in noises]
    test.silence_of("synthetic noise and music", quiet)
    test.silence_of("the same, 30 dB down", [sound * decibels(-30) for sound in quiet])
    test.silence_of("the same, 3 to 5 m away", [in_room(rng, sound, far) for sound in quiet])
    if noise_folder:
        recorded = files_in(noise_folder)
        test.silence_of("recordings", [s for _, s in recorded], [name for name, _ in recorded])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="train.train's --out")
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--noise-folder", type=Path, help="recordings without speech")
    parser.add_argument("--json", type=Path, help="write the numbers here as well")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(args.run / "last.pt")
    test = Examination(model, Wordpieces(args.run / "pieces"))
    examine(test, args.bank, args.count, args.noise_folder)
    for name, value in test.results.items():
        print(f"{name:45s} {value:6.1f}")
    print("\n".join(test.examples))
    if args.json:
        args.json.write_text(json.dumps(test.results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
