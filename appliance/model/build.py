"""Builds a model bundle from a Whisper checkpoint folder, with onnx and numpy alone.

    python -m appliance.model.build CHECKPOINT_DIR OUT --name home-en --window 10

The folder holds model.safetensors, config.json, vocab.json, and, where the model has them,
added_tokens.json and generation_config.json, all as Hugging Face writes them.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ModelError
from appliance.model.bundle import (
    CROSS_FILE,
    EMBEDDING_FILE,
    ENCODER_FILE,
    MANIFEST,
    POSITIONS_PER_SECOND,
    QUANTIZE,
    SCANS,
    STEP_FILE,
    VOCABULARY_FILE,
    Bundle,
    Guards,
    Tokens,
    write_json,
    write_manifest,
)
from appliance.model.checkpoint import Checkpoint, load_checkpoint
from appliance.model.library import drafted
from appliance.model.shapes import ADDED_FILE, GENERATION_FILE, VOCAB_FILE, WhisperConfig
from appliance.model.tensors import read_json
from appliance.model.whisper import write_cross, write_embedding, write_encoder, write_step
from appliance.system import lacks_vnni

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
    zero_points: bool | None = None
    """Whether 8-bit matrices have theirs written out; None: if this processor needs them."""


def build_bundle(checkpoint_folder: Path, out: Path, recipe: Recipe) -> None:
    """Writes the bundle folder `out`, whole or not at all; one that is there is replaced.

    Raises ModelError saying everything that is wrong with the checkpoint or does not fit it.
    """
    out = out.absolute()
    if out.exists() and not (out / MANIFEST).is_file():
        raise ModelError(
            f"{out}: expected a bundle to replace or nothing, found something else; move it away"
        )
    checkpoint = load_checkpoint(checkpoint_folder)
    vocabulary = read_vocabulary(checkpoint_folder)
    bundle = _describe(checkpoint, checkpoint_folder, vocabulary, recipe, out)
    int8, zero_points = bundle.quantize == "int8", bundle.zero_points
    positions = bundle.positions
    with drafted(out, "a bundle") as draft:
        write_embedding(checkpoint, bundle, draft / EMBEDDING_FILE)
        write_encoder(
            checkpoint, positions, draft / ENCODER_FILE, int8=int8, zero_points=zero_points
        )
        write_cross(checkpoint, positions, draft / CROSS_FILE, int8=int8, zero_points=zero_points)
        write_step(checkpoint, bundle, draft / STEP_FILE)
        write_json(draft / VOCABULARY_FILE, vocabulary)
        write_manifest(bundle, draft)


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


def read_vocabulary(folder: Path) -> dict[str, int]:
    """Every token's id, special ones included. Raises ModelError."""
    added = folder / ADDED_FILE
    vocabulary = read_json(folder / VOCAB_FILE) | (read_json(added) if added.exists() else {})
    if not vocabulary or not all(type(number) is int for number in vocabulary.values()):
        raise ModelError(f"{folder / VOCAB_FILE}: expected a table of tokens and ids")
    return vocabulary


