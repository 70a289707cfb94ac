"""A bundle's weights, read back from its ONNX graphs, as numpy's arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from appliance.convert.shapes import WhisperConfig

DECODER = "model.decoder"
EMBEDDING = f"{DECODER}.embed_tokens.weight"
Weights = dict[str, NDArray[np.float32]]


def _constants(bundle: Path) -> Weights:
    """Every float32 constant of the three graphs by its name there."""
    found: Weights = {}
    for graph in ("encoder", "cross", "step"):
        model = onnx.load(str(bundle / f"{graph}.onnx"), load_external_data=False)
        for tensor in model.graph.initializer:
            if tensor.data_type == TensorProto.FLOAT and not tensor.external_data:
                found[tensor.name] = numpy_helper.to_array(tensor)
    return found


def _embedding(bundle: Path, size: WhisperConfig, suppressed: list[int]) -> NDArray[np.float32]:
    """The token embedding (vocabulary, d_model): in its file suppressed tokens come last."""
    rows = np.fromfile(bundle / "embedding.bin", "<f4").reshape(size.vocab_size, size.d_model)
    table = np.empty_like(rows)
    kept = np.setdiff1d(np.arange(size.vocab_size), suppressed)
    table[np.concatenate([kept, np.sort(suppressed)])] = rows
    return table


def _unfold(constants: Weights, size: WhisperConfig) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Weights under Hugging Face's names, what the graphs' writer did undone.

    Matrices lie transposed, several beside each other are one; a bias before a layer norm is the
    norm's. The bias of the decoder's cross-attended values is 0: the graph has it elsewhere.
    """
    width, layers = size.d_model, size.decoder_layers
    queries = (width / size.decoder_attention_heads) ** 0.5
    for name, array in constants.items():
        stem, _, kind = name.rpartition(".")
        ending = {"matrix": "weight", "offset": "bias"}.get(kind, kind)
        whole = array.T if kind == "matrix" else array
        if name == "positions":
            yield "model.encoder.embed_positions.weight", array
        elif stem == "cross":
            for i, part in enumerate(np.split(whole, 2 * layers)):
                block = f"{DECODER}.layers.{i // 2}.encoder_attn"
                yield f"{block}.{'kv'[i % 2]}_proj.weight", part
        elif stem.endswith(".qkv"):
            for letter, part in zip("qkv", np.split(whole, 3), strict=True):
                if (letter, ending) != ("k", "bias"):
                    yield f"{stem.removesuffix('qkv')}{letter}_proj.{ending}", part
        elif stem.endswith(".encoder_attn.q_proj"):
            yield f"{stem}.{ending}", whole * np.float32(queries)
        elif kind == "before":
            yield _before(stem, layers), array
        else:
            yield f"{stem}.{ending}", whole
    for layer in range(layers):
        block = f"{DECODER}.layers.{layer}.encoder_attn"
        yield f"{block}.v_proj.bias", np.zeros(width, np.float32)


def _before(norm: str, layers: int) -> str:
    """The bias that is added in front of a layer norm of the decoder."""
    stem, _, which = norm.rpartition(".")
    if which == "encoder_attn_layer_norm":
        return f"{stem}.self_attn.out_proj.bias"
    if which == "final_layer_norm":
        return f"{stem}.encoder_attn.out_proj.bias"
    layer = layers if which == "layer_norm" else int(stem.rpartition(".")[2])
    return f"{DECODER}.layers.{layer - 1}.fc2.bias"


def read_arrays(bundle: Path) -> tuple[WhisperConfig, Weights]:
    """Return the sizes of a bundle's network and its weights under Hugging Face's names, float32.

    Only of a bundle that is not quantised: the caller sees by their names which weights lack.
    """
    described = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    constants = _constants(bundle)
    size = WhisperConfig(
        vocab_size=described["vocabulary_size"],
        d_model=described["d_model"],
        encoder_layers=described["encoder_layers"],
        decoder_layers=described["decoder_layers"],
        encoder_attention_heads=described["heads"],
        decoder_attention_heads=described["heads"],
        encoder_ffn_dim=len(constants["model.encoder.layers.0.fc1.offset"]),
        decoder_ffn_dim=len(constants[f"{DECODER}.layers.0.fc1.offset"]),
        num_mel_bins=described["n_mels"],
        max_source_positions=described["positions"],
        max_target_positions=described["max_tokens"],
    )
    weights = dict(_unfold(constants, size))
    weights[EMBEDDING] = _embedding(bundle, size, described["suppressed"])
    return size, weights
