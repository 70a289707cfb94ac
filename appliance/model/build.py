"""Builds a model bundle from a Whisper checkpoint folder, with onnx and numpy alone.

    python -m appliance.model.build CHECKPOINT_DIR OUT --name home-en --window 10

The folder holds model.safetensors, config.json, vocab.json, and, where the model has them,
added_tokens.json and generation_config.json, all as Hugging Face writes them.

bundle.json of a checkpoint: what a bundle is, but for its files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from appliance.errors import ModelError
from appliance.model.checkpoint import Checkpoint, load_checkpoint
from appliance.model.library import drafted
from appliance.model.shapes import WhisperConfig
from appliance.model.tensors import read_json
from appliance.model.whisper import (
    EMBEDDING_FILE,
    Written,
    write_cross,
    write_embedding,
    write_encoder,
    write_step,
)

SCHEMA = 2
"""Of bundle.json; appliance.model.bundle reads it."""
QUANTIZE = ("none", "int8")
"""none: all weights are float32 and the graphs compute exactly what the checkpoint does. int8: the
matrices are 8 bits wide, the rest and the token embedding float16; computing stays in float32."""
SCANS = ("exact", "int4")
"""int4: the vocabulary is scanned with 4 bits, and the best rows are computed again with 16."""
POSITIONS_PER_SECOND = 50
END, START, NO_TIMESTAMPS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
TRANSCRIBE = "<|transcribe|>"
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")
FIRST_TIMESTAMP = "<|0.00|>"
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a bundle is to be, besides what the checkpoint says."""

    name: str
    window_s: float
    description: str = ""
    source: str = ""
    licence: str = ""
    demo_model: bool = False
    language: str = "en"
    padded_positions: int = 0
    """Encoder positions to pad to by default; 0: as many as the model was trained with."""
    repetition_penalty: float = 1.0
    eot_boost: float = 0.0
    no_speech_sure: float = 1.0
    no_speech_lone: float = 1.0
    quantize: str = "none"
    """One of QUANTIZE."""
    vocabulary_scan: str = "exact"
    """One of SCANS; int4 needs `quantize` int8."""


def window_positions(config: WhisperConfig, window_s: float) -> int:
    """Encoder positions of a window. Raises ModelError for one that the model does not have."""
    positions = round(window_s * POSITIONS_PER_SECOND)
    if abs(positions - window_s * POSITIONS_PER_SECOND) > 1e-6 or not (
        2 <= positions <= config.max_source_positions
    ):
        longest = config.max_source_positions / POSITIONS_PER_SECOND
        raise ModelError(
            f"window: expected a multiple of 0.02 s up to {longest:g} s, found {window_s:g}"
        )
    return positions


def describe(checkpoint: Checkpoint, folder: Path, recipe: Recipe) -> dict[str, Any]:
    """bundle.json, but for its files."""
    config = checkpoint.config
    positions = window_positions(config, recipe.window_s)
    padded = recipe.padded_positions or config.max_source_positions
    if recipe.quantize not in QUANTIZE:
        raise ModelError(f"quantize: expected {' or '.join(QUANTIZE)}, found {recipe.quantize}")
    if recipe.vocabulary_scan not in SCANS[: 1 + (recipe.quantize == "int8")]:
        raise ModelError(
            f"vocabulary scan: expected exact, or int4 with quantize int8, found "
            f"{recipe.vocabulary_scan} with quantize {recipe.quantize}"
        )
    if padded < positions:
        raise ModelError(f"padded positions: expected at least {positions}, found {padded}")
    return {
        "schema": SCHEMA,
        "name": recipe.name,
        "description": recipe.description,
        "source": recipe.source,
        "licence": recipe.licence,
        "demo_model": recipe.demo_model,
        "checkpoint_sha256": checkpoint.sha256,
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "heads": config.decoder_attention_heads,
        "n_mels": config.num_mel_bins,
        "vocabulary_size": config.vocab_size,
        "max_tokens": config.max_target_positions,
        "quantize": recipe.quantize,
        "zero_points": recipe.quantize == "int8",
        "vocabulary_scan": recipe.vocabulary_scan,
        "window_s": recipe.window_s,
        "positions": positions,
        "trained_positions": config.max_source_positions,
        **_describe_tokens(folder, config.vocab_size, recipe.language),
        "guards": {
            "positions": padded,
            "repetition_penalty": recipe.repetition_penalty,
            "eot_boost": recipe.eot_boost,
            "no_speech_sure": recipe.no_speech_sure,
            "no_speech_lone": recipe.no_speech_lone,
        },
    }


