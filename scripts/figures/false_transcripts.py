"""Measure false transcripts per hour of sound without speech, through the appliance's own path.

    nice scripts/measure false_transcripts [--bundle tiny.en] [--recordings FOLDER] [--kept FILE]

All noise, music, chimes and silence of FOLDER/MANIFEST.tsv (default: $ROOMSCRIBE_SHARED/data/audio)
are played on end at several gains, beginning at several samples, with faint noise or none between
them, and mixed with each other: over an hour of sound made of few minutes, so a false transcript
tells of the recording that it came from, and their absence of little else. Each stream goes through
detector, segmenter, gates and model. With --kept the streams that are done are in that file, and a
run that was stopped goes on behind them.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from figures.model import NOT_SPEECH, Sound, cut, quiet, read, to_int16
from rigs.recordings import SHARED_AUDIO, manifest

from appliance.config import Settings
from appliance.infer.gates import Gates
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Transcriber
from appliance.records import SAMPLE_RATE, Discarded, Samples

GAINS_DB = (-20, -10, 0, 6)
OFFSETS = (0, 97, 211, 337)
"""Samples left out at the beginning: where Silero's windows fall decides what it says."""
PAUSE_S = 1.5


def streams(folder: Path) -> Iterator[tuple[str, Samples]]:
    """Name and sound of every stream."""
    sounds = {}
    for file, row in manifest(folder):
        if row["category"] in NOT_SPEECH:
            sounds[row["path"]] = read(file)
    rng = np.random.default_rng(7)
    for gain_db in GAINS_DB:
        for name, sound in sounds.items():
            parts: list[Sound] = [np.zeros(0, np.float32)]
            louder = np.asarray(sound * np.float32(10 ** (gain_db / 20)), np.float32)
            for offset in OFFSETS:
                parts += [quiet(rng, PAUSE_S), louder[offset:]]
            yield f"{name} at {gain_db} dB", to_int16(np.concatenate(parts))
    for one, other in combinations(sounds, 2):
        length = max(len(sounds[one]), len(sounds[other]))
        mixed = np.resize(sounds[one], length) + np.resize(sounds[other], length)
        yield f"{one} with {other}", to_int16(np.concatenate((quiet(rng, PAUSE_S), mixed)))
    for gain_db in GAINS_DB:
        without_pause = np.concatenate([np.tile(sound, 2) for sound in sounds.values()])
        yield (
            f"all on end at {gain_db} dB",
            to_int16(without_pause * np.float32(10 ** (gain_db / 20))),
        )


def measure(samples: Samples, settings: Settings, transcriber: Transcriber) -> dict[str, Any]:
    """Seconds of a stream, its windows, why they were discarded, and the texts that were not."""
    gates, reasons, texts, windows = Gates(transcriber.gates), Counter[str](), [], 0
    for one in cut(samples, settings, transcriber.bundle.window_s):
        if isinstance(one, Discarded):
            reasons[f"{one.reason} before decoding"] += 1
            continue
        windows += 1
        result, reason = gates.apply(one, transcriber.transcribe(one))
        if reason:
            reasons[reason] += 1
        else:
            texts.append([result.text, list(result.flags)])
    seconds = len(samples) / SAMPLE_RATE
    return {"seconds": seconds, "windows": windows, "discarded": dict(reasons), "texts": texts}


def main() -> None:
    """Print a line for each stream with a false transcript, and the sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", default="tiny.en")
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO)
    parser.add_argument("--kept", type=Path)
    options = parser.parse_args()
    settings = replace(Settings(), model=replace(Settings().model, bundle=options.bundle))
    kept: dict[str, dict[str, Any]] = {}
    if options.kept and options.kept.exists():
        lines = options.kept.read_text(encoding="utf-8").splitlines()
        kept = {one["name"]: one for one in map(json.loads, lines)}
    results = []
    with open_transcriber(settings) as transcriber:
        for name, samples in streams(options.recordings):
            if name not in kept:
                kept[name] = {"name": name, **measure(samples, settings, transcriber)}
                if options.kept:
                    with options.kept.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(kept[name]) + "\n")
            results.append(kept[name])
            for text, flags in kept[name]["texts"]:
                print(f"{name}: {text!r} {flags}", flush=True)
    show(results)


KINDS = {"with": "two at once, the shorter one without pause", "all on end": "all on end"}
ALONE = "each by itself"


def show(results: list[dict[str, Any]]) -> None:
    """Print the sums: of each kind of stream, and of all."""
    reasons: Counter[str] = Counter()
    for one in results:
        reasons.update(one["discarded"])
    windows = sum(one["windows"] for one in results)
    print(f"{len(results)} streams, {windows} windows, discarded {dict(reasons)}")
    kinds = [next((KINDS[word] for word in KINDS if word in one["name"]), ALONE) for one in results]
    for kind in (ALONE, *KINDS.values(), "together"):
        own = [r for r, of in zip(results, kinds, strict=True) if kind in (of, "together")]
        hours = sum(one["seconds"] for one in own) / 3600
        texts = [text for one in own for text in one["texts"]]
        plain = sum(not set(flags) - {"demo_model"} for _, flags in texts)
        print(
            f"{kind}: {hours:.2f} h, {len(texts)} false transcripts, {plain} of them unmarked, "
            f"{len(texts) / hours:.2f} an hour"
        )


if __name__ == "__main__":
    main()
