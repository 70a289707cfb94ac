"""The decoder as a HEF, and the tables from which the host makes its second input: looked at
without a device.

Such a HEF has no cache: each step computes a sequence of fixed length anew. Its inputs are, in
order of their names, encoder states and embedded tokens; its outputs are parts of the logits, whose
order the HEF itself tells. Names and layout are those of the HEFs that Hailo publishes, as its
examples use them; none of these files was ever opened here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ModelError
from appliance.model.bundle import Bundle
from appliance.model.hef import Hef, read_hef

DECODER_HEF = "decoder.hef"
TOKEN_TABLE, PLACE_TABLE = "token_embedding_weight.npy", "onnx_add_input.npy"
"""Named as in Hailo's store."""
PAD = 0
"""Fills the sequence behind its last token, as in Hailo's calibration sets; no token sees those
behind it."""


class DecoderFiles:
    """What a bundle has for a decoder on the NPU."""

    def __init__(self, bundle: Bundle) -> None:
        """Opens the tables. Raises ModelError."""
        self.bundle = bundle
        for name in (DECODER_HEF, TOKEN_TABLE, PLACE_TABLE):
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
        table = np.lib.format.open_memmap(file, mode="r")
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
