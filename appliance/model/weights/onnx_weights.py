"""Whisper's encoder and decoder as exported to ONNX -> weights by Hugging Face's names.

Exporters keep PyTorch's names for biases, norms, convolutions and embeddings, mostly without the
module's own prefix; merged decoders add "_merged_0". Matrices of linear layers are folded into
constants without a name ("onnx::MatMul_242"), transposed; `onnx_layers` finds whose they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from appliance.errors import ModelError
from appliance.model.weights.onnx_file import Scope, open_onnx
from appliance.model.weights.onnx_layers import Layers
from appliance.model.weights.shapes import (
    DECODER,
    EMBEDDING,
    ENCODER,
    SOUND_POSITIONS,
    TIED_OUTPUT,
    WhisperConfig,
    expected_shapes,
)
from appliance.model.weights.stored import StoredTensor, listed, shown

PLACES = ("", "onnx")
SUFFIXES = ("", "_fp16")
ENCODER_STEM, DECODER_STEMS = "encoder_model", ("decoder_model", "decoder_model_merged")
LATER_STEM = "decoder_with_past_model"
QUANTIZED = {"DynamicQuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger"}
QUANTIZED |= {"QLinearMatMul", "QLinearConv", "DynamicQuantizeMatMul", "MatMulNBits", "QAttention"}
QUANTIZED |= {"MatMulBnb4", "MatMulFpQ4", "QGemm", "MatMulIntegerToFloat", "GatherBlockQuantized"}
FUSED = {"Attention", "MultiHeadAttention", "DecoderMaskedMultiHeadAttention"}
FUSED |= {"DecoderAttention", "GroupQueryAttention", "PackedAttention"}
FLOAT_CURE = (
    "get the float32 or float16 files of the same model (encoder_model.onnx and decoder_model.onnx)"
)


def find_onnx(folder: Path) -> list[Path]:
    """The encoder and decoder in `folder` or in its folder onnx, whole precision before half.

    Empty without any. Raises ModelError where there are files, but not these two.
    """
    names: set[str] = set()
    for place in PLACES:
        inside = folder / place
        for suffix in SUFFIXES:
            encoder = inside / f"{ENCODER_STEM}{suffix}.onnx"
            decoders = [inside / f"{stem}{suffix}.onnx" for stem in DECODER_STEMS]
            found = [file for file in decoders if file.is_file()]
            if encoder.is_file() and found:
                return [encoder, found[0]]
        names |= {shown(file.name) for file in inside.glob("*.onnx")}
    if not names:
        return []
    expected = f"{folder}: expected encoder_model.onnx and decoder_model.onnx"
    if any(name.startswith(LATER_STEM) for name in names) and not any(
        name.startswith(tuple(f"{stem}." for stem in DECODER_STEMS)) for name in names
    ):
        expected += f" ({LATER_STEM}.onnx has no keys and values of the sound)"
    raise ModelError(f"{expected}, found {', '.join(sorted(names)[:12])}; {FLOAT_CURE}")


def open_onnx_weights(
    files: Sequence[Path], config: WhisperConfig
) -> tuple[Mapping[str, StoredTensor], list[Path]]:
    """Every weight found in the encoder's and the decoder's file, and all files that hold them.

    What is not found is left out. Raises ModelError where a file cannot be read or understood.
    """
    weights: dict[str, StoredTensor] = {}
    sources: set[Path] = set()
    for half, file in zip((ENCODER, DECODER), files, strict=True):
        scopes, held = open_onnx(file)
        operators = {node.op_type for scope in scopes for node in scope.nodes}
        if quantized := operators & QUANTIZED:
            raise ModelError(
                f"{file}: expected float weights, found a quantised model "
                f"({', '.join(sorted(quantized))}); {FLOAT_CURE}"
            )
        if fused := operators & FUSED:
            raise ModelError(
                f"{file}: expected an export as it comes, found one that was optimised "
                f"({', '.join(sorted(fused))}); get or make it without optimisation"
            )
        weights |= _weights_of(file, scopes, half, config)
        sources |= held
    return weights, sorted(sources)


def _weights_of(
    file: Path, scopes: Sequence[Scope], half: str, config: WhisperConfig
) -> dict[str, StoredTensor]:
    """The weights of one half of the network. Raises ModelError where two claim one place."""
    shapes = {
        name: shape for name, shape in expected_shapes(config).items() if name.startswith(half)
    }
    if half == DECODER:
        shapes[TIED_OUTPUT] = shapes[EMBEDDING]
    weights: dict[str, StoredTensor] = {}
    faults: list[str] = []
    for scope in scopes:
        layers = Layers(scope, half, shapes)
        if half == ENCODER and (table := layers.added(shapes[SOUND_POSITIONS])):
            layers.found.setdefault(SOUND_POSITIONS, replace(table, shape=shapes[SOUND_POSITIONS]))
        faults += layers.faults
        weights = layers.found | weights
    if faults:
        raise ModelError(f"{file}: {listed('doubtful weights', faults)}; export it again")
    return weights
