"""The NPU's encoder against the CPU's: the same windows through both, and through the decoder."""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from appliance.doctor.model import on_cpu
from appliance.doctor.outcome import Outcome, Surroundings, failed, ok
from appliance.doctor.sentence import FILE, TEXT, spoken_window, words
from appliance.errors import ConfigError
from appliance.records import States

LEAST_COSINE = 0.9
"""Between the states of a window. Hailo's INT8 encoders promise a signal 15 dB above their own
noise, which makes 0.98; another network's states are near 0. Never compared on a real chip."""
SOUND_FILES = (".flac", ".wav", ".ogg", ".oga", ".mp3")
LISTS = ("transcripts.tsv", "MANIFEST.tsv")


@dataclass(frozen=True, slots=True)
class Compared:
    """One window through both encoders."""

    cosine: float
    """Of the angle between both windows' states; 1 is equal."""
    noise_db: float
    """Of the CPU's states over the difference; more is better."""
    same_text: bool
    cpu_errors: int
    """Words wrong in the text, where what was said is known; else 0."""
    npu_errors: int
    words: int
    """Words said, where that is known; else 0."""
    cpu_ms: float
    npu_ms: float


def compare(around: Surroundings, folder: Path | None) -> list[Compared]:
    """Both encoders on the packaged sentence, or on the recordings of `folder`, each cut off at the
    model's window. Raises NpuError, ModelError, AudioError, and ConfigError for an empty folder."""
    from appliance.infer.hailo.npu import open_npu
    from appliance.infer.mel import log_mel
    from appliance.infer.transcriber import FULL_SCALE, Encoded, open_transcriber
    from appliance.model.hef import HEF_FILE

    around.doing("loading the model")
    transcriber = open_transcriber(on_cpu(around.settings))
    bundle = transcriber.bundle
    spoken = list(_spoken(folder))
    around.doing("opening the NPU")
    npu = open_npu(bundle, bundle.folder / HEF_FILE, share=around.settings.encoder.share)
    found: list[Compared] = []
    try:
        for file, text in spoken:
            around.doing(f"comparing the encoders, window {len(found) + 1} of {len(spoken)}")
            window = spoken_window(bundle.window_s, file)
            samples = window.samples.astype(np.float32) / np.float32(FULL_SCALE)
            mel = log_mel(samples, bundle.n_mels, bundle.frames)
            begun_s = time.perf_counter()
            states = npu.encode(mel)
            npu_ms = 1000 * (time.perf_counter() - begun_s)
            cpu = transcriber.encode(window)
            npu_text = transcriber.write(Encoded(states, window.duration_s, npu.chip, npu_ms)).text
            cpu_text = transcriber.write(cpu).text
            found.append(_one(cpu.states, states, cpu_text, npu_text, text, cpu.encode_ms, npu_ms))
    finally:
        npu.close()
    return found


def judge(found: list[Compared]) -> Outcome:
    """The outcome for what was compared."""
    cosines = [one.cosine for one in found]
    said = sum(one.words for one in found)
    line = (
        f"{len(found)} windows: cosine {statistics.mean(cosines):.4f} (least {min(cosines):.4f}), "
        f"{min(one.noise_db for one in found):.0f} dB above the difference at least, "
        f"{sum(one.same_text for one in found)} texts equal; "
    )
    if said:
        line += (
            f"words wrong on the CPU {sum(one.cpu_errors for one in found) / said:.1%}, "
            f"on the NPU {sum(one.npu_errors for one in found) / said:.1%}; "
        )
    line += (
        f"encoder p50 {statistics.median(one.npu_ms for one in found):.0f} ms, "
        f"on the CPU {statistics.median(one.cpu_ms for one in found):.0f} ms"
    )
    if min(cosines) >= LEAST_COSINE:
        return ok(line)
    return failed(
        f"{line}; wanted is a cosine of {LEAST_COSINE} or more",
        "the HEF is of another model, or damaged: roomscribe model add NAME --hef auto; "
        "until then [encoder] backend = cpu",
    )


def word_errors(said: list[str], written: list[str]) -> int:
    """Words to change, leave out or add (Levenshtein)."""
    row = list(range(len(written) + 1))
    for number, word in enumerate(said, 1):
        before, row[0] = row[0], number
        for at, other in enumerate(written, 1):
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, before + (word != other))
    return row[-1]


def _one(  # noqa: PLR0917
    cpu: States, npu: States, cpu_text: str, npu_text: str, said: str, cpu_ms: float, npu_ms: float
) -> Compared:
    one, other = cpu.astype(np.float64).ravel(), npu.astype(np.float64).ravel()
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    difference = float(np.linalg.norm(one - other))
    known = words(said)
    return Compared(
        cosine=float(one @ other) / lengths if lengths else 0.0,
        noise_db=min(99.0, 20 * float(np.log10(np.linalg.norm(one) / max(difference, 1e-12)))),
        same_text=words(cpu_text) == words(npu_text),
        cpu_errors=word_errors(known, words(cpu_text)) if known else 0,
        npu_errors=word_errors(known, words(npu_text)) if known else 0,
        words=len(known),
        cpu_ms=cpu_ms,
        npu_ms=npu_ms,
    )


def _spoken(folder: Path | None) -> Iterator[tuple[Path, str]]:
    """Sound files with what is said in them, as far as that is known."""
    if folder is None:
        yield FILE, TEXT
        return
    texts = _texts(folder)
    files = sorted(file for file in folder.glob("*") if file.suffix.lower() in SOUND_FILES)
    if not files:
        raise ConfigError(f"--recordings: expected sound files in {folder}, found none")
    for file in files:
        yield file, texts.get(file.name, "")


def _texts(folder: Path) -> dict[str, str]:
    """What is said in the files, by their names, from a list with the columns file and text."""
    listed = next((folder / name for name in LISTS if (folder / name).is_file()), None)
    if listed is None:
        return {}
    with listed.open(encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {row.get("file") or "": row.get("text") or "" for row in rows}
