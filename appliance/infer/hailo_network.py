"""The decoder's network on the chip: tokens in, logits out, all positions computed at each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.infer.hailo_decoder_files import DecoderFiles
from appliance.infer.hailo_errors import NpuError
from appliance.infer.hailo_model import NpuModel, Shapes
from appliance.model.hef import Hef
from appliance.records import States

STEP_WITHIN_MS = 400
"""A step takes some 50 to 70 ms by what others have measured; it may wait for an encode before."""


class NpuDecoder:
    """The decoder without its rules, on an open chip. One thread; one window at a time."""

    def __init__(self, binding: Any, device: Any, files: DecoderFiles, hef: Hef) -> None:
        """`device` is an open VDevice. Raises NpuError."""
        self.length = files.length
        """Tokens in the sequence, prompt included."""
        self._files, self._hef = files, hef
        self._parts: tuple[str, ...] = ()
        """Outputs, in the order of the vocabulary."""
        self.model = NpuModel(binding, device, hef, self._check)
        states, embedded = sorted(self.model.inputs)
        bundle = files.bundle
        self._states = self.model.inputs[states].reshape(bundle.positions, bundle.d_model)
        self._embedded = self.model.inputs[embedded].reshape(self.length, bundle.d_model)

    def listen(self, states: States) -> None:
        """Begins a window: states (P, d_model) float32."""
        self._states[:] = states

    def logits(self, tokens: Sequence[int], wanted: Sequence[int]) -> NDArray[np.float32]:
        """Logits (w, vocabulary) float32 after the w `wanted` ones of the tokens, by their index.

        Raises NpuError.
        """
        self._embedded[:] = self._files.embed(tokens)
        self.model.run(STEP_WITHIN_MS)
        parts = [self.model.outputs[name].reshape(self.length, -1) for name in self._parts]
        logits = np.concatenate([part[list(wanted)] for part in parts], axis=-1)
        self.model.check_finite(logits)
        return logits

    def _check(self, inputs: Shapes, outputs: Shapes) -> None:
        """Raises NpuError unless the edges are a decoder's of the model, and in a known order."""
        bundle, length = self._files.bundle, self.length
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
