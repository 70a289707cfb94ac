"""The decoder's network on the chip: its HEF, the host's tables for it, and its steps.

Such a HEF has no cache: each step computes a sequence of fixed length anew. Its inputs are, in
order of their names, encoder states and embedded tokens, which the host makes from two tables; its
outputs are parts of the logits, whose order the HEF itself tells. Names and layout are those of the
HEFs that Hailo publishes, as its examples use them; none of these files was ever opened here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.infer.hailo.device import NpuModel, Shapes
from appliance.infer.hailo.errors import NpuError
from appliance.infer.network import Step
from appliance.model import (
    DECODER_FILES,
    DECODER_HEF,
    PLACE_TABLE,
    TOKEN_TABLE,
    Bundle,
    Hef,
    read_hef,
)
from appliance.records import States

PAD = 0
"""Fills the sequence behind its last token, as in Hailo's calibration sets; no token sees those
behind it."""
STEP_WITHIN_MS = 400
"""A step takes some 50 to 70 ms by what others have measured; it may wait for an encode before."""


class DecoderFiles:
    """What a bundle has for a decoder on the NPU; looked at without a device."""

    def __init__(self, bundle: Bundle) -> None:
        """Opens the tables. Raises ModelError."""
        self.bundle = bundle
        for name in DECODER_FILES:
            if name not in bundle.files:
                raise ModelError(
                    f"{bundle.folder}: expected {name} in the model, as [decoder] backend = hailo "
                    f"wants it, found none; roomscribe model add {bundle.name} --hef hailo8 "
                    "--npu-decoder, or backend = cpu, which is faster"
                )
        self._embedding = _table(bundle.folder / TOKEN_TABLE)
        places = _table(bundle.folder / PLACE_TABLE)
        self._places = np.array(places.reshape(-1, places.shape[-1]), np.float32)
        wanted = (bundle.vocabulary_size, bundle.d_model)
        if self._embedding.shape != wanted:
            raise _fault(bundle, TOKEN_TABLE, f"shape {wanted}", f"{self._embedding.shape}")
        if self._places.shape[1] != bundle.d_model:
            raise _fault(
                bundle, PLACE_TABLE, f"rows of {bundle.d_model} numbers", f"{places.shape}"
            )
        if not len(bundle.prompt) < self.length <= bundle.max_tokens:
            limits = f"{len(bundle.prompt) + 1} to {bundle.max_tokens} rows"
            raise _fault(bundle, PLACE_TABLE, limits, str(self.length))

    @property
    def length(self) -> int:
        """Tokens in the sequence that each step computes, prompt included."""
        return len(self._places)

    def embed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Placed embeddings (length, d_model) float32 of up to `length` tokens, padded."""
        sequence = np.full(self.length, PAD)
        sequence[: len(tokens)] = tokens
        placed: NDArray[np.float32] = self._embedding[sequence].astype(np.float32) + self._places
        return placed

    def verify(self) -> Hef:
        """The HEF, if it is whole and fits bundle and tables, as far as it tells. Touches no
        device. Raises ModelError.
        """
        bundle = self.bundle
        hef = read_hef(bundle.folder / DECODER_HEF)
        hef.check_known()
        if hef.inputs and hef.outputs:
            width, found = bundle.d_model, sorted(hef.inputs, key=lambda edge: edge.name)
            inputs = [bundle.positions * width, self.length * width]
            logits = self.length * bundle.vocabulary_size
            if [edge.size for edge in found] != inputs or sum(
                edge.size for edge in hef.outputs
            ) != logits:
                edges = ", ".join(f"{edge.name} {edge.shape}" for edge in (*found, *hef.outputs))
                raise ModelError(
                    f"{hef.file}: expected {self.expected()}, found {edges}; it is the decoder of "
                    f"another model or window: roomscribe model add {bundle.name} --hef hailo8 "
                    "--npu-decoder, or [decoder] backend = cpu"
                )
        return hef

    def expected(self) -> str:
        """The edges that a fitting HEF has, for messages."""
        bundle = self.bundle
        return (
            f"inputs (1, {bundle.positions}, {bundle.d_model}) and "
            f"({self.length}, 1, {bundle.d_model}), and outputs of {self.length} rows, "
            f"{bundle.vocabulary_size} columns in all"
        )


