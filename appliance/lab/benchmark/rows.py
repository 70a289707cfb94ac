"""The rows of the benchmark: what each one is, and the files it needs.

The floor of a token's time are the bytes that it must read over the memory's speed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import onnx

from appliance.convert import Recipe, build_bundle
from appliance.errors import DeviceError
from appliance.infer import find_chip
from appliance.lab.benchmark import baselines, exporter, ours
from appliance.lab.benchmark.subject import Subject
from appliance.model import FRAMES_PER_POSITION, STEP_FILE, Bundle
from appliance.system import one_line

ARRAY_BYTES = 256 << 20
"""Many times the largest cache of such a machine."""
ROUNDS = 20
LOOKED_UP = {"Gather", "GatherBlockQuantized"}
"""Operators that read a row of a table, not the table."""
FLOAT_BYTES = 4
CTRANSLATE, QUANTIZER = "ctranslate2", "onnxruntime.quantization"
LABELS = {
    "ct2-30s": "faster-whisper's way: CTranslate2 INT8, 30 s mel",
    "onnx-30s-fp32": "CPU ONNX, 30 s: FP32 encoder, INT8 cached decoder",
    "onnx-30s-int8": "CPU ONNX, 30 s: INT8 encoder, INT8 cached decoder",
    "reference": "CPU ONNX, window: INT8, padded to 1500 (reference)",
    "ct2-window": "CTranslate2 INT8, mel of the window, unpadded",
    "uncached": "HEF decoder's algorithm on the CPU: no cache, FP32",
    "conservative": "Roomscribe, CPU, conservative",
    "balanced": "Roomscribe, CPU, balanced",
    "aggressive": "Roomscribe, CPU, aggressive",
    "short": "Roomscribe, CPU, balanced, short windows",
    "balanced-latin": "Roomscribe, CPU, balanced, tokens of Latin letters only",
    "hybrid": "Roomscribe, hybrid: HEF encoder, INT8 CPU decoder",
    "npu": "Roomscribe, full NPU: encoder and decoder as the HEFs quantise them",
}
KEYS = tuple(LABELS)
OURS = "balanced"
"""The row that the others are compared with, and its preset."""
SHORT = "short"
"""The row whose encoder computes no more than the speech."""


def memory_speed(
    threads: int, size: int = ARRAY_BYTES, now: Callable[[], float] = time.perf_counter
) -> float:
    """Bytes a second that `threads` threads read from memory: the best of ROUNDS passes of numpy's
    maximum over an array of `size` bytes, by the clock `now`, in seconds."""
    array = np.ones(size // FLOAT_BYTES, np.float32)
    parts = np.array_split(array, threads)
    with ThreadPoolExecutor(threads) as pool:
        best = math.inf
        for _ in range(ROUNDS):
            begun = now()
            list(pool.map(np.max, parts))
            best = min(best, now() - begun)
    return size / best


def bytes_of_graph(file: Path, unread: str = "") -> int:
    """Bytes of the constants that one run of a graph reads: of tables that are only looked up in,
    one row; of those with `unread` in their names, none."""
    graph = onnx.load(str(file), load_external_data=False).graph
    readers: dict[str, set[str]] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            is_lookup = node.op_type in LOOKED_UP and index == 0
            readers.setdefault(name, set()).add("lookup" if is_lookup else "whole")
    total = 0
    for constant in graph.initializer:
        if unread and unread in constant.name:
            continue
        size = _size(constant)
        lookup = readers.get(constant.name) == {"lookup"} and len(constant.dims) > 1
        total += size // max(1, constant.dims[0]) if lookup else size
    return total


def bytes_of_cross_cache(bundle: Bundle, positions: int) -> int:
    """Bytes of the cross-attention's keys and values in float32, read for every token."""
    return 2 * bundle.decoder_layers * positions * bundle.d_model * FLOAT_BYTES


