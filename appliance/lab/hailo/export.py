"""Export a checkpoint for Hailo's Dataflow Compiler, which makes HEFs of it.

The graphs have the form of exports that the compiler is known to read. Its own list of layers is
behind an account, so this comes from public sources: Hailo's conversion scripts for Whisper
(github.com/hailo-ai/hailo-whisper: static export with opset 13 or 17, simplified), a log of such an
encoder parsed and compiled by DFC 3.x (github.com/ktomanek/huggingface_whisper_to_hailo_conversion,
notes/hailo_conversion_log.md), and people's tests of single layers.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from appliance.convert import Checkpoint, WhisperConfig, load_checkpoint, window_positions
from appliance.errors import ModelError
from appliance.infer import Session
from appliance.lab.hailo.calibration import (
    ENCODER_SET,
    Transcribe,
    transcribing,
    write_decoder_set,
    write_encoder_set,
)
from appliance.lab.hailo.graphs import (
    host_tables,
    sizes,
    write_hailo_decoder,
    write_hailo_encoder,
)
from appliance.model import drafted, identify, write_json
from appliance.records import Mel

MARK = "report.json"
TEMPLATES = Path(__file__).with_name("exported")
TEXTS = {
    "README.txt": "README.txt",
    "compile_encoder.sh": "compile_encoder.sh.txt",
    "compile_decoder.py": "compile_decoder.py.txt",
}
"""What people read and run, and the files below TEMPLATES that they are made from. The commands and
calls are those that public projects use with the compiler."""
MADE_FOR = "Hailo Dataflow Compiler"
NARROW_LENGTH, WIDE_LENGTH, WIDE = 32, 24, 512
"""Tokens of the decoder's sequence; from whisper-base's width on, Hailo's own has fewer."""
RANGE_TOLERANCE, CHECKED = 1e-3, 3
"""Largest difference between the graph's states and the product's, by the range of the states, and
the windows that are compared. Real weights have channels far from the others (to -22.6 in base), so
that an absolute limit says little; 2e-5 and 3e-5 were measured with tiny.en and base."""
ENOUGH = 64
"""Windows that Hailo's own model scripts calibrate by, at the least."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an export is of."""

    name: str
    """Of the model, as in the file names of the host's tables."""
    window_s: float
    n_mels: int
    positions: int
    d_model: int
    vocabulary: int
    length: int
    """Tokens of the decoder's fixed sequence."""

    @property
    def network(self) -> str:
        """The name, as the compiler takes it."""
        return "".join(sign if sign.isalnum() else "_" for sign in self.name)


@dataclass(frozen=True, slots=True)
class Report:
    """What was exported, and what is known of it."""

    folder: Path
    sizes: Sizes
    windows: tuple[int, int]
    """In the calibration sets of encoder and decoder."""
    checks: dict[str, list[str]]
    """Facts about each graph."""
    remarks: list[str]
    """What the user should know before compiling."""

    def __str__(self) -> str:
        lines = [f"{self.folder}: written for Hailo's compiler; start with README.txt"]
        for file, facts in self.checks.items():
            lines += [f"  {file}: {fact}" for fact in facts]
        return "\n".join(lines + [f"note: {remark}" for remark in self.remarks])


def export_for_hailo(
    checkpoint_folder: Path,
    out: Path,
    *,
    window_s: float,
    mels: Iterable[Mel] = (),
    language: str = "",
) -> Report:
    """Write the folder `out`, whole or not at all; replace an earlier export there.

    `mels` (W, n_mels) float32 of real recordings become the encoder's calibration set, and what the
    checkpoint itself makes of them, in `language` or its own, the decoder's. Raises ModelError.
    """
    out = out.absolute()
    _refuse_foreign(out)
    checkpoint = load_checkpoint(checkpoint_folder)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", checkpoint_folder.resolve().name)
    sizes = _plan(checkpoint.config, window_s, name.strip("-.") or "whisper")
    with drafted(out, "an export") as draft:
        checks = _write_graphs(checkpoint, sizes, draft)
        encoded, decoded = write_encoder_set(draft, mels, (2 * sizes.positions, sizes.n_mels)), 0
        if encoded:
            tables, network = host_tables(checkpoint, sizes.length), f"{sizes.network}_decoder"
            with transcribing(checkpoint_folder, window_s, language, draft) as transcribe:
                checks["encoder.onnx"].append(_compare_states(draft, transcribe))
                decoded = write_decoder_set(draft, network, transcribe, tables, sizes.positions)
        windows = encoded, decoded
        report = Report(out, sizes, windows, checks, _remarks(windows))
        _write_texts(report, checkpoint.sha256, draft)
    return report


