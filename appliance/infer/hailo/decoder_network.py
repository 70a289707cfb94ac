"""The decoder's network on the NPU: its HEF, the host's tables for it, and its steps.

Such a HEF has no KV cache: each step recomputes a sequence of fixed length. Its inputs are, sorted
by name, encoder states and embedded tokens, which the host computes from two tables; its outputs
are parts of the logits in an order that HailoRT reads from the HEF. Names and layout follow Hailo's
examples for its published HEFs; none of those files was opened here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.infer.hailo.device import NpuModel, Shapes
from appliance.infer.hailo.diagnosis import NpuError
from appliance.infer.network import Step
from appliance.model import DECODER_FILES, DECODER_HEF, PLACE_TABLE, TOKEN_TABLE, Bundle
from appliance.records import States

PAD = 0
"""Token behind the last one, as in Hailo's calibration sets; no token attends to later ones."""
STEP_WITHIN_MS = 400
"""Others have measured 50 to 70 ms for a step; it may have to wait for an encode first."""


class DecoderFiles:
    """A bundle's files for a decoder on the NPU: its HEF, and the tables."""

    def __init__(self, bundle: Bundle) -> None:
        """Open the tables. Raises ModelError."""
        self.bundle = bundle
        for name in DECODER_FILES:
            if name not in bundle.files:
                raise ModelError(
                    f"{bundle.folder}: [decoder] backend = hailo needs {name}, which is missing; "
                    f"roomscribe model add {bundle.name} --hef hailo8 --npu-decoder, or "
                    "backend = cpu, which is faster"
                )
        self._embedding = _table(bundle.folder / TOKEN_TABLE)
        positions = _table(bundle.folder / PLACE_TABLE)
        self._positions = np.array(positions.reshape(-1, positions.shape[-1]), np.float32)
        wanted = (bundle.vocabulary_size, bundle.d_model)
        if self._embedding.shape != wanted:
            raise _fault(bundle, TOKEN_TABLE, f"shape {wanted}", f"{self._embedding.shape}")
        if self._positions.shape[1] != bundle.d_model:
            rows = f"rows of {bundle.d_model} numbers"
            raise _fault(bundle, PLACE_TABLE, rows, f"{positions.shape}")

    @property
    def hef(self) -> Path:
        """The decoder's network."""
        return self.bundle.folder / DECODER_HEF

    @property
    def most(self) -> int:
        """Most tokens of a sequence, prompt included."""
        return len(self._positions)

    def embed(self, tokens: Sequence[int], length: int) -> NDArray[np.float32]:
        """Return (length, d_model) float32: token plus position embeddings of `tokens`, padded."""
        sequence = np.full(length, PAD)
        sequence[: len(tokens)] = tokens
        embedded: NDArray[np.float32] = self._embedding[sequence].astype(np.float32)
        return embedded + self._positions[:length]


def _table(file: Path) -> NDArray[np.floating]:
    """Return the memory-mapped numbers of a .npy file. Raises ModelError."""
    try:
        table: NDArray[np.floating] = np.lib.format.open_memmap(file, mode="r")
    except (OSError, ValueError) as error:
        found = " ".join(str(error).split())
        raise ModelError(
            f"{file}: expected a table of numbers (.npy), found: {found}; install the model again"
        ) from error
    if table.dtype.kind != "f" or table.ndim < 2:
        raise ModelError(
            f"{file}: expected a table of floating-point numbers, found {table.dtype} of shape "
            f"{table.shape}; install the model again"
        )
    return table


def _fault(bundle: Bundle, name: str, expected: str, found: str) -> ModelError:
    return ModelError(
        f"{bundle.folder / name}: expected {expected} for model {bundle.name}, found {found}; "
        f"roomscribe model add {bundle.name} --hef hailo8 --npu-decoder, "
        "or [decoder] backend = cpu"
    )


class NpuDecoder:
    """The decoder's network on an open chip. One thread; one window at a time."""

    def __init__(self, binding: Any, device: Any, files: DecoderFiles, within_ms: int) -> None:
        """Load it onto `device`, an open VDevice; a step may take `within_ms`. Raises NpuError."""
        self.capacity = 0
        """Tokens in the sequence that each step computes, prompt included."""
        self._binding, self._files, self._within_ms = binding, files, within_ms
        self._tokens: list[int] = []
        self._parts: tuple[str, ...] = ()
        """Names of the outputs in the order of the vocabulary."""
        self.model = NpuModel(binding, device, files.hef, self._check)
        states, embedded = sorted(self.model.inputs)
        bundle = files.bundle
        self._states = self.model.inputs[states].reshape(bundle.positions, bundle.d_model)
        self._embedded = self.model.inputs[embedded].reshape(self.capacity, bundle.d_model)

    def begin(self, states: States, positions: int) -> None:
        """Begin a window: states (P, d_model) float32. `positions` is ignored: the HEF's number is
        fixed."""
        self._states[:] = states
        self._tokens.clear()

    def advance(
        self, tokens: Sequence[int], wanted: Sequence[int], started: Sequence[int] = ()
    ) -> Step:
        """See StepNetwork. Raises NpuError."""
        rows = [len(self._tokens) + index for index in wanted]
        self._tokens += tokens
        self._embedded[:] = self._files.embed(self._tokens, self.capacity)
        self.model.run(self._within_ms)
        parts = [self.model.outputs[name].reshape(self.capacity, -1) for name in self._parts]
        joined = np.concatenate([part[rows] for part in parts], axis=-1)
        self.model.check_finite(joined)
        return Step.of(joined, self._files.bundle, started)

    def _check(self, inputs: Shapes, outputs: Shapes) -> None:
        """Raise NpuError unless the edges are those of this model's decoder, in a known order."""
        bundle, most = self._files.bundle, min(self._files.most, self._files.bundle.max_tokens)
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
                f"{', '.join(self._parts)}; it is not this model's decoder; set [decoder] backend "
                "= cpu",
            )


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (n, width) of an edge (1, n, width) or (n, 1, width); (0, 0) for other shapes."""
    if len(shape) != 3 or 1 not in shape[:2]:
        return 0, 0
    return shape[0] * shape[1], shape[2]