def _describe_tokens(folder: Path, vocabulary_size: int, language: str) -> dict[str, Any]:
    """The part of bundle.json about languages, prompt and tokens."""
    vocabulary = read_vocabulary(folder)
    generation_file = folder / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else {}
    special = {name: i for name, i in vocabulary.items() if re.fullmatch(r"<\|.*\|>", name)}
    multilingual = generation.get("is_multilingual", TRANSCRIBE in special)
    prompt = [START, f"<|{language}|>", TRANSCRIBE] if multilingual else [START]
    prompt.append(NO_TIMESTAMPS)
    if missing := [name for name in (*prompt, END) if name not in special]:
        raise ModelError(
            f"{folder}: expected the tokens {', '.join(missing)} in vocab.json or "
            f"added_tokens.json, found {', '.join(sorted(special)[:12]) or 'no special token'}"
        )
    first_special = min(special.values())
    late = [name for name, i in vocabulary.items() if i >= first_special and name not in special]
    if late:
        raise ModelError(
            f"{folder}: expected every special token behind the text, found {late[0]!r} "
            f"after token {first_special}"
        )
    if max(vocabulary.values()) >= vocabulary_size:
        raise ModelError(
            f"{folder}: expected token ids below vocab_size {vocabulary_size}, "
            f"found {max(vocabulary.values())}"
        )
    not_text = set(range(first_special, vocabulary_size)) - {special[END]}
    languages = [match[1] for name in special if (match := LANGUAGE.fullmatch(name))]
    timestamps = special.get(FIRST_TIMESTAMP, special[NO_TIMESTAMPS] + 1)
    return {
        "languages": sorted(languages) if multilingual else [language],
        "language": language,
        "prompt": [special[name] for name in prompt],
        "tokens": {
            "start": special[START],
            "end_of_text": special[END],
            "no_speech": next((special[name] for name in NO_SPEECH if name in special), None),
            "no_timestamps": special[NO_TIMESTAMPS],
            "first_special": first_special,
            "timestamp_begin": timestamps if timestamps < vocabulary_size else None,
        },
        "suppressed": sorted(not_text | set(generation.get("suppress_tokens") or ())),
        "suppressed_first": sorted(generation.get("begin_suppress_tokens") or ()),
    }


def read_vocabulary(folder: Path) -> dict[str, int]:
    """Every token's id, special ones included."""
    added = folder / "added_tokens.json"
    vocabulary = read_json(folder / "vocab.json") | (read_json(added) if added.exists() else {})
    if not vocabulary or not all(type(number) is int for number in vocabulary.values()):
        raise ModelError(f"{folder / 'vocab.json'}: expected a table of tokens and ids")
    return vocabulary


__all__ = ["Recipe", "build_bundle", "identify", "write_json"]


def build_bundle(checkpoint_folder: Path, out: Path, recipe: Recipe) -> None:
    """Writes the bundle folder `out`, whole or not at all; one that is there is replaced.

    Raises ModelError saying everything that is wrong with the checkpoint or does not fit it.
    """
    out = out.absolute()
    if out.exists() and not (out / "bundle.json").is_file():
        raise ModelError(
            f"{out}: expected a bundle to replace or nothing, found something else; move it away"
        )
    checkpoint = load_checkpoint(checkpoint_folder)
    manifest = describe(checkpoint, checkpoint_folder, recipe)
    try:
        with drafted(out) as draft:
            _write_files(checkpoint, manifest, read_vocabulary(checkpoint_folder), draft)
    except OSError as error:
        raise ModelError(
            f"{out}: expected room and leave to write a bundle, found: {error.strerror}"
        ) from error


