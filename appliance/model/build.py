"""Builds a model bundle from a Whisper checkpoint folder, with onnx and numpy alone.

    python -m appliance.model.build CHECKPOINT_DIR OUT --name home-en --window 10

The folder holds model.safetensors, config.json, vocab.json, and, where the model has them,
added_tokens.json and generation_config.json, all as Hugging Face writes them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from appliance.errors import ModelError
from appliance.model.describe import QUANTIZE, SCANS, Recipe, describe, read_vocabulary
from appliance.model.drafts import drafted
from appliance.model.graphs.decoder_graph import (
    EMBEDDING_FILE,
    Written,
    write_cross,
    write_embedding,
    write_step,
)
from appliance.model.graphs.encoder_graph import write_encoder
from appliance.model.weights.checkpoint import Checkpoint, load_checkpoint

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
