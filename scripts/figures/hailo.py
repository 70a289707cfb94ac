"""Measure what NPU faults do to a stream of speech, and what the backend costs: one table.

    scripts/measure hailo [--windows 300] [--faults 100] [--bundle tiny.en]
        [--only deaf|words] [--base FOLDER] [--recordings FOLDER] [--write]

No Hailo is needed, and none is used: the simulator of the tests stands in, with the 31 ms that a
Hailo-8 is said to take. The sentences are those of tests/speech at other places and volumes. Time
between the windows passes on a clock of its own, in which the encoder is looked after each second;
what is given in ms is real time.

A chip that hangs and takes no notice of being given up (`--only deaf`) is tried with the running
pipeline, in real time: a sentence every few seconds, while such a chip is closed and tried again.

Wrong words of people's recordings are those of encoders in float32 as the chip: as they are, with
8 bits at its edges, and with a real chip's noise (`--only words`; --write puts the table into
docs/figures.md). --base: base's weights, without which its rows are left out.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from evening_run.publish import put
from evening_run.results import about
from rigs.checkout import ROOT
from rigs.hailo import failover, looked_after
from rigs.hailo_simulator.control import Simulator, enlist, with_hef
from rigs.recordings import SHARED_AUDIO, sentences
from rigs.sources import FakeSource
from rigs.weights import find_weights
from rigs.windows import NO_FOLDER

from appliance.config import (
    CaptureSettings,
    EncoderSettings,
    Settings,
    SpoolSettings,
    StoreSettings,
)
from appliance.convert.build import Recipe, build_bundle
from appliance.convert.checkpoint import load_checkpoint
from appliance.convert.whisper import write_encoder
from appliance.daemon.assembly import Factories, build
from appliance.daemon.pipeline import Pipeline
from appliance.infer.encoder import CpuEncoder, Encoder
from appliance.infer.hailo.client import NpuProcess
from appliance.infer.hailo.npu import Npu, open_npu
from appliance.infer.hailo.shared import LIMITS, make_order
from appliance.infer.opening import open_transcriber
from appliance.infer.request import Request
from appliance.infer.transcriber import Transcriber
from appliance.lab.words import (
    ProductRecogniser,
    Recorded,
    WordCounts,
    count_words,
    read_recordings,
)
from appliance.model.bundle import SILENCE_FILE, Bundle, load_bundle
from appliance.records import SAMPLE_RATE, Frame, Mel, States, Window
from appliance.store.store import Store
from appliance.system import write_whole

SEED = 11
LATENCY_MS = 31.0
BETWEEN_S = 90.0
"""Mean silence between windows, on the stream's own clock."""
FAULTS: dict[str, dict[str, Any]] = {
    "job fails (status 8)": {"fail_jobs": "all", "fail_status": 8},
    "job times out (4)": {"fail_jobs": "all", "fail_status": 4},
    "job is given up (63)": {"fail_jobs": "all", "fail_status": 63},
    "queue full (82)": {"fail_jobs": "all", "fail_status": 82},
    "driver timeout (87)": {"fail_jobs": "all", "fail_status": 87},
    "chip hangs": {"hang_jobs": "all"},
    "output is not a number": {"nan_jobs": "all"},
    "chip dies": {"dead": True},
    "chip is pulled out": {},
    "chip is taken by another": {"fail_jobs": "all", "fail_status": 63, "busy": True},
}
HEALTHY = {
    "fail_jobs": [],
    "hang_jobs": [],
    "nan_jobs": [],
    "dead": False,
    "busy": False,
}
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
MARKS = "<!-- hailo: written by scripts/measure hailo --write -->", "<!-- /hailo -->"


def open_for(bundle: Bundle, backend: str = "hailo") -> Transcriber:
    """The transcriber of a bundle, encoding on the chip unless `backend` is cpu."""
    settings = replace(
        Settings(), model=replace(Settings().model, bundle=str(bundle.folder)),
        encoder=EncoderSettings(backend=backend),
    )  # fmt: skip
    return open_transcriber(settings)


def make_windows(bundle: Bundle, count: int) -> list[Window]:
    """Sentences, each window another one or at another place and volume."""
    rng = np.random.Generator(np.random.PCG64(SEED))
    sounds = [soundfile.read(one.file, dtype="int16")[0] for one in sentences()]
    windows = []
    for number in range(count):
        sound = sounds[number % len(sounds)]
        before = int(rng.integers(0, SAMPLE_RATE))
        sound = (np.pad(sound, (before, 4000)) * rng.uniform(0.3, 1.0)).astype(np.int16)
        sound = sound[: round(bundle.window_s * SAMPLE_RATE)]
        windows.append(Window(f"{number:04}", 1, True, sound, 0.0, 0.0, 0.0))
    return windows