def _write_files(
    checkpoint: Checkpoint, manifest: dict[str, Any], vocabulary: dict[str, int], folder: Path
) -> None:
    """Writes the bundle's files into an empty folder, bundle.json last."""
    int8, positions = manifest["quantize"] == "int8", manifest["positions"]
    suppressed = np.zeros(manifest["vocabulary_size"], bool)
    suppressed[manifest["suppressed"]] = True
    kept, left_out = np.flatnonzero(~suppressed), np.flatnonzero(suppressed)
    end_of_text, int4 = manifest["tokens"]["end_of_text"], manifest["vocabulary_scan"] == "int4"
    write_embedding(checkpoint, np.concatenate([kept, left_out]), folder / EMBEDDING_FILE, int8)
    write_encoder(checkpoint, positions, folder / "encoder.onnx", int8=int8)
    write_cross(checkpoint, positions, folder / "cross.onnx", int8=int8)
    written = Written(kept, end_of_text, int4)
    write_step(checkpoint, written, positions, folder / "step.onnx", int8=int8)
    write_json(folder / "vocabulary.json", vocabulary)
    files = {file.name: identify(file) for file in sorted(folder.iterdir())}
    write_json(folder / "bundle.json", manifest | {"files": files}, indent=1)


def identify(file: Path) -> dict[str, Any]:
    """A file's size in bytes and SHA-256."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"size": file.stat().st_size, "sha256": digest}


def write_json(file: Path, values: dict[str, Any], indent: int | None = None) -> None:
    """Writes a table as JSON in UTF-8."""
    file.write_text(json.dumps(values, ensure_ascii=False, indent=indent) + "\n", "utf-8")


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser("appliance.model.build", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="folder with model.safetensors and its kin")
    parser.add_argument("out", type=Path, help="bundle folder to write")
    parser.add_argument("--name", required=True, help="name of the bundle")
    parser.add_argument("--window", type=float, required=True, help="length of a window, seconds")
    for option in ("description", "source", "licence"):
        parser.add_argument(f"--{option}", default="")
    parser.add_argument("--language", default="en", help="language of the prompt")
    parser.add_argument("--demo", action="store_true", help="mark as a demonstration model")
    parser.add_argument("--positions", type=int, default=0, help="encoder positions after padding")
    parser.add_argument("--repetition-penalty", type=float, default=1.0)
    parser.add_argument("--eot-boost", type=float, default=0.0)
    parser.add_argument("--no-speech-sure", type=float, default=1.0)
    parser.add_argument("--no-speech-lone", type=float, default=1.0)
    parser.add_argument("--quantize", choices=QUANTIZE, default="none", help="width of the weights")
    parser.add_argument("--vocabulary-scan", choices=SCANS, default="exact")
    given = parser.parse_args(arguments)
    recipe = Recipe(
        name=given.name,
        window_s=given.window,
        description=given.description,
        source=given.source,
        licence=given.licence,
        demo_model=given.demo,
        language=given.language,
        padded_positions=given.positions,
        repetition_penalty=given.repetition_penalty,
        eot_boost=given.eot_boost,
        no_speech_sure=given.no_speech_sure,
        no_speech_lone=given.no_speech_lone,
        quantize=given.quantize,
        vocabulary_scan=given.vocabulary_scan,
    )
    try:
        build_bundle(given.checkpoint, given.out, recipe)
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    size = sum(file.stat().st_size for file in given.out.iterdir())
    print(f"{given.out}: {size / 1e6:.2f} MB")
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
