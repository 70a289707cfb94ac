"""What a Whisper checkpoint is made of: its files, the network's sizes, every weight's shape.

Names and config keys are those of Hugging Face's WhisperForConditionalGeneration.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.convert.tensors import shown
from appliance.errors import ModelError
from appliance.model import read_json

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
VOCAB_FILE, ADDED_FILE = "vocab.json", "added_tokens.json"
TOKENIZER_FILE = "tokenizer.json"
"""Has all tokens; from transformers 5 on the only file with them."""
GENERATION_FILE = "generation_config.json"
ENCODER, DECODER = "model.encoder", "model.decoder"
SOUND_POSITIONS = f"{ENCODER}.embed_positions.weight"
EMBEDDING = f"{DECODER}.embed_tokens.weight"
TIED_OUTPUT = "proj_out.weight"
"""The output projection; equal to the token embedding, so most checkpoints leave it out."""
LONGEST_WAVE = 10_000
"""Of the position table, in positions over 2 pi (openai/whisper, model.py, `sinusoids`)."""
MOST, MOST_LAYERS = 10_000_000, 256
"""Sizes beyond these are nonsense; a large Whisper has 32 layers and 51866 tokens."""
SNAPSHOTS = "snapshots"
"""The folder of a repository in the hub's cache that has a folder for each commit."""
MODEL_TYPE, ACTIVATION = "whisper", "gelu"


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


def find_snapshot(folder: Path) -> Path:
    """Return the checkpoint that a folder of the hub's cache stands for; else `folder` itself.

    The cache has models--OWNER--NAME/snapshots/COMMIT/, and refs/main with the last commit. Its
    own folder stands for a repository if that is the only one. Raises OSError.
    """
    repositories = [each for each in folder.glob("models--*") if (each / SNAPSHOTS).is_dir()]
    if len(repositories) == 1 and not (folder / CONFIG_FILE).exists():
        folder = repositories[0]
    if not (folder / SNAPSHOTS).is_dir():
        return folder
    commits = sorted((folder / SNAPSHOTS).iterdir())
    main = folder / "refs" / "main"
    named = main.read_text("ascii", "replace").strip() if main.is_file() else ""
    chosen = [each for each in commits if each.name == named] or commits
    return chosen[0] if len(chosen) == 1 else folder


def checkpoint_name(folder: Path) -> str:
    """Return the name of a checkpoint's folder; in the hub's cache, of its repository."""
    folder = find_snapshot(folder).resolve()
    cached = folder.parent.name == SNAPSHOTS
    return folder.parent.parent.name.rpartition("--")[2] if cached else folder.name


def expected_shapes(config: WhisperConfig) -> dict[str, tuple[int, ...]]:
    """Every weight of the network with its shape."""
    d = config.d_model
    shapes: dict[str, tuple[int, ...]] = {
        f"{ENCODER}.conv1.weight": (d, config.num_mel_bins, 3),
        f"{ENCODER}.conv1.bias": (d,),
        f"{ENCODER}.conv2.weight": (d, d, 3),
        f"{ENCODER}.conv2.bias": (d,),
        SOUND_POSITIONS: (config.max_source_positions, d),
        EMBEDDING: (config.vocab_size, d),
        f"{DECODER}.embed_positions.weight": (config.max_target_positions, d),
    }
    for layer in range(config.encoder_layers):
        name = f"{ENCODER}.layers.{layer}"
        shapes |= _attention(f"{name}.self_attn", d)
        shapes |= _feed_forward(name, d, config.encoder_ffn_dim)
    for layer in range(config.decoder_layers):
        name = f"{DECODER}.layers.{layer}"
        shapes |= _attention(f"{name}.self_attn", d) | _attention(f"{name}.encoder_attn", d)
        shapes |= _feed_forward(name, d, config.decoder_ffn_dim)
    for half in (ENCODER, DECODER):
        shapes |= _layer_norm(f"{half}.layer_norm", d)
    return shapes


def parameters(config: WhisperConfig) -> int:
    """How many numbers the weights are."""
    return sum(math.prod(shape) for shape in expected_shapes(config).values())


def sinusoids(positions: int, d_model: int) -> NDArray[np.float32]:
    """The encoder's position table (positions, d_model): sines in the first half of the columns,
    cosines in the second, of geometrically growing wavelength.

    Computed in float32 like Whisper's own, which is never trained. `d_model` is even, from 4.
    """
    step = math.log(LONGEST_WAVE) / (d_model // 2 - 1)
    frequencies = np.exp(np.float32(-step) * np.arange(d_model // 2, dtype=np.float32))
    angles = np.arange(positions, dtype=np.float32)[:, np.newaxis] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _attention(name: str, d: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{name}.k_proj.weight": (d, d)}
    for part in ("q_proj", "v_proj", "out_proj"):
        shapes |= {f"{name}.{part}.weight": (d, d), f"{name}.{part}.bias": (d,)}
    return shapes | _layer_norm(f"{name}_layer_norm", d)


def _feed_forward(name: str, d: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.fc1.weight": (width, d),
        f"{name}.fc1.bias": (width,),
        f"{name}.fc2.weight": (d, width),
        f"{name}.fc2.bias": (d,),
    } | _layer_norm(f"{name}.final_layer_norm", d)


def _layer_norm(name: str, d: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (d,), f"{name}.bias": (d,)}


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
    troubles = [found for name in names if (found := _trouble(name, values))]
    if (activation := values.get("activation_function", ACTIVATION)) != ACTIVATION:
        troubles.append(f"activation_function: expected {ACTIVATION}, found {shown(activation)}")
    if values.get("scale_embedding", False):
        troubles.append("scale_embedding: expected false, found true")
    if not troubles:
        config = WhisperConfig(**{name: values[name] for name in names})
        if config.encoder_attention_heads != config.decoder_attention_heads:
            troubles.append("decoder_attention_heads: expected as many as in the encoder")
        elif config.d_model % config.decoder_attention_heads:
            troubles.append("d_model: expected a multiple of the attention heads")
        else:
            return config
    raise ModelError(f"{file}: " + "; ".join(troubles))


def _trouble(name: str, values: dict[str, Any]) -> str:
    if name not in values:
        return f"{name}: missing"
    value, most = values[name], MOST_LAYERS if name.endswith("_layers") else MOST
    if type(value) is not int or value < 1:
        return f"{name}: expected a whole number from 1, found {shown(repr(value))}"
    return f"{name}: expected at most {most}, found more" if value > most else ""
