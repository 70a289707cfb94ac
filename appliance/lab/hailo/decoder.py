"""Whisper's decoder on the Hailo, beside the encoder: only to compare it with the CPU's.

Such a HEF has no KV cache: each step recomputes a sequence of fixed length, about ten times what
the CPU's decoder takes, and the text is no longer than the sequence. Its inputs are, sorted by
name, encoder states and embedded tokens, which the host computes from two tables; its outputs are
parts of the logits in an order that HailoRT reads from the HEF. Names and layout follow Hailo's
examples for its published HEFs; none of those files was opened here.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.config import Settings
from appliance.errors import ModelError
from appliance.infer import (
    Npu,
    NpuError,
    Step,
    StepNetwork,
    Transcriber,
    open_npu,
    open_transcriber,
)
from appliance.lab.benchmark.steps import decode_through
from appliance.lab.hailo.graphs import Tables, embed
from appliance.model import Bundle
from appliance.records import States
from appliance.system import one_line

STEP_WITHIN_MS = 400
"""Others have measured 50 to 70 ms for a step; it may have to wait for an encode first."""
FIX = "name their folder with --npu-decoder (docs/hailo.md says where to get them)"


class DecoderFiles:
    """A decoder's HEF, and the tables from which the host makes the network's input. Their names
    are those of Hailo's store and of `roomscribe model export`."""

    def __init__(self, bundle: Bundle, folder: Path) -> None:
        """Open the files below `folder` for the model of `bundle`. Raises ModelError."""
        self.bundle, self.hef = bundle, _find(folder, "*decoder*.hef")
        names = "token_embedding_weight*.npy", "onnx_add_input*.npy"
        embedding, places = (_table(folder, name, bundle.d_model) for name in names)
        self.tables: Tables = embedding, places
        if len(embedding) != bundle.vocabulary_size:
            raise ModelError(f"{folder}: the token embedding is not that of {bundle.name}; {FIX}")


def _find(folder: Path, pattern: str) -> Path:
    """Return the only file below `folder` with such a name. Raises ModelError."""
    found = sorted(folder.rglob(pattern))
    if len(found) != 1:
        raise ModelError(f"{folder}: expected one {pattern}, found {len(found)}; {FIX}")
    return found[0]


def _table(folder: Path, pattern: str, width: int) -> NDArray[np.float32]:
    """Return the rows (n, width) of the only .npy file of that name. Raises ModelError."""
    file = _find(folder, pattern)
    try:
        return np.load(file).astype(np.float32).reshape(-1, width)  # type: ignore[no-any-return]
    except (OSError, ValueError, TypeError) as error:
        found = one_line(error)
        raise ModelError(f"{file}: expected rows of {width} numbers, found: {found}") from error


