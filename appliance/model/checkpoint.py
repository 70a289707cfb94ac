"""A Whisper checkpoint folder (model.safetensors, config.json) -> verified, named weights.

Names and config keys are those of Hugging Face's WhisperForConditionalGeneration.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import load_file

from appliance.errors import ModelError

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"
TIED_OUTPUT = "proj_out.weight"
"""Written by some exporters; equal to the token embedding, so it is left out."""

Weights = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """The sizes of a Whisper network, by config.json's names."""

    d_model: int
    encoder_layers: int
    decoder_layers: int
    encoder_attention_heads: int
    decoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    num_mel_bins: int
    vocab_size: int
    max_source_positions: int
    max_target_positions: int

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.decoder_attention_heads


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A network's sizes and weights."""

    config: WhisperConfig
    weights: Weights
    sha256: str
    """Of model.safetensors."""


def load_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`. Raises ModelError listing everything that is wrong with it."""
    config = read_config(folder / CONFIG_FILE)
    file = folder / WEIGHTS_FILE
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        weights = load_file(file)
    except OSError as error:
        raise ModelError(f"{file}: expected a readable file, found: {error.strerror}") from error
    except (safetensors.SafetensorError, TypeError, KeyError) as error:
        raise ModelError(f"{file}: expected weights in safetensors, found: {error}") from error
    try:
        return Checkpoint(config, check_weights(weights, config), digest)
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None


def read_config(file: Path) -> WhisperConfig:
    """The sizes in a config.json. Raises ModelError listing what is missing or unsupported."""
    values = read_json(file)
    faults = [
        f"{name}: expected a whole number from 1, found {values.get(name)!r}"
        for name in (field.name for field in fields(WhisperConfig))
        if type(values.get(name)) is not int or values[name] < 1
    ]
    if values.get("activation_function", "gelu") != "gelu":
        faults.append(f"activation_function: expected gelu, found {values['activation_function']}")
    if values.get("scale_embedding", False):
        faults.append("scale_embedding: expected false, found true")
    if not faults:
        config = WhisperConfig(**{each.name: values[each.name] for each in fields(WhisperConfig)})
        if config.encoder_attention_heads != config.decoder_attention_heads:
            faults.append("decoder_attention_heads: expected as many as in the encoder")
        elif config.d_model % config.decoder_attention_heads:
            faults.append("d_model: expected a multiple of the attention heads")
        else:
            return config
    raise ModelError(f"{file}: " + "; ".join(faults))


def read_json(file: Path) -> dict[str, Any]:
    """The JSON table in a file. Raises ModelError."""
    try:
        values = json.loads(file.read_bytes())
    except OSError as error:
        raise ModelError(f"{file}: expected a readable file, found: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{file}: expected JSON, found: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file}: expected a JSON table, found {type(values).__name__}")
    return values


def check_weights(weights: Mapping[str, NDArray[Any]], config: WhisperConfig) -> Weights:
    """The weights as float32. Raises ModelError listing all missing, surplus and wrong ones."""
    shapes = expected_shapes(config)
    present = {name: array for name, array in weights.items() if name != TIED_OUTPUT}
    faults = [f"{name}: missing" for name in sorted(shapes.keys() - present.keys())]
    faults += [f"{name}: not expected" for name in sorted(present.keys() - shapes.keys())]
    for name in sorted(shapes.keys() & present.keys()):
        array = present[name]
        if array.shape != shapes[name]:
            faults.append(f"{name}: expected shape {shapes[name]}, found {array.shape}")
        elif not np.issubdtype(array.dtype, np.floating):
            faults.append(f"{name}: expected floating point, found {array.dtype}")
        elif not np.isfinite(array).all():
            faults.append(f"{name}: expected finite numbers, found NaN or infinity")
    if faults:
        raise ModelError(f"{len(faults)} wrong weights: " + "; ".join(faults))
    return {name: np.asarray(array, np.float32) for name, array in present.items()}


def expected_shapes(config: WhisperConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of the network with its shape."""
    d = config.d_model
    encoder, decoder = "model.encoder", "model.decoder"
    shapes: dict[str, tuple[int, ...]] = {
        f"{encoder}.conv1.weight": (d, config.num_mel_bins, 3),
        f"{encoder}.conv1.bias": (d,),
        f"{encoder}.conv2.weight": (d, d, 3),
        f"{encoder}.conv2.bias": (d,),
        f"{encoder}.embed_positions.weight": (config.max_source_positions, d),
        f"{decoder}.embed_tokens.weight": (config.vocab_size, d),
        f"{decoder}.embed_positions.weight": (config.max_target_positions, d),
    }
    for layer in range(config.encoder_layers):
        name = f"{encoder}.layers.{layer}"
        shapes |= _attention(f"{name}.self_attn", d)
        shapes |= _feed_forward(name, d, config.encoder_ffn_dim)
    for layer in range(config.decoder_layers):
        name = f"{decoder}.layers.{layer}"
        shapes |= _attention(f"{name}.self_attn", d) | _attention(f"{name}.encoder_attn", d)
        shapes |= _feed_forward(name, d, config.decoder_ffn_dim)
    for half in (encoder, decoder):
        shapes |= _layer_norm(f"{half}.layer_norm", d)
    return shapes


def _attention(name: str, d: int) -> dict[str, tuple[int, ...]]:
    """An attention block with its layer norm; the key projection has no bias."""
    shapes: dict[str, tuple[int, ...]] = {f"{name}.k_proj.weight": (d, d)}
    for part in ("q_proj", "v_proj", "out_proj"):
        shapes |= {f"{name}.{part}.weight": (d, d), f"{name}.{part}.bias": (d,)}
    return shapes | _layer_norm(f"{name}_layer_norm", d)


def _feed_forward(name: str, d: int, width: int) -> dict[str, tuple[int, ...]]:
    """The two linear layers of a block with their layer norm."""
    return {
        f"{name}.fc1.weight": (width, d),
        f"{name}.fc1.bias": (width,),
        f"{name}.fc2.weight": (d, width),
        f"{name}.fc2.bias": (d,),
    } | _layer_norm(f"{name}.final_layer_norm", d)


def _layer_norm(name: str, d: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (d,), f"{name}.bias": (d,)}