def _size(constant: onnx.TensorProto) -> int:
    """Bytes of a constant's values."""
    count: int = math.prod(constant.dims)
    item = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(constant.data_type)).itemsize
    return count * int(item)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table before it is measured."""

    key: str
    label: str
    plan: dict[str, Any] | None = None
    """For the worker; None: the row is left out."""
    absent: str = ""
    """Why it is left out."""
    token_bytes: int = 0
    """Read from memory for each later token: weights, and the sound's keys and values. The text's
    are not counted (20 tokens of whisper-tiny: 0.2 MB)."""
    decoder_alone: bool = True
    """False where the decoder cannot be loaded without the encoder."""


class RowMaker:
    """Makes the files of the rows in a scratch folder, each once."""

    def __init__(
        self,
        subject: Subject,
        scratch: Path,
        threads: int,
        tokens: int,
        clock: str = "wall",
        *,
        speech_s: float | None = None,
        model: str = "",
        ctranslate: str = CTRANSLATE,
        quantizer: str = QUANTIZER,
    ) -> None:
        """`speech_s`: seconds of sound in the window. `model`: the one in use, whose HEFs a Hailo
        runs. Then the packages that rows need."""
        self._subject, self._scratch = subject, scratch
        self._bundle = subject.bundle
        self._tokens, self._ct2_bytes, self._model = tokens, 0, model
        self._needs: dict[Callable[[str], Row], str] = {
            self._ctranslate: ctranslate,
            self._exported: quantizer,
        }
        self._common = {
            "threads": threads,
            "tokens": tokens,
            "clock": clock,
            "speech_s": speech_s or subject.bundle.window_s,
            "bundle": self._bundle,
        }

    def rows(self, keys: Sequence[str]) -> list[Row]:
        """The rows of these keys, their files written; rows that cannot be made say why."""
        makers: dict[str, Callable[[str], Row]] = {
            "ct2-30s": self._ctranslate,
            "ct2-window": self._ctranslate,
            "onnx-30s-fp32": self._exported,
            "onnx-30s-int8": self._exported,
            "reference": self._exported,
            "uncached": self._uncached,
            "hybrid": self._hailo,
            "npu": self._hailo,
        }
        return [self._make(makers.get(key, self._ours), key) for key in keys]

    def _make(self, maker: Callable[[str], Row], key: str) -> Row:
        needed = self._needs.get(maker)
        try:
            if needed and find_spec(needed) is None:
                return Row(key, LABELS[key], absent=f"the package {needed} is not installed")
            return maker(key)
        except Exception as error:  # other people's exporters raise what they like
            cause = f"{type(error).__name__}: {one_line(error)}"
            return Row(key, LABELS[key], absent=f"its files cannot be made: {cause}")

    def _made(self, name: str, write: Callable[[Path], object]) -> Path:
        """A file or folder that rows share, written once; there whole or not at all."""
        path, draft = self._scratch / name, self._scratch / "draft" / name
        if not path.exists():
            rmtree(draft.parent, ignore_errors=True)
            draft.parent.mkdir()
            write(draft)
            draft.rename(path)
        return path

    def _row(
        self, key: str, kind: str, token_bytes: int, *, alone: bool = True, **plan: object
    ) -> Row:
        plan = {**self._common, "kind": kind, **plan}
        return Row(key, LABELS[key], plan, "", token_bytes, decoder_alone=alone)

    def _ours(self, key: str) -> Row:
        preset, _, latin = (OURS, "", "") if key == SHORT else key.partition("-")
        folder = self.latin_bundle() if latin else self._subject.bundle.folder
        # what no token of a text can be is scored at the prompt alone
        read = bytes_of_graph(folder / STEP_FILE, unread=".left_out")
        read += bytes_of_cross_cache(self._bundle, self._bundle.positions + 1)
        short = key == SHORT
        return self._row(key, "ours", read, folder=str(folder), preset=preset, short=short)

    def latin_bundle(self) -> Path:
        """The bundle that has tokens of Latin letters only."""
        recipe = Recipe("benchmark", self._subject.bundle.window_s, quantize="int8", latin=True)
        return self._made(
            "bundle-latin", lambda folder: build_bundle(self._subject.folder, folder, recipe)
        )

    def _exported(self, key: str) -> Row:
        bundle = self._bundle
        longest = key != "reference"
        frames = FRAMES_PER_POSITION * bundle.trained_positions if longest else bundle.frames
        encoder = self.encoder(frames // 2, int8=key != "onnx-30s-fp32")
        decoder = self.decoders(int8=True)
        read = bytes_of_graph(decoder / baselines.WITH_PAST)
        read += bytes_of_cross_cache(bundle, bundle.trained_positions)
        files = (str(encoder), str(decoder))
        return self._row(key, "exported", read, frames=frames, encoder=files[0], decoder=files[1])

    def encoder(self, positions: int, *, int8: bool) -> Path:
        """The exported encoder for a window of `positions`."""
        checkpoint = self._subject.checkpoint
        plain = self._made(
            f"encoder-{positions}.onnx",
            lambda file: exporter.write_encoder_model(checkpoint, positions, file),
        )
        if not int8:
            return plain
        return self._made(
            f"encoder-{positions}-int8.onnx", lambda file: baselines.quantize(plain, file)
        )

    def decoders(self, *, int8: bool) -> Path:
        """The folder of decoder_model and decoder_with_past_model."""
        checkpoint = self._subject.checkpoint

        def write(folder: Path) -> None:
            folder.mkdir()
            exporter.write_decoder_model(checkpoint, folder / baselines.DECODER)
            exporter.write_decoder_with_past_model(checkpoint, folder / baselines.WITH_PAST)

        def write_quantized(folder: Path) -> None:
            folder.mkdir()
            for name in (baselines.DECODER, baselines.WITH_PAST):
                baselines.quantize(plain / name, folder / name)

        plain = self._made("decoders", write)
        return self._made("decoders-int8", write_quantized) if int8 else plain

    def _uncached(self, key: str) -> Row:
        folder = self.uncached()
        read = bytes_of_graph(folder / baselines.GRAPH)
        encoder = self.encoder(self._bundle.positions, int8=False)
        return self._row(key, "uncached", read, encoder=str(encoder), decoder=str(folder))

    def uncached(self) -> Path:
        """The folder of the fixed-length decoder and its tables."""
        from appliance.lab.hailo.graphs import host_tables, write_hailo_decoder

        bundle, checkpoint = self._bundle, self._subject.checkpoint
        room = len(bundle.prompt) + self._tokens
        length = min(max(baselines.LENGTH, room), checkpoint.config.max_target_positions)

        def write(folder: Path) -> None:
            folder.mkdir()
            write_hailo_decoder(checkpoint, bundle.positions, length, folder / baselines.GRAPH)
            embedding, places = host_tables(checkpoint, length)
            np.save(folder / baselines.EMBEDDING, embedding)
            np.save(folder / baselines.PLACES, places)

        return self._made("uncached", write)

    def _ctranslate(self, key: str) -> Row:
        from appliance.convert import read_vocabulary
        from appliance.lab.benchmark.ctranslate import write_model

        bundle = self._bundle

        def write(folder: Path) -> None:
            pieces = read_vocabulary(self._subject.folder)
            self._ct2_bytes = write_model(self._subject.checkpoint, pieces, "int8", folder)

        folder = self._made("ctranslate2", write)
        frames = (
            bundle.frames if key == "ct2-window" else FRAMES_PER_POSITION * bundle.trained_positions
        )
        read = self._ct2_bytes + bytes_of_cross_cache(bundle, frames // 2)
        return self._row(key, "ctranslate", read, alone=False, folder=str(folder), frames=frames)

    def _hailo(self, key: str) -> Row:
        """Rows that need the NPU."""
        try:
            chip = find_chip()
        except DeviceError as error:
            return Row(key, LABELS[key], absent=str(error))
        if chip is None:
            return Row(key, LABELS[key], absent="there is no Hailo in this machine")
        found = ours.find_hailo_bundle(self._model, self._bundle, full=key == "npu")
        if isinstance(found, str):
            return Row(key, LABELS[key], absent=found)
        read = 0
        if key == "hybrid":
            read = bytes_of_graph(found.folder / STEP_FILE, unread=".left_out")
            read += bytes_of_cross_cache(self._bundle, self._bundle.positions + 1)
        return self._row(key, key, read, alone=False, folder=str(found.folder))