def _refuse_foreign(out: Path) -> None:
    """Raise ModelError where something other than an export is in the way."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        ours = json.loads((out / MARK).read_bytes())["made_for"] == MADE_FOR
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise ModelError(
            f"{out}: expected an earlier export to replace or nothing, found something else; "
            "name another folder"
        )


def _plan(config: WhisperConfig, window_s: float, name: str) -> Sizes:
    """Every size of the export. Raises ModelError for a window that the model does not have."""
    positions = window_positions(config, window_s)
    usual = NARROW_LENGTH if config.d_model < WIDE else WIDE_LENGTH
    return Sizes(
        name=name,
        window_s=window_s,
        n_mels=config.num_mel_bins,
        positions=positions,
        d_model=config.d_model,
        vocabulary=config.vocab_size,
        length=min(usual, config.max_target_positions),
    )


def _write_graphs(checkpoint: Checkpoint, sizes: Sizes, folder: Path) -> dict[str, list[str]]:
    """Write both graphs and the host's tables; return facts about the graphs."""
    encoder, decoder = folder / "encoder.onnx", folder / "decoder.onnx"
    write_hailo_encoder(checkpoint, sizes.positions, encoder)
    write_hailo_decoder(checkpoint, sizes.positions, sizes.length, decoder)
    assets = folder / "decoder_assets"
    assets.mkdir()
    embedding, places = host_tables(checkpoint, sizes.length)
    np.save(assets / f"token_embedding_weight_{sizes.name}.npy", embedding)
    np.save(assets / f"onnx_add_input_{sizes.name}.npy", places)
    return {file.name: [*_describe(file)] for file in (encoder, decoder)}


def _compare_states(folder: Path, product: Transcribe) -> str:
    """Return how far the encoder's states of the first recordings are from the product's, by their
    range. Raises ModelError for more than RANGE_TOLERANCE."""
    encoder, worst = Session(folder / "encoder.onnx", 0), 0.0
    for mel in np.load(folder / ENCODER_SET, mmap_mode="r")[:CHECKED, 0]:
        states = encoder.run({"mel": np.ascontiguousarray(mel.T[None, :, None])})[0][0]
        expected = product(np.array(mel))[0]
        worst = max(worst, float(np.abs(states - expected).max() / np.ptp(expected)))
    if not worst <= RANGE_TOLERANCE:
        raise ModelError(
            f"encoder.onnx: expected the product's states within {RANGE_TOLERANCE:g} of their "
            f"range, found {worst:.1e}; please report this with the name of the model"
        )
    return f"states of recordings are the product's within {worst:.0e} of their range"


def _remarks(windows: tuple[int, int]) -> list[str]:
    """What is missing or thin."""
    remarks = ["none of this was ever run through Hailo's compiler"]
    if not windows[0]:
        remarks.append("no calibration sets: give recordings of real speech before compiling")
    elif windows[0] < ENOUGH:
        remarks.append(
            f"{windows[0]} windows in the calibration sets: Hailo's scripts take {ENOUGH} or more"
        )
    return remarks


def _write_texts(report: Report, sha256: str, folder: Path) -> None:
    """Write what people read, report.json last."""
    sizes = report.sizes
    title = f"{sizes.name}: Whisper for Hailo's Dataflow Compiler"
    words = asdict(sizes) | {
        "title": title,
        "rule": "=" * len(title),
        "network": sizes.network,
        "shell": "#!/bin/sh",  # in the template, lintian takes it for a program
        "window_s": f"{sizes.window_s:g}",
        "frames": 2 * sizes.positions,
        "encoder_windows": report.windows[0],
        "decoder_windows": report.windows[1],
    }
    for name, source in TEXTS.items():
        text = (TEMPLATES / source).read_text("utf-8")
        text = re.sub(r"@(\w+)@", lambda word: str(words[word[1]]), text)
        (folder / name).write_text(text, "utf-8")
    (folder / "compile_encoder.sh").chmod(0o755)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    values: dict[str, Any] = {
        "made_for": MADE_FOR,
        "checkpoint_sha256": sha256,
        **asdict(sizes),
        "calibration_windows": {"encoder": report.windows[0], "decoder": report.windows[1]},
        "checks": report.checks,
        "remarks": report.remarks,
        "files": {str(file.relative_to(folder)): identify(file) for file in files},
    }
    write_json(folder / MARK, values, indent=1)


def _describe(file: Path) -> Iterator[str]:
    """Yield facts about a graph. Whether it is such as the compiler can be expected to read is for
    the tests: all depends on the sizes alone, and weights are finite."""
    model = onnx.load(file)
    yield f"opset {model.opset_import[0].version}, IR version {model.ir_version}"
    for role, tensors in (("input", model.graph.input), ("output", model.graph.output)):
        for tensor in tensors:
            yield f"{role} {tensor.name}: {sizes(tensor)} float32"
    yield "every tensor between them has a fixed size and is float32"
    counts = Counter(node.op_type for node in model.graph.node)
    listed = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    yield f"{counts.total()} nodes: {listed}"
    weights = sum(len(constant.raw_data) for constant in model.graph.initializer)
    yield f"constants: {weights / 1e6:.1f} MB, all finite"
