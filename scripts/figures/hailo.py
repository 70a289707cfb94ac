"""Measure the words wrong with the encoder on a chip: a table of models, windows and encoders.

    scripts/measure hailo [--base FOLDER] [--recordings FOLDER] [--write]

No Hailo is needed, and none is used: the simulator of the tests stands in. Its encoder computes in
float32: as it is, with 8 bits at its edges, and with a real chip's noise. --base: base's weights,
without which its rows are left out. --write puts the table into docs/figures.md.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evening_run.publish import put
from evening_run.results import about
from rigs.checkout import ROOT
from rigs.hailo import failover
from rigs.hailo_simulator.control import Simulator, enlist, with_hef
from rigs.recordings import SHARED_AUDIO
from rigs.weights import find_weights

from appliance.config import EncoderSettings, Settings
from appliance.convert.build import Recipe, build_bundle
from appliance.convert.checkpoint import load_checkpoint
from appliance.convert.whisper import write_encoder
from appliance.infer.opening import open_transcriber
from appliance.lab.benchmark.table import as_markdown
from appliance.lab.words import (
    ProductRecogniser,
    Recorded,
    WordCounts,
    count_words,
    read_recordings,
)
from appliance.model.bundle import SILENCE_FILE, Bundle, load_bundle

ENCODERS: dict[str, dict[str, Any]] = {
    "float32": {},
    "8-bit edges": {"round_int8": True},
    "15 dB, 16-bit steps": {"noise_db": 15.0},
    "CPU, INT8": {},
}
"""What encodes, and what makes the simulated chip so."""
WORDS = {
    ("base", 5.0, "zeros"): ("float32", "15 dB, 16-bit steps"),
    ("base", 5.0, "silence"): ("float32", "8-bit edges", "15 dB, 16-bit steps"),
    ("base", 10.0, "silence"): ("15 dB, 16-bit steps", "CPU, INT8"),
    ("tiny.en", 10.0, "zeros"): ("15 dB, 16-bit steps",),
    ("tiny.en", 10.0, "silence"): tuple(ENCODERS),
}
"""Weights, seconds of the window and what is behind it, and the encoders that are measured."""


def main() -> None:
    """Print, and with --write publish, the words wrong on the chip and on the processor."""
    parser = argparse.ArgumentParser("scripts/measure hailo", description=__doc__)
    parser.add_argument("--base", type=Path, metavar="FOLDER")
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO, metavar="FOLDER")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator(Path(folder) / "machine")
        simulator.enter()
        simulator.plug(latency_ms=0.0, patience=100, remember=False)
        words(simulator, options, Path(folder))
        simulator.leave()


def words(simulator: Simulator, options: argparse.Namespace, folder: Path) -> None:
    """Print the table, and publish it with --write."""
    recordings = read_recordings(options.recordings)
    weights = {"tiny.en": find_weights(), "base": options.base}
    rows = []
    for (name, window_s, behind), encoders in WORDS.items():
        if not (checkpoint := weights[name]):
            print(f"no weights of {name}: its rows are left out", flush=True)
            continue
        made = folder / f"{name}-{window_s:g}-{behind}"
        bundle = chip_bundle(checkpoint, name, window_s, behind, made)
        cells = dict.fromkeys(ENCODERS, "")
        for encoder in encoders:
            found = heard_words(simulator, bundle, encoder, recordings)
            cells[encoder] = f"{found.wer:.1f} ({found.discarded})"
            print(f"{name}, {window_s:g} s, {behind}, {encoder}: {cells[encoder]}", flush=True)
        rows.append([f"{name}, {window_s:g} s, {behind}", *cells.values()])
    counted = sum(len(one.text.split()) for one in recordings)
    seen = about(ROOT, load_bundle("tiny.en").folder)
    text = as_markdown(("model, window, behind it", *ENCODERS), rows)
    text += f"\n\nCommit {seen['commit']}: {len(recordings)} recordings, {counted} words."
    print(text)
    if options.write:
        put(text, "hailo")


def chip_bundle(checkpoint: Path, name: str, window_s: float, behind: str, folder: Path) -> Bundle:
    """A bundle with INT8, whose HEF is the encoder in float32."""
    plain = folder.with_name(f"{folder.name}-plain")
    build_bundle(checkpoint, plain, Recipe(name, window_s, quantize="int8"))
    bundle = with_hef(load_bundle(plain), folder, graph="float32.onnx")
    write_encoder(
        load_checkpoint(checkpoint), bundle.positions, folder / "float32.onnx", int8=False
    )
    if behind == "zeros":
        (folder / SILENCE_FILE).write_bytes(bytes((folder / SILENCE_FILE).stat().st_size))
        enlist(folder, folder / SILENCE_FILE)
    return load_bundle(folder)


def heard_words(
    simulator: Simulator, bundle: Bundle, encoder: str, recordings: Sequence[Recorded]
) -> WordCounts:
    """What is wrong of the recordings' words, through the microphone's windows and gates."""
    simulator.set(round_int8=False, noise_db=0.0)
    simulator.set(**ENCODERS[encoder])
    settings = replace(
        Settings(), model=replace(Settings().model, bundle=str(bundle.folder)),
        encoder=EncoderSettings(backend="cpu"),
    )  # fmt: skip
    with open_transcriber(settings) as transcriber:
        if encoder != "CPU, INT8":  # which takes its time as the chip
            transcriber.encoder = chip = failover(bundle, None)
            chip.open()
        recogniser = ProductRecogniser(transcriber)
        return count_words([recogniser.hear(one.samples) for one in recordings], recordings)


if __name__ == "__main__":
    main()
