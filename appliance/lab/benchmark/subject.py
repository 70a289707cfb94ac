"""What is measured: one checkpoint, and the bundle that the product makes of it.

A checkpoint of exactly Whisper's shape with random weights: speed and memory need no others.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.convert import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Checkpoint,
    Recipe,
    WhisperConfig,
    build_bundle,
    expected_shapes,
    load_checkpoint,
)
from appliance.errors import ConfigError
from appliance.model import Bundle, load_bundle


def _sized(d_model: int, layers: int, heads: int) -> WhisperConfig:
    return WhisperConfig(
        d_model=d_model,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * d_model,
        decoder_ffn_dim=4 * d_model,
        num_mel_bins=80,
        vocab_size=51_865,
        max_source_positions=1500,
        max_target_positions=448,
    )


SHAPES = {"tiny": _sized(384, 4, 6), "base": _sized(512, 6, 8)}
"""openai/whisper-tiny's and whisper-base's sizes (their config.json)."""
TEXT_TOKENS, LANGUAGES = 50_257, 99
OTHER_LETTERS = 7_876
"""Text tokens of the multilingual vocabulary with letters of other scripts than Latin."""
ALPHA = "\u00ce\u00b1"
"""The Greek letter in byte letters."""
SPACE = 220
"""Whisper suppresses it at the first step (generation_config.json, begin_suppress_tokens)."""
SEED = 20


def write_random_checkpoint(config: WhisperConfig, folder: Path) -> Path:
    """A checkpoint folder of these sizes, with Whisper's special tokens at their ids and made-up
    pieces of text. The weights are the same at every call."""
    rng = np.random.Generator(np.random.PCG64(SEED))
    folder.mkdir(parents=True)
    _write_weights(rng, expected_shapes(config), folder / WEIGHTS_FILE)
    special = special_tokens()
    generation = {
        "is_multilingual": True,
        "begin_suppress_tokens": [SPACE, special["<|endoftext|>"]],
        "suppress_tokens": [],
    }
    model = {"model_type": "whisper", "activation_function": "gelu", **asdict(config)}
    for name, values in (
        (CONFIG_FILE, model),
        ("vocab.json", _pieces()),
        ("added_tokens.json", special),
        ("generation_config.json", generation),
    ):
        (folder / name).write_text(json.dumps(values), encoding="utf-8")
    return folder


def _write_weights(
    rng: np.random.Generator, shapes: Mapping[str, tuple[int, ...]], file: Path
) -> None:
    """A file in safetensors' format (its README): the header's length in 8 bytes, the header in
    JSON, the tensors one behind the other."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            stream.write(_weight(rng, name, shape).astype("<f4").tobytes())


def _weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Noise in the size that keeps the signal of order one through the network."""
    noise = rng.standard_normal(shape, np.float32)
    scaled: NDArray[np.floating]
    if name.endswith("layer_norm.weight"):
        scaled = 1.0 + 0.1 * noise
    elif name.endswith("bias"):
        scaled = 0.03 * noise
    elif "embed_positions" in name:
        scaled = 0.5 * noise
    elif "embed_tokens" in name:
        scaled = 2.0 * noise / np.sqrt(shape[1])
    else:
        scaled = noise / np.sqrt(np.prod(shape[1:]))
    return scaled.astype(np.float32)


def _pieces() -> dict[str, int]:
    """TEXT_TOKENS pieces in byte letters: numbers written with 16 letters, the last OTHER_LETTERS
    of them with a Greek letter."""
    letters = "abcdefghijklmnop"
    first = TEXT_TOKENS - OTHER_LETTERS
    return {
        ALPHA * (number >= first) + "".join(letters[int(digit, 16)] for digit in f"{number:x}"): (
            number
        )
        for number in range(TEXT_TOKENS)
    }


def special_tokens() -> dict[str, int]:
    """The multilingual special tokens in Whisper's order; English alone has its real name."""
    languages = ["<|en|>", *(f"<|{chr(97 + n // 26)}{chr(97 + n % 26)}x|>" for n in range(98))]
    names = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        *languages[:LANGUAGES],
        "<|translate|>",
        "<|transcribe|>",
        "<|startoflm|>",
        "<|startofprev|>",
        "<|nospeech|>",
        "<|notimestamps|>",
    ]
    return {name: TEXT_TOKENS + index for index, name in enumerate(names)}


@dataclass(frozen=True, slots=True)
class Subject:
    """The weights that every row runs."""

    name: str
    random: bool
    """True when the weights are made up: speed and memory are right, texts mean nothing."""
    folder: Path
    """The checkpoint's."""
    checkpoint: Checkpoint
    bundle: Bundle


def make_subject(
    shape: str, checkpoint: Path | None, window_s: float, scratch: Path, quantize: str = "int8"
) -> Subject:
    """The random model of `shape` if one is given, else `checkpoint`, with the bundle for windows
    of `window_s` that `roomscribe model add` would build of it, in `scratch`.

    Raises ConfigError when neither is given, ModelError for a bad checkpoint.
    """
    if shape:
        folder = write_random_checkpoint(SHAPES[shape], scratch / "checkpoint")
        name = f"whisper-{shape}'s shape"
    elif checkpoint:
        folder, name = checkpoint, checkpoint.resolve().name
    else:
        raise ConfigError(
            "benchmark: expected a checkpoint, of which every row is made (an installed bundle has "
            "none in it); give --checkpoint FOLDER (`roomscribe model fetch` brings one), or "
            "--random-weights tiny"
        )
    recipe = Recipe(name="benchmark", window_s=window_s, quantize=quantize)
    build_bundle(folder, scratch / "bundle", recipe)
    bundle = load_bundle(scratch / "bundle")
    return Subject(name, bool(shape), folder, load_checkpoint(folder), bundle)


def wanted_rows(given: str, known: Sequence[str]) -> tuple[str, ...]:
    """The rows named in `given`, a list with commas; all when it is empty. Raises ConfigError."""
    names = tuple(name.strip() for name in given.split(",") if name.strip()) or tuple(known)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"benchmark --rows: expected some of {', '.join(known)}, found {', '.join(unknown)}"
        )
    return names
