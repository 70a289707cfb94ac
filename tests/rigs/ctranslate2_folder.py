"""Writes a Whisper as CTranslate2 stores it, by its format's description, without its library.

Format: OpenNMT/CTranslate2, python/ctranslate2/specs/model_spec.py; the fused matrices and names:
python/ctranslate2/converters/transformers.py, WhisperLoader.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rigs.models import SPECIALS, pieces

from appliance.convert.shapes import WhisperConfig
from appliance.convert.tensors import Weights

Variables = dict[str, NDArray[Any]]
TYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4, "uint16": 5}
"""numpy's names; uint16 stands for bfloat16."""
ALIASES = {"decoder/projection/weight": "decoder/embeddings/weight"}


def write_ctranslate2(
    folder: Path,
    config: WhisperConfig,
    weights: Weights,
    kind: str = "float32",
    *,
    change: Callable[[Variables], object] = lambda _: None,
    vocabulary: str = "vocabulary.txt",
) -> Path:
    """A folder as ct2-transformers-converter --quantization `kind` writes it; `change` may damage
    the variables."""
    folder.mkdir(parents=True)
    variables = named(config, weights)
    store(variables, kind)
    change(variables)
    (folder / "model.bin").write_bytes(serialize(variables))
    first_special = config.vocab_size - len(SPECIALS)
    tokens = [*pieces(first_special), *SPECIALS]
    if vocabulary.endswith(".json"):
        (folder / vocabulary).write_text(json.dumps(tokens))
    else:
        (folder / vocabulary).write_text("".join(f"{token}\n" for token in tokens))
    rules = {"suppress_ids": [1, 2], "suppress_ids_begin": [0], "lang_ids": [first_special + 2]}
    (folder / "config.json").write_text(json.dumps(rules | {"alignment_heads": [[0, 0]]}))
    return folder


def named(config: WhisperConfig, weights: Weights) -> Variables:
    """The weights as float32 by CTranslate2's names, with its settings."""
    variables: Variables = {}
    for half, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        stem = f"model.{half}"
        variables[f"{half}/num_heads"] = np.asarray(config.encoder_attention_heads, np.int16)
        variables[f"{half}/position_encodings/encodings"] = weights[
            f"{stem}.embed_positions.weight"
        ]
        norm(variables, f"{half}/layer_norm", weights, f"{stem}.layer_norm")
        for number in range(layers):
            ours, theirs = f"{half}/layer_{number}", f"{stem}.layers.{number}"
            attention(variables, f"{ours}/self_attention", weights, f"{theirs}.self_attn")
            if half == "decoder":
                attention(variables, f"{ours}/attention", weights, f"{theirs}.encoder_attn")
            norm(variables, f"{ours}/ffn/layer_norm", weights, f"{theirs}.final_layer_norm")
            linear(variables, f"{ours}/ffn/linear_0", weights, f"{theirs}.fc1")
            linear(variables, f"{ours}/ffn/linear_1", weights, f"{theirs}.fc2")
    for part in ("conv1", "conv2"):
        linear(variables, f"encoder/{part}", weights, f"model.encoder.{part}")
    variables["decoder/embeddings/weight"] = weights["model.decoder.embed_tokens.weight"]
    settings = {"activation": 3, "alibi": 0, "pre_norm": 1, "scale_embeddings": 0}
    variables |= {f"decoder/{name}": np.asarray(value, np.int8) for name, value in settings.items()}
    return variables | {"decoder/alignment_layer": np.asarray(-1, np.int16)}


def norm(variables: Variables, name: str, weights: Weights, source: str) -> None:
    variables[f"{name}/gamma"] = weights[f"{source}.weight"]
    variables[f"{name}/beta"] = weights[f"{source}.bias"]


def linear(variables: Variables, name: str, weights: Weights, *sources: str) -> None:
    """One matrix and bias, or several one below the other; a missing bias is 0."""
    matrices = [weights[f"{source}.weight"] for source in sources]
    zeros = np.zeros(len(matrices[0]), np.float32)
    variables[f"{name}/weight"] = np.concatenate(matrices)
    variables[f"{name}/bias"] = np.concatenate(
        [weights.get(f"{source}.bias", zeros) for source in sources]
    )


def attention(variables: Variables, name: str, weights: Weights, source: str) -> None:
    norm(variables, f"{name}/layer_norm", weights, f"{source}_layer_norm")
    query, key, value = (f"{source}.{part}_proj" for part in "qkv")
    fused = [[query, key, value]] if name.endswith("self_attention") else [[query], [key, value]]
    for number, sources in enumerate([*fused, [f"{source}.out_proj"]]):
        linear(variables, f"{name}/linear_{number}", weights, *sources)


def store(variables: Variables, kind: str) -> None:
    """Round the numbers to `kind`."""
    for name, array in list(variables.items()):
        if array.ndim and kind == "bfloat16":
            variables[name] = (array.view(np.uint32) >> 16).astype(np.uint16)
        elif array.ndim:
            variables[name] = array.astype(kind)


def serialize(
    variables: Variables, *, version: int = 6, kind: str = "WhisperSpec", revision: int = 3
) -> bytes:
    """The bytes of a model.bin."""
    parts = [struct.pack("<I", version), _text(kind), struct.pack("<II", revision, len(variables))]
    for name, array in sorted(variables.items()):
        parts += [_text(name), struct.pack("<B", array.ndim)]
        parts += [struct.pack("<I", size) for size in array.shape]
        parts += [struct.pack("<BI", TYPES[array.dtype.name], array.nbytes), array.tobytes()]
    parts.append(struct.pack("<I", len(ALIASES)))
    parts += [_text(name) for pair in ALIASES.items() for name in pair]
    return b"".join(parts)


def _text(name: str) -> bytes:
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"