def _table(file: Path) -> NDArray[np.floating]:
    """The numbers in a .npy file, read when they are asked for. Raises ModelError."""
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
    """The decoder without its rules, on an open chip. One thread; one window at a time."""

    def __init__(
        self, binding: Any, device: Any, files: DecoderFiles, hef: Hef, within_ms: int
    ) -> None:
        """`device` is an open VDevice; a step may take `within_ms`. Raises NpuError."""
        self.capacity = files.length
        self._files, self._hef, self._within_ms = files, hef, within_ms
        self._kept, self._left_out = files.bundle.kept, files.bundle.left_out
        self._tokens: list[int] = []
        self._parts: tuple[str, ...] = ()
        """Outputs, in the order of the vocabulary."""
        self.model = NpuModel(binding, device, hef, self._check)
        states, embedded = sorted(self.model.inputs)
        bundle = files.bundle
        self._states = self.model.inputs[states].reshape(bundle.positions, bundle.d_model)
        self._embedded = self.model.inputs[embedded].reshape(self.capacity, bundle.d_model)

    def begin(self, states: States, positions: int) -> None:
        """Begins a window: states (P, d_model) float32. A HEF has as many positions as it was
        compiled for, whatever `positions` says."""
        self._states[:] = states
        self._tokens.clear()

    def advance(
        self, tokens: Sequence[int], wanted: Sequence[int], started: Sequence[int] = ()
    ) -> Step:
        """The step of these token ids, behind those before; `wanted` are the indices of those asked
        for, `started` the indices of the wanted whose logits are to be those of all tokens.

        Raises NpuError.
        """
        rows = [len(self._tokens) + index for index in wanted]
        self._tokens += tokens
        self._embedded[:] = self._files.embed(self._tokens)
        self.model.run(self._within_ms)
        parts = [self.model.outputs[name].reshape(self.capacity, -1) for name in self._parts]
        every = np.concatenate([part[rows] for part in parts], axis=-1)
        self.model.check_finite(every)
        logits = np.take(every, self._kept, axis=-1)
        odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
        odds /= odds.sum(axis=-1, keepdims=True)
        left_out = every[list(started)][:, self._left_out]
        exact = np.empty((len(rows), 0), np.float32)
        return Step(logits, odds, left_out, exact.astype(np.int64), exact)

    def _check(self, inputs: Shapes, outputs: Shapes) -> None:
        """Raises NpuError unless the edges are a decoder's of the model, and in a known order."""
        bundle, length = self._files.bundle, self.capacity
        rows = [_rows(inputs[name]) for name in sorted(inputs)]
        parts = [_rows(shape) for shape in outputs.values()]
        if (
            rows != [(bundle.positions, bundle.d_model), (length, bundle.d_model)]
            or {count for count, _ in parts} != {length}
            or sum(width for _, width in parts) != bundle.vocabulary_size
        ):
            found = ", ".join(f"{name} {shape}" for name, shape in (inputs | outputs).items())
            raise NpuError(
                "hef refused",
                f"{self._hef.file}: expected {self._files.expected()}, found {found}; "
                "it is not this model's decoder; [decoder] backend = cpu does without",
            )
        self._parts = self._hef.output_order
        if sorted(self._parts) != sorted(outputs):
            raise NpuError(
                "hef refused",
                f"{self._hef.file}: expected it to tell the order of {', '.join(outputs)}, found "
                f"{', '.join(self._parts) or 'none'}; [decoder] backend = cpu does without",
            )


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Number and width of the rows in an edge (1, n, width) or (n, 1, width); (0, 0) for others,
    whose numbers lie otherwise."""
    if len(shape) != 3 or 1 not in shape[:2]:
        return 0, 0
    return shape[0] * shape[1], shape[2]