class FixedNetwork(StepNetwork):
    """A decoder of fixed length without a cache: see StepNetwork. One thread."""

    capacity = 0
    """Tokens in the sequence that each step computes, prompt included."""

    def __init__(self, bundle: Bundle, tables: Tables) -> None:
        """`tables`: of the host, with at least as many positions as the sequence has tokens."""
        self._bundle, self._tables = bundle, tables
        self._tokens: list[int] = []

    def begin(self, states: States, positions: int) -> None:
        """Begin a window: states (P, d_model) float32. `positions` is ignored: P is fixed, without
        silence behind."""
        self._set_states(states)
        self._tokens.clear()

    def advance(
        self, tokens: Sequence[int], wanted: Sequence[int], started: Sequence[int] = ()
    ) -> Step:
        """See StepNetwork. Raises NpuError."""
        rows = [len(self._tokens) + index for index in wanted]
        self._tokens += tokens
        embedding, places = self._tables
        embedded = embed((embedding, places[: self.capacity]), self._tokens)
        joined = np.concatenate([part[rows] for part in self._compute(embedded)], axis=-1)
        return Step.of(joined, self._bundle, started)

    @abstractmethod
    def _set_states(self, states: States) -> None:
        """Use these states from now on."""

    @abstractmethod
    def _compute(self, embedded: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return the parts (capacity, n) of the logits of a sequence (capacity, d_model)."""


class NpuDecoder(FixedNetwork):
    """The decoder's network on an open chip."""

    def __init__(self, npu: Npu, files: DecoderFiles, within_ms: int = STEP_WITHIN_MS) -> None:
        """Load it beside the encoder; a step may take `within_ms`. Raises NpuError."""
        bundle = files.bundle
        super().__init__(bundle, files.tables)
        self._binding, self._files, self._within_ms = npu.binding, files, within_ms
        self._parts: tuple[str, ...] = ()
        """Names of the outputs in the order of the vocabulary."""
        self.model = npu.load(files.hef, self._check)
        states, embedded = sorted(self.model.inputs)
        self._states = self.model.inputs[states].reshape(bundle.positions, bundle.d_model)
        self._embedded = self.model.inputs[embedded].reshape(self.capacity, bundle.d_model)

    def _set_states(self, states: States) -> None:
        self._states[:] = states

    def _compute(self, embedded: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        self._embedded[:] = embedded
        self.model.run("decoding", self._within_ms)
        return [self.model.outputs[name].reshape(self.capacity, -1) for name in self._parts]

    def _check(
        self, inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]]
    ) -> None:
        """Raise NpuError unless the edges are those of this model's decoder, in a known order."""
        bundle, most = (
            self._files.bundle,
            min(len(self._files.tables[1]), self._files.bundle.max_tokens),
        )
        rows = [_rows(inputs[name]) for name in sorted(inputs)]
        parts = [_rows(shape) for shape in outputs.values()]
        length = rows[-1][0]
        self._parts = tuple(self._binding.HEF(str(self._files.hef)).get_sorted_output_names())
        self.capacity = length
        if (
            rows != [(bundle.positions, bundle.d_model), (length, bundle.d_model)]
            or not len(bundle.prompt) < length <= most
            or {count for count, _ in parts} != {length}
            or sum(width for _, width in parts) != bundle.vocabulary_size
            or sorted(self._parts) != sorted(outputs)
        ):
            found = ", ".join(f"{name} {shape}" for name, shape in (inputs | outputs).items())
            raise NpuError(
                "hef refused",
                f"{self._files.hef}: expected inputs (1, {bundle.positions}, {bundle.d_model}) and "
                f"(L, 1, {bundle.d_model}), L from {len(bundle.prompt) + 1} to {most}, and outputs "
                f"of L rows, {bundle.vocabulary_size} columns in all, found {found}, in the order "
                f"{', '.join(self._parts)}; it is not this model's decoder",
            )


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (n, width) of an edge (1, n, width) or (n, 1, width); (0, 0) for other shapes."""
    if len(shape) != 3 or 1 not in shape[:2]:
        return 0, 0
    return shape[0] * shape[1], shape[2]


@contextmanager
def open_on_npu(
    settings: Settings, bundle: Bundle, folder: Path | None = None
) -> Iterator[Transcriber]:
    """Yield a transcriber whose encoder and decoder are both on the Hailo, with the decoder below
    `folder` (None: in the bundle's folder). What looks into the KV cache is off: words of the home,
    beams, the address phrase, another language than the bundle's.

    Raises ModelError, and NpuError as soon as the chip fails.
    """
    files = DecoderFiles(bundle, folder or bundle.folder)
    plain = replace(
        settings,
        vocabulary=replace(settings.vocabulary, boost=0.0),
        encoder=replace(settings.encoder, backend="cpu"),
        decoder=replace(settings.decoder, beam_size=1, language="", languages=()),
        assist=replace(settings.assist, phrase=""),
    )
    with open_transcriber(plain, bundle) as transcriber:
        transcriber.encoder = npu = open_npu(bundle, share=settings.encoder.share)
        decode_through(transcriber, NpuDecoder(npu, files))
        yield transcriber
