"""config.json -> the sizes of the network, verified."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from appliance.errors import ModelError
from appliance.model.weights.shapes import WhisperConfig
from appliance.model.weights.stored import shown, unreadable

JSON_LIMIT = 64_000_000
"""Bytes; the largest one of a Whisper, its tokenizer's, has four million."""
MOST = 10_000_000
MOST_LAYERS = 256
"""Sizes beyond these are nonsense; a large Whisper has 32 layers and 51866 tokens."""
MODEL_TYPE, ACTIVATION = "whisper", "gelu"


def read_config(file: Path) -> WhisperConfig:
    """The sizes in a config.json. Raises ModelError listing what is missing or unsupported."""
    values = read_json(file)
    kind = values.get("model_type", MODEL_TYPE)
    if kind != MODEL_TYPE:
        raise ModelError(
            f"{file}: model_type: expected {MODEL_TYPE}, found {shown(kind)}; only Whisper's "
            "checkpoints become bundles"
        )
    names = [field.name for field in fields(WhisperConfig)]
    faults = [fault for name in names if (fault := _fault(name, values))]
    if (activation := values.get("activation_function", ACTIVATION)) != ACTIVATION:
        faults.append(f"activation_function: expected {ACTIVATION}, found {shown(activation)}")
    if values.get("scale_embedding", False):
        faults.append("scale_embedding: expected false, found true")
    if not faults:
        config = WhisperConfig(**{name: values[name] for name in names})
        if config.encoder_attention_heads != config.decoder_attention_heads:
            faults.append("decoder_attention_heads: expected as many as in the encoder")
        elif config.d_model % config.decoder_attention_heads:
            faults.append("d_model: expected a multiple of the attention heads")
        else:
            return config
    raise ModelError(f"{file}: " + "; ".join(faults))


def _fault(name: str, values: dict[str, Any]) -> str:
    """What is wrong with one size; empty where nothing is."""
    if name not in values:
        return f"{name}: missing"
    value, most = values[name], MOST_LAYERS if name.endswith("_layers") else MOST
    if type(value) is not int or value < 1:
        return f"{name}: expected a whole number from 1, found {shown(repr(value))}"
    return f"{name}: expected at most {most}, found more" if value > most else ""


def read_json(file: Path) -> dict[str, Any]:
    """The JSON table in a file. Raises ModelError."""
    try:
        if file.stat().st_size > JSON_LIMIT:
            raise ModelError(f"{file}: expected at most {JSON_LIMIT} bytes of JSON, found more")
        values = json.loads(file.read_bytes())
    except OSError as error:
        raise unreadable(file, error) from error
    except RecursionError:
        raise ModelError(f"{file}: expected JSON, found it nested too deep") from None
    except ValueError as error:
        raise ModelError(f"{file}: expected JSON, found: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file}: expected a JSON table, found {type(values).__name__}")
    return values
