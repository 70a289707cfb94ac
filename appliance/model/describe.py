"""bundle.json of a checkpoint: what a bundle is, but for its files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.errors import ModelError
from appliance.model.weights.checkpoint import Checkpoint, WhisperConfig, read_json

SCHEMA = 2
"""Of bundle.json; appliance.infer.manifest reads it."""
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