def spread(values: list[float]) -> str:
    """Half of the values, 95 of 100, the largest."""
    if not values:
        return "none"
    p50, p95 = np.percentile(values, [50, 95])
    return f"p50 {p50:.2f}, p95 {p95:.2f}, most {max(values):.2f}"


def row(name: str, value: str) -> None:
    """Print a line of the table."""
    print(f"{name:52} {value}", flush=True)


class Timed:
    """An encoder, and how long its calls take."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.encodes: list[tuple[float, float, str]] = []
        """Begin on time.monotonic(), seconds, and what encoded."""
        self.looks_s: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(self, mel: Mel) -> States:
        """The encoder's."""
        begun_s = time.monotonic()
        states = self._encoder.encode(mel)
        self.encodes.append((begun_s, time.monotonic() - begun_s, self._encoder.name))
        return states

    def poll(self, now_s: float) -> None:
        """The encoder's."""
        begun_s = time.monotonic()
        self._encoder.poll(now_s)
        self.looks_s.append(time.monotonic() - begun_s)


def spoken(strike: dict[int, dict[str, Any]], simulator: Simulator, count: int) -> Iterator[Frame]:
    """Sentences in real time, 1.5 s apart; before those in `strike` the chip is set."""
    sounds = [soundfile.read(one.file, dtype="int16")[0] for one in sentences()]
    quiet = np.random.Generator(np.random.PCG64(SEED)).normal(0, 20, 24000).astype(np.int16)
    next_s = time.monotonic()
    for number in range(count):
        simulator.set(**strike.get(number, {}))
        sound = np.concatenate([sounds[number % len(sounds)], quiet])
        for at in range(0, len(sound) - 480, 480):
            next_s += 0.03
            time.sleep(max(0.0, next_s - time.monotonic()))
            yield Frame(sound[at : at + 480], next_s)


def deaf(simulator: Simulator, bundle: Bundle, folder: Path) -> None:
    """Sentences while a chip hangs for 40 s, whatever it is told, and after."""
    base = Settings()
    settings = replace(
        base, model=replace(base.model, bundle=str(bundle.folder)),
        mqtt=replace(base.mqtt, enabled=False), spool=SpoolSettings(path=NO_FOLDER),
        store=StoreSettings(path=str(folder / "log")), capture=CaptureSettings(recording="script"),
        encoder=EncoderSettings(backend="auto", threads=2),
    )  # fmt: skip
    timed: list[Timed] = []

    def opened(settings: Settings, _is_muted: object) -> Transcriber:
        transcriber = open_transcriber(settings)
        timed.append(Timed(transcriber.encoder))
        transcriber.encoder = timed[0]
        return transcriber

    hangs = {"hang_jobs": "all", "hang_s": 1000.0, "ignore_abort": True}
    strikes = {4: hangs, 14: {"hang_jobs": [], "ignore_abort": False}, 23: hangs}
    source = FakeSource(spoken(strikes, simulator, 24))
    pipeline = Pipeline(build(settings, Factories(source=lambda *_: source, transcriber=opened)))
    seen: list[tuple[float, str, str, int]] = []
    pipeline.start()
    while not pipeline.ended.wait(0.02):
        state = pipeline.state()
        seen.append((time.monotonic(), state.status, state.encoder, threading.active_count()))
    begun_s = time.monotonic()
    pipeline.stop()
    stop_s = time.monotonic() - begun_s
    simulator.set(hang_jobs=[], ignore_abort=False)
    with Store.open(settings.store) as store:
        latencies = [one.transcript.latency_ms / 1000 for one in store.query(limit=100)]
    struck_s = next(begun for begun, _, name in timed[0].encodes[1:] if name == "cpu")
    told_s = next(at_s for at_s, status, _, _ in seen if status == "degraded")
    back_s = next(at_s for at_s, _, name, _ in seen if at_s > told_s and name != "cpu")
    row("a chip that hangs and cannot be given up: windows", str(len(latencies)))
    row("from the end of speech to the transcript", f"{spread(latencies)} s")
    row("from the first hanging job to `state`", f"{told_s - struck_s:.2f} s")
    row("poll", f"{spread(timed[0].looks_s)} s")
    most = max(count for *_, count in seen)
    row("threads, and most of them while it hangs", f"{seen[len(seen) // 24][3]}, {most}")
    row("the chip (well after 10 sentences) in use again after", f"{back_s - struck_s:.1f} s")
    row("stop, with a hanging chip", f"{stop_s:.2f} s")


