"""Compare the encoders of NPU and CPU on the same windows: states, texts, times, heat, memory.

Only ever run against a simulator, never on a real Hailo.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from appliance.cli.doctor.model import FILE, TEXT, on_cpu, spoken_window, word_errors, words
from appliance.cli.doctor.outcome import Outcome, Surroundings, failed, ok
from appliance.errors import ConfigError

if TYPE_CHECKING:
    from appliance.infer import Transcriber
    from appliance.records import Mel, States

LEAST_COSINE = 0.9
"""Between the states of a window. Hailo's INT8 encoders promise a signal-to-noise ratio of 15 dB,
which gives 0.98; states of another network are near 0. Never compared on a real chip."""
MORE, POINTS, MOST = 1.5, 0.10, 2
"""The NPU may get these times as many words wrong as the CPU, or that part of all words more, or so
many words more. In the shipped sentences a simulated chip's noise of 15 to 6 dB makes 1 to 2.5 %
of the CPU's words others, at most 2 in a sentence."""
SOUND_FILES = (".flac", ".wav", ".ogg", ".oga", ".opus", ".mp3")
OTHER_HEF = (
    "the HEF is damaged, of another model, or bad: that of base on a Hailo-8L is known to "
    "give empty or inconsistent texts (Hailo-Application-Code-Examples#369): run `roomscribe model "
    "add NAME --hef auto`; until then, set [encoder] backend = cpu, and please send the "
    "file of `roomscribe doctor --report FILE`"
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One window through both encoders."""

    cosine: float
    """Of the angle between both encoders' states; 1 is equal."""
    noise_db: float
    """Ratio of the CPU's states to the difference; more is better."""
    same_text: bool
    cpu_errors: int
    """Wrong words in the text; 0 if the right text is unknown: then the CPU's stands for it."""
    npu_errors: int
    words: int
    """Words of the right text."""
    cpu_ms: float
    npu_ms: float
    is_empty: bool = False
    """True if the NPU's states give no word and the CPU's do."""


def run(around: Surroundings, folder: Path | None) -> Outcome:
    """Compare both encoders on the test sentence, or on the recordings in `folder`, each cut to
    the model's window. Raises NpuError, ModelError, AudioError, and ConfigError for an empty
    folder."""
    from appliance.infer import device, open_npu, open_transcriber
    from appliance.model import load_bundle

    around.doing("loading the model")
    bundle = load_bundle(around.settings.model.bundle)
    transcriber = open_transcriber(on_cpu(around.settings), bundle=bundle)
    spoken = _spoken(folder)
    around.doing("opening the NPU")
    npu = open_npu(bundle, share=around.settings.encoder.share)
    binding, identity = npu.binding, npu.identity
    before = device.read(binding, identity.device_id)
    found: list[Compared] = []
    try:
        for file, text in spoken:
            around.doing(f"comparing the encoders, window {len(found) + 1} of {len(spoken)}")
            found.append(_compare_one(transcriber, npu.encode, npu.chip, file, words(text)))
    finally:
        npu.close()
    figures = summarize(found) | {
        "model": bundle.name,
        "window_s": bundle.window_s,
        "chip": npu.chip,
        "product": identity.product,
        "firmware": identity.firmware,
        "hailort": str(binding.__version__),
        "chip_before": asdict(before),
        "chip_after": asdict(device.read(binding, identity.device_id)),
        "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6),
    }
    return judge(found, figures)


def summarize(found: Sequence[Compared]) -> dict[str, Any]:
    """Return the figures of the compared windows, without their texts."""
    cosines = [window.cosine for window in found]
    word_count = sum(window.words for window in found)
    figures: dict[str, Any] = {
        "windows": len(found),
        "cosine_mean": round(statistics.mean(cosines), 4),
        "cosine_min": round(min(cosines), 4),
        "noise_db_mean": round(statistics.mean(window.noise_db for window in found), 1),
        "noise_db_min": round(min(window.noise_db for window in found), 1),
        "texts_equal": sum(window.same_text for window in found),
        "texts_empty_on_npu": sum(window.is_empty for window in found),
    }
    if word_count:
        for name in ("cpu_errors", "npu_errors"):
            wrong = sum(getattr(window, name) for window in found)
            figures[f"word_{name}"] = round(wrong / word_count, 4)
    for stage in ("npu_ms", "cpu_ms"):
        p50, p95 = np.percentile([getattr(window, stage) for window in found], [50, 95])
        figures[stage] = {"p50": round(float(p50), 2), "p95": round(float(p95), 2)}
    return figures


def judge(found: list[Compared], figures: dict[str, Any] | None = None) -> Outcome:
    """Return the outcome for the compared windows."""
    figures = figures or summarize(found)
    word_count, cpu, npu = (
        sum(getattr(window, name) for window in found)
        for name in ("words", "cpu_errors", "npu_errors")
    )
    line = (
        f"{len(found)} windows: cosine {figures['cosine_mean']:.4f} (min "
        f"{figures['cosine_min']:.4f}), at least {figures['noise_db_min']:.0f} dB above the "
        f"difference, {figures['texts_equal']} texts equal; "
    )
    if "word_cpu_errors" in figures:
        line += (
            f"word errors on the CPU {figures['word_cpu_errors']:.1%}, "
            f"on the NPU {figures['word_npu_errors']:.1%}; "
        )
    line += (
        f"encoder p50 {figures['npu_ms']['p50']:.0f} ms, on the CPU {figures['cpu_ms']['p50']:.0f} "
        "ms"
    )
    empty, wrong = figures["texts_empty_on_npu"], ""
    if 2 * empty >= len(found):
        wrong = f"{empty} texts are empty with the NPU's encoder only"
    elif npu - cpu > max((MORE - 1) * cpu, POINTS * word_count, MOST):
        wrong = f"the NPU gets {npu - cpu} of {word_count} words more wrong"
    elif figures["cosine_min"] < LEAST_COSINE:
        wrong = f"the cosine should be {LEAST_COSINE} or more"
    if not wrong:
        return Outcome(ok(line).status, line, figures=figures)
    return Outcome(failed("", "").status, f"{line}; {wrong}", OTHER_HEF, figures)


def _compare_one(
    transcriber: Transcriber, encode: Callable[[Mel], States], chip: str, file: Path,
    right: list[str],
) -> Compared:  # fmt: skip
    """Send one recording through both encoders; `right` has the words of its text, if known."""
    from appliance.infer import Encoded, Request, window_mel

    bundle = transcriber.bundle
    request = Request(spoken_window(bundle.window_s, file))
    mel = window_mel(request.window.samples, bundle.n_mels, bundle.frames)
    begun_s = time.perf_counter()
    states = encode(mel)
    npu_ms = 1000 * (time.perf_counter() - begun_s)
    cpu, npu = transcriber.begin(request), Encoded(request, states, chip, npu_ms)
    cpu_text, npu_text = (words(transcriber.decode(each).text) for each in (cpu, npu))
    cpu_states, npu_states = (each.states.astype(np.float64).ravel() for each in (cpu, npu))
    lengths = float(np.linalg.norm(cpu_states) * np.linalg.norm(npu_states))
    difference = float(np.linalg.norm(cpu_states - npu_states))
    return Compared(
        cosine=float(cpu_states @ npu_states) / lengths if lengths else 0.0,
        noise_db=min(
            99.0, 20 * float(np.log10(np.linalg.norm(cpu_states) / max(difference, 1e-12)))
        ),
        same_text=cpu_text == npu_text,
        cpu_errors=word_errors(right, cpu_text) if right else 0,
        npu_errors=word_errors(right or cpu_text, npu_text),
        words=len(right or cpu_text),
        cpu_ms=cpu.encode_ms,
        npu_ms=npu_ms,
        is_empty=bool(cpu_text) and not npu_text,
    )


def _spoken(folder: Path | None) -> list[tuple[Path, str]]:
    """Return sound files with their right texts, empty if unknown."""
    from appliance.lab import listed_texts

    if folder is None:
        return [(FILE, TEXT)]
    texts = listed_texts(folder) or {}
    files = sorted(file for file in folder.glob("*") if file.suffix.lower() in SOUND_FILES)
    if not files:
        raise ConfigError(f"--recordings: expected sound files in {folder}, found none")
    return [(file, texts.get(file.name, "")) for file in files]
