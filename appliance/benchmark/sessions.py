"""ONNX Runtime as the rivals use it: its defaults, plain numpy in and out, its own quantiser."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

QUANTIZED = ("MatMul", "Attention", "Gather", "EmbedLayerNormalization", "Transpose")
"""Operators that optimum quantises by default (ORT_DEFAULT_OPS_DYNAMIC_QUANTIZATION, without LSTM):
no convolutions."""


class PlainSession:
    """A graph as Hugging Face's runtime runs it on the CPU: every optimisation, no IOBinding.

    Without x64quantprecision, too, as it comes; ours has it (infer/sessions.py).
    """

    def __init__(self, file: Path, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        self.outputs = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.float32]]:
        """Every output by its name."""
        return dict(zip(self.outputs, self._session.run(None, dict(feeds)), strict=True))


def quantize(file: Path, out: Path) -> None:
    """Writes `file` with INT8 weights (one scale a matrix, symmetric) and activations quantised as
    they come: onnxruntime.quantization.quantize_dynamic as `optimum-cli onnxruntime quantize` calls
    it, without --per_channel, which is slower."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(
            file,
            out,
            op_types_to_quantize=[*QUANTIZED],
            per_channel=False,
            weight_type=QuantType.QInt8,
        )
    finally:
        logging.disable(logging.NOTSET)


def version() -> str:
    """onnxruntime's."""
    return str(onnxruntime.__version__)
