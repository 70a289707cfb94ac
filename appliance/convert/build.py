"""Builds a model bundle from a Whisper checkpoint folder, with onnx and numpy alone.

The folder holds model.safetensors, config.json and tokenizer.json, or vocab.json with
added_tokens.json, and, where the model has it, generation_config.json, as Hugging Face writes them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.convert.checkpoint import Checkpoint, load_checkpoint
from appliance.convert.decoding import Decoding, read_decoding
from appliance.convert.graph import INLINE
from appliance.convert.shapes import WhisperConfig
from appliance.convert.silence import silent_means
from appliance.convert.whisper import write_cross, write_embedding, write_encoder, write_step
from appliance.errors import ModelError
from appliance.model import (
    CROSS_FILE,
    EMBEDDING_FILE,
    ENCODER_FILE,
    MANIFEST,
    POSITIONS_PER_SECOND,
    QUANTIZE,
    SILENCE_FILE,
    STEP_FILE,
    VOCABULARY_FILE,
    Bundle,
    drafted,
    write_json,
    write_manifest,
)

PARTS = 4


@dataclass(frozen=True, slots=True)
class Recipe:
    """Properties of a bundle that the checkpoint does not define."""

    name: str
    window_s: float
    description: str = ""
    source: str = ""
    licence: str = ""
    language: str = ""
    """Code or English name; "": the one that the checkpoint names, or English."""
    quantize: str = "none"
    """One of QUANTIZE."""


def build_bundle(
    checkpoint_folder: Path,
    out: Path,
    recipe: Recipe,
    *,
    written: Callable[[], object] = lambda: None,
    inline: int = INLINE,
) -> None:
    """Write the bundle folder `out`, whole or not at all; one that is there is replaced.

    `written` is called after each of PARTS files. A graph with more than `inline` bytes of
    constants has them in a file of its own.

    Raises ModelError saying everything that is wrong with the checkpoint or does not fit it.
    """
    out = out.absolute()
    if out.exists() and not (out / MANIFEST).is_file():
        raise ModelError(
            f"{out}: expected a bundle to replace or nothing, found something else; move it away"
        )
    checkpoint = load_checkpoint(checkpoint_folder)
    decoding = read_decoding(checkpoint_folder, checkpoint.config, recipe.language)
    bundle = _describe(checkpoint, decoding, recipe, out)
    int8 = bundle.quantize == "int8"
    positions = bundle.positions
    with drafted(out, "a bundle") as draft:
        write_embedding(checkpoint, bundle, draft / EMBEDDING_FILE)
        written()
        # early, since both need the whole embedding as float32, and the encoder leaves memory taken
        write_step(checkpoint, bundle, draft / STEP_FILE, inline=0 if int8 else inline)
        written()
        silence = silent_means(checkpoint, positions, bundle.silences)
        (draft / SILENCE_FILE).write_bytes(silence.astype("<f4").tobytes())
        write_encoder(checkpoint, positions, draft / ENCODER_FILE, int8=int8, inline=inline)
        written()
        write_cross(checkpoint, bundle.attended, draft / CROSS_FILE, int8=int8, inline=inline)
        written()
        write_json(draft / VOCABULARY_FILE, decoding.vocabulary)
        write_manifest(bundle, draft)


def window_positions(config: WhisperConfig, window_s: float) -> int:
    """Encoder positions of a window. Raises ModelError for one that the model does not have."""
    positions = round(window_s * POSITIONS_PER_SECOND) if math.isfinite(window_s) else 0
    if abs(positions - window_s * POSITIONS_PER_SECOND) > 1e-6 or not (
        2 <= positions <= config.max_source_positions
    ):
        longest = config.max_source_positions / POSITIONS_PER_SECOND
        raise ModelError(
            f"window: expected a multiple of 0.02 s up to {longest:g} s, found {window_s:g}"
        )
    return positions


def _describe(checkpoint: Checkpoint, decoding: Decoding, recipe: Recipe, out: Path) -> Bundle:
    config = checkpoint.config
    positions = window_positions(config, recipe.window_s)
    if recipe.quantize not in QUANTIZE:
        raise ModelError(f"quantize: expected {' or '.join(QUANTIZE)}, found {recipe.quantize}")
    return Bundle(
        folder=out,
        name=recipe.name,
        description=recipe.description,
        source=recipe.source,
        licence=recipe.licence,
        checkpoint_sha256=checkpoint.sha256,
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        heads=config.decoder_attention_heads,
        n_mels=config.num_mel_bins,
        vocabulary_size=config.vocab_size,
        max_tokens=config.max_target_positions,
        quantize=recipe.quantize,
        window_s=recipe.window_s,
        positions=positions,
        trained_positions=config.max_source_positions,
        languages=decoding.languages,
        language=decoding.language,
        prompt=decoding.prompt,
        tokens=decoding.tokens,
        suppressed=decoding.suppressed,
        suppressed_first=decoding.suppressed_first,
        alignment=decoding.alignment,
    )