class Clock:
    """The stream's own seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now_s


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=300)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--bundle", default="tiny.en")
    parser.add_argument("--only", choices=("deaf", "words"))
    parser.add_argument("--base", type=Path, metavar="FOLDER")
    parser.add_argument("--recordings", type=Path, default=SHARED_AUDIO, metavar="FOLDER")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator(Path(folder) / "machine")
        simulator.enter()
        simulator.plug(latency_ms=LATENCY_MS)
        if not options.only:
            faults(simulator, options, Path(folder))
        if options.only in {None, "deaf"}:
            bundle = with_hef(load_bundle(options.bundle), Path(folder) / "deaf")
            deaf(simulator, bundle, Path(folder))
        if options.only in {None, "words"}:
            words(simulator, options, Path(folder))
        simulator.leave()


def faults(simulator: Simulator, options: argparse.Namespace, folder: Path) -> None:
    """What faults do, and what the backend costs."""
    bundle = with_hef(load_bundle(options.bundle), folder / "bundle")
    windows = make_windows(bundle, options.windows)
    transcriber = open_for(bundle)
    wanted = undisturbed(transcriber, windows)
    transcriber.encoder.close()
    Disturbed(simulator, bundle, transcriber, windows, wanted).run(options.faults)
    overhead(simulator, bundle)


def undisturbed(transcriber: Transcriber, windows: list[Window]) -> list[str]:
    """The texts without a fault."""
    texts = []
    for window in windows:
        transcription = transcriber.transcribe(window)
        assert transcription.encoder == "hailo8"
        texts.append(transcription.text)
    return texts


class Disturbed:
    """The same stream, with faults at random places."""

    def __init__(
        self, simulator: Simulator, bundle: Bundle, transcriber: Transcriber,
        windows: list[Window], wanted: list[str],
    ) -> None:  # fmt: skip
        self.simulator, self.transcriber, self.clock = simulator, transcriber, Clock()
        self.windows, self.wanted = windows, wanted
        self.encoder = failover(bundle, CpuEncoder(bundle, 2), self.clock, LIMITS)
        self.rng = np.random.Generator(np.random.PCG64(SEED + 1))
        self.late_ms: dict[str, list[float]] = {kind: [] for kind in FAULTS}
        self.back_s: dict[bool, list[float]] = {True: [], False: []}
        """Of a chip that was pulled out, and of others."""
        self.open_ms: list[float] = []
        self.kind, self.was = "", ""
        """The fault of this window, and what encoded before it."""
        self.returned_s, self.was_absent = 0.0, False

    def run(self, faults: int) -> None:
        """Transcribe the stream and print the result."""
        self.encoder.open()
        self.transcriber.encoder = self.encoder
        places = set(map(int, self.rng.choice(len(self.windows), faults, replace=False)))
        heard: list[tuple[str, str]] = []
        used: Counter[str] = Counter()
        for number, window in enumerate(self.windows):
            if number in places:
                self.strike()
            transcription = self.transcribe(window)
            heard.append((window.utterance_id, transcription))
            used[self.encoder.name] += 1
            self.repair()
            self.rest()
        self.encoder.close()
        self.report(faults, heard, used)

    def strike(self) -> None:
        """Let something go wrong at the next window."""
        kind = list(FAULTS)[int(self.rng.integers(len(FAULTS)))]
        self.kind, self.was = kind, self.encoder.name
        self.simulator.set(**FAULTS[kind])
        if kind == "chip is pulled out":
            self.simulator.unplug()

    def transcribe(self, window: Window) -> str:
        """The text of a window."""
        encoded = self.transcriber.begin(Request(window))
        if self.kind and self.was != "cpu":
            self.late_ms[self.kind].append(encoded.encode_ms)
        return self.transcriber.decode(encoded).text

    def repair(self) -> None:
        """Put the chip right again, for some faults only after a while."""
        kind, self.kind = self.kind, ""
        if not kind:
            return
        for _ in range(int(self.rng.integers(0, 60))):
            self.clock.now_s += 1
            looked_after(self.encoder, self.clock.now_s)
        self.simulator.set(**HEALTHY)
        if kind == "chip is pulled out":
            self.simulator.plug()
        self.returned_s, self.was_absent = self.clock.now_s, kind == "chip is pulled out"

    def rest(self) -> None:
        """Silence until the next window."""
        for _ in range(1 + int(self.rng.exponential(BETWEEN_S))):
            was, begun = self.encoder.name, time.perf_counter()
            looked_after(self.encoder, self.clock.now_s)
            if was == "cpu" and self.encoder.name != "cpu":
                self.open_ms.append((time.perf_counter() - begun) * 1000)
                self.back_s[self.was_absent].append(self.clock.now_s - self.returned_s)
            self.clock.now_s += 1

    def report(self, faults: int, heard: list[tuple[str, str]], used: Counter[str]) -> None:
        """Print how it went."""
        ids = [name for name, _ in heard]
        expected = [window.utterance_id for window in self.windows]
        same = sum(text == want for (_, text), want in zip(heard, self.wanted, strict=True))
        hit = [late for kind in self.late_ms.values() for late in kind]
        row("windows, faults, of these on a running NPU", f"{len(heard)}, {faults}, {len(hit)}")
        row("encoded by", ", ".join(f"{name} {count}" for name, count in used.most_common()))
        row("transcripts as without faults", f"{same} of {len(self.wanted)}")
        lost, doubled = len(set(expected) - set(ids)), len(ids) - len(set(ids))
        row(
            "lost, doubled, out of order",
            f"{lost}, {doubled}, {sum(a > b for a, b in pairwise(ids))}",
        )
        row("unnoticed by the backend", str(self.simulator.violations or "nothing"))
        for kind, late in self.late_ms.items():
            if late:
                row(f"until the CPU's result: {kind}", f"{spread(late)} ms ({len(late)})")
        for absent, back in self.back_s.items():
            name = "put in again" if absent else "right again"
            row(f"from a chip's being {name} to its use", f"{spread(back)} s ({len(back)})")
        row("of which opening it", f"{spread(self.open_ms)} ms")


def overhead(simulator: Simulator, bundle: Bundle) -> None:
    """What an encode takes beyond the time that the chip has the job, in this process and in the
    encoder's own."""
    here = open_npu(bundle, share=False)
    row("an encode in the same process, beyond the chip's time", beyond(simulator, bundle, here))
    here.close()
    apart = NpuProcess(make_order(bundle))
    apart.wait_until_open()
    row("an encode in a process of its own, beyond the chip's", beyond(simulator, bundle, apart))
    apart.close()