def _describe(
    checkpoint: Checkpoint, folder: Path, vocabulary: dict[str, int], recipe: Recipe, out: Path
) -> Bundle:
    """The bundle but for its files; `folder` is the checkpoint's. Raises ModelError."""
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
    generation_file = folder / GENERATION_FILE
    generation = read_json(generation_file) if generation_file.exists() else {}
    special = {name: i for name, i in vocabulary.items() if re.fullmatch(r"<\|.*\|>", name)}
    zero_points = lacks_vnni() if recipe.zero_points is None else recipe.zero_points
    multilingual = generation.get("is_multilingual", TRANSCRIBE in special)
    prompt = [START, f"<|{recipe.language}|>", TRANSCRIBE] if multilingual else [START]
    prompt.append(NO_TIMESTAMPS)
    tokens = _find_tokens(folder, vocabulary, special, prompt, config.vocab_size)
    languages = sorted(match[1] for name in special if (match := LANGUAGE.fullmatch(name)))
    not_text = set(range(tokens.first_special, config.vocab_size)) - {tokens.end_of_text}
    return Bundle(
        folder=out,
        name=recipe.name,
        description=recipe.description,
        source=recipe.source,
        licence=recipe.licence,
        demo_model=recipe.demo_model,
        checkpoint_sha256=checkpoint.sha256,
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        heads=config.decoder_attention_heads,
        n_mels=config.num_mel_bins,
        vocabulary_size=config.vocab_size,
        max_tokens=config.max_target_positions,
        quantize=recipe.quantize,
        zero_points=recipe.quantize == "int8" and zero_points,
        vocabulary_scan=recipe.vocabulary_scan,
        window_s=recipe.window_s,
        positions=positions,
        trained_positions=config.max_source_positions,
        languages=tuple(languages) if multilingual else (recipe.language,),
        language=recipe.language,
        prompt=tuple(special[name] for name in prompt),
        tokens=tokens,
        suppressed=tuple(sorted(not_text | set(generation.get("suppress_tokens") or ()))),
        suppressed_first=tuple(sorted(generation.get("begin_suppress_tokens") or ())),
        guards=Guards(padded, recipe.repetition_penalty, recipe.eot_boost),
        no_speech_sure=recipe.no_speech_sure,
        no_speech_lone=recipe.no_speech_lone,
    )


def _find_tokens(
    folder: Path, vocabulary: dict[str, int], special: dict[str, int], prompt: list[str], size: int
) -> Tokens:
    """The tokens that are not text, of a vocabulary of `size`. Raises ModelError."""
    if missing := [name for name in (*prompt, END) if name not in special]:
        raise ModelError(
            f"{folder}: expected the tokens {', '.join(missing)} in {VOCAB_FILE} or "
            f"{ADDED_FILE}, found {', '.join(sorted(special)[:12]) or 'no special token'}"
        )
    first_special = min(special.values())
    late = [name for name, i in vocabulary.items() if i >= first_special and name not in special]
    if late:
        raise ModelError(
            f"{folder}: expected every special token behind the text, found {late[0]!r} "
            f"after token {first_special}"
        )
    if (last := max(vocabulary.values())) >= size:
        raise ModelError(f"{folder}: expected token ids below vocab_size {size}, found {last}")
    timestamps = special.get(FIRST_TIMESTAMP, special[NO_TIMESTAMPS] + 1)
    return Tokens(
        start=special[START],
        end_of_text=special[END],
        no_speech=next((special[name] for name in NO_SPEECH if name in special), None),
        no_timestamps=special[NO_TIMESTAMPS],
        first_special=first_special,
        timestamp_begin=timestamps if timestamps < size else None,
    )


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit status. Its options are the fields of Recipe."""
    parser = argparse.ArgumentParser("appliance.model.build", description=__doc__.splitlines()[0])
    parser.add_argument(
        "checkpoint", type=Path, help="folder with model.safetensors, config.json, vocab.json"
    )
    parser.add_argument("out", type=Path, help="bundle folder to write")
    parser.add_argument("--name", required=True, help="name of the bundle")
    parser.add_argument(
        "--window", dest="window_s", type=float, required=True, help="length of a window, seconds"
    )
    for option in ("description", "source", "licence"):
        parser.add_argument(f"--{option}", default="")
    parser.add_argument("--language", default="en", help="language of the prompt")
    parser.add_argument(
        "--demo", dest="demo_model", action="store_true", help="mark as a demonstration model"
    )
    parser.add_argument(
        "--positions",
        dest="padded_positions",
        type=int,
        default=0,
        help="encoder positions after padding",
    )
    parser.add_argument("--repetition-penalty", type=float, default=1.0)
    parser.add_argument("--eot-boost", type=float, default=0.0)
    parser.add_argument("--no-speech-sure", type=float, default=1.0)
    parser.add_argument("--no-speech-lone", type=float, default=1.0)
    parser.add_argument("--quantize", choices=QUANTIZE, default="none", help="width of the weights")
    parser.add_argument("--vocabulary-scan", choices=SCANS, default="exact")
    given = vars(parser.parse_args(arguments))
    checkpoint, out = given.pop("checkpoint"), given.pop("out")
    try:
        build_bundle(checkpoint, out, Recipe(**given))
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {size / 1e6:.2f} MB")
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
