"""Measure short windows on the CPU: whether texts stay the same, the encoder's time and memory.

    scripts/measure short_windows [--bundle tiny.en] [--shape tiny] [--recordings FOLDER]

The texts are compared in the same way as `roomscribe model fit` does: windows are cut as the
microphone's path cuts them, and the bundle's second pass counts. The package's sentences decide;
those of tests/speech and, with --recordings (default: $ROOMSCRIBE_SHARED/data/audio), the speech,
noise and music of that folder's MANIFEST.tsv are for information. Clips of more than SHORTEN_S are
cut there, because a window that is full is not short; speech that does not become one window is
left out.

Time is the CPU time of the encoder for one window with so many seconds of speech; memory is the
process's with the encoder loaded and used, with whole windows and with short ones. With --shape
(tiny, base), a model of that shape with random weights is measured: it has times and no texts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from figures.model import NOT_SPEECH, Sound, read, to_int16
from rigs.recordings import SHARED_AUDIO, manifest, sentences

from appliance.infer.encoder import CpuEncoder
from appliance.infer.mel import window_mel
from appliance.lab.benchmark.subject import make_subject
from appliance.lab.fit.speech import PLAIN, only_window, shipped_clips
from appliance.lab.short_windows import measure_short_windows, noise_window
from appliance.model import Bundle, load_bundle
from appliance.records import SAMPLE_RATE
from appliance.system import resident_mb

SHORTEN_S = 6.0
DECIDES = "the package's (they decide)"
LENGTHS_S = (2.0, 3.0, 5.0)
ROUNDS = 9


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", default="tiny.en")
    parser.add_argument("--shape", choices=("tiny", "base"), default="")
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO)
    parser.add_argument("--encode", choices=("whole", "short"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.encode:
        time_encoder(load_bundle(options.bundle), short=options.encode == "short")
        return
    if not options.shape:
        print_texts(load_bundle(options.bundle), options.recordings)
        print_times(options.bundle)
        return
    with tempfile.TemporaryDirectory() as scratch:
        print_times(str(make_subject(options.shape, None, 10.0, Path(scratch)).bundle.folder))


def clips(recordings: Path) -> dict[str, list[tuple[str, Sound]]]:
    """Clips of at most SHORTEN_S by their category; those of DECIDES decide."""
    found = defaultdict(list)
    files = [(clip.file, DECIDES) for clip in shipped_clips()]
    files += [(sentence.file, "tests/speech") for sentence in sentences()]
    if recordings.is_dir():
        files += [(file, row["category"]) for file, row in manifest(recordings)]
    for file, category in files:
        found[category].append((file.name, read(file)[: int(SHORTEN_S * SAMPLE_RATE)]))
    return found


def print_texts(bundle: Bundle, recordings: Path) -> None:
    """Print a line for each category."""
    print(f"{'clips':30}{'windows':>8}{'same text':>11}{'worse gate':>12}{'encoder':>9}")
    for category, sounds in clips(recordings).items():
        if category in NOT_SPEECH:
            noises = [noise_window(to_int16(sound), bundle) for _, sound in sounds]
            found, same = measure_short_windows(bundle, [], noises), "-"
        else:
            cut = [only_window(sound, PLAIN, name, bundle.window_s) for name, sound in sounds]
            found = measure_short_windows(bundle, [window for window in cut if window])
            same = str(found.same_text)
        share = found.encode_ms[1] / (found.encode_ms[0] or 1)
        number = found.speech + found.sounds
        print(f"{category:30}{number:8}{same:>11}{found.changed_gates:12}{share:9.2f}", flush=True)


def print_times(bundle: str) -> None:
    """Print the encoder's time and memory, each from a process of its own."""
    print(f"\nCPU time of the encoder, ms; {' '.join(f'{each:8g} s' for each in LENGTHS_S)}")
    for way in ("whole", "short"):
        words = [sys.executable, "-m", "figures.short_windows", "--bundle", bundle, "--encode", way]
        print(subprocess.run(words, capture_output=True, text=True, check=True).stdout, end="")


def time_encoder(bundle: Bundle, *, short: bool) -> None:
    """Print a line with times and memory."""
    bundle = replace(bundle, short_windows=short)
    before = resident_mb()
    encoder = CpuEncoder(bundle, threads=1)
    rng = np.random.default_rng(7)
    best = []
    for length_s in (*LENGTHS_S, bundle.window_s):
        samples = rng.normal(0, 3000, int(length_s * SAMPLE_RATE)).astype(np.int16)
        mel = window_mel(samples, bundle.n_mels, bundle.frames)
        spent_s = []
        for _ in range(ROUNDS):
            begun_s = time.process_time()
            encoder.encode(mel)
            spent_s.append(time.process_time() - begun_s)
        best.append(1000 * min(spent_s))
    used_mb = resident_mb() - before
    name = "short windows" if short else "whole windows"
    print(f"{name:28} {' '.join(f'{each:10.1f}' for each in best)}; {used_mb:.1f} MB")


if __name__ == "__main__":
    main()