def beyond(simulator: Simulator, bundle: Bundle, npu: Npu | NpuProcess) -> str:
    """Milliseconds of 200 encodes that the chip does not account for."""
    mel = np.zeros((bundle.frames, bundle.n_mels), np.float32)
    npu.encode(mel)
    over = []
    for _ in range(200):
        begun = time.perf_counter()
        npu.encode(mel)
        over.append((time.perf_counter() - begun - simulator.history[-1][1]) * 1000)
    return f"{spread(over)} ms"


def words(simulator: Simulator, options: argparse.Namespace, folder: Path) -> None:
    """Print, and with --write publish, the words wrong on the chip and on the processor."""
    recordings = read_recordings(options.recordings)
    weights = {"tiny.en": find_weights(), "base": options.base}
    simulator.set(latency_ms=0.0, patience=100, remember=False)
    lines = [f"| model, window, behind it | {' | '.join(ENCODERS)} |", "|---|" + "---|" * 4]
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
            row(f"{name}, {window_s:g} s, {behind}, {encoder}", cells[encoder])
        lines.append(f"| {name}, {window_s:g} s, {behind} | {' | '.join(cells.values())} |")
    counted = sum(len(one.text.split()) for one in recordings)
    seen = about(ROOT, load_bundle("tiny.en").folder)
    lines += ["", f"Commit {seen['commit']}: {len(recordings)} recordings, {counted} words."]
    print("\n".join(lines))
    if options.write:
        page = ROOT / "docs" / "figures.md"
        write_whole(page, put(page.read_text(encoding="utf-8"), "\n".join(lines), *MARKS), 0o644)


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
    with open_for(bundle, backend="cpu") as transcriber:
        if encoder != "CPU, INT8":  # which takes its time as the chip
            transcriber.encoder = chip = failover(bundle, None)
            chip.open()
        recogniser = ProductRecogniser(transcriber)
        return count_words([recogniser.hear(one.samples) for one in recordings], recordings)


if __name__ == "__main__":
    main()
