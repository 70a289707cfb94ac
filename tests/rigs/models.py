"""Whispers with random weights: the same on every machine, made without torch.

Both sides of the parity tests build their model from here. Only PCG64's uniform doubles are used,
whose stream numpy keeps; `fingerprint` tells a changed stream from a wrong graph.

Bundles with random weights, built once a session by the real build: for tests of infer/.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs.checkout import BUILT_IN, require_model
from safetensors.numpy import save_file

from appliance.config import Settings
from appliance.convert.build import Recipe, build_bundle
from appliance.convert.checkpoint import load_checkpoint
from appliance.convert.shapes import WhisperConfig, expected_shapes
from appliance.convert.tensors import Weights
from appliance.errors import ModelError
from appliance.infer.opening import open_transcriber
from appliance.infer.transcriber import Transcriber
from appliance.model.bundle import MANIFEST, Bundle, load_bundle

SPECIALS = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)


def sized(  # noqa: PLR0917
    d_model: int,
    layers: tuple[int, int],
    heads: int,
    vocabulary: int,
    positions: int,
    context: int,
    *,
    n_mels: int = 80,
    feed_forward: int = 0,
) -> WhisperConfig:
    """A network's sizes; `layers` of encoder and decoder."""
    return WhisperConfig(
        d_model=d_model,
        encoder_layers=layers[0],
        decoder_layers=layers[1],
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=feed_forward or 4 * d_model,
        decoder_ffn_dim=feed_forward or 4 * d_model,
        num_mel_bins=n_mels,
        vocab_size=vocabulary,
        max_source_positions=positions,
        max_target_positions=context,
    )


TINY = sized(384, (4, 4), 6, 51865, 1500, 448)
"""openai/whisper-tiny's shape."""
BASE = sized(512, (6, 6), 8, 51865, 1500, 448)
"""openai/whisper-base's shape."""
ODD = sized(48, (3, 2), 3, 1009, 333, 61, n_mels=128, feed_forward=100)
"""A small one in which no two sizes agree."""
SMALL_SHAPE = sized(128, (4, 1), 4, 521, 500, 112)
"""A small one that is quick."""


RARE = 3
"""A token that none of these models writes."""


def random_weights(config: WhisperConfig, seed: int) -> Weights:
    """Weights by which each layer changes its input and logits spread over some units."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return {
        name: _scale(name, shape, _uniform(rng, shape))
        for name, shape in expected_shapes(config).items()
    }


def random_mel(config: WhisperConfig, frames: int, seed: int) -> NDArray[np.float32]:
    """A mel (frames, n_mels) float32 in Whisper's range that is rough in time and frequency."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return (0.8 * _uniform(rng, (frames, config.num_mel_bins))).astype(np.float32)


def fingerprint(weights: Weights) -> str:
    """SHA-256 over all weights in order of their names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(np.ascontiguousarray(weights[name]).data)
    return digest.hexdigest()


def write_checkpoint(folder: Path, config: WhisperConfig, weights: Weights) -> Path:
    """A checkpoint folder as the training writes it, with made-up pieces and Whisper's tokens."""
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors")
    first_special = config.vocab_size - len(SPECIALS)
    added = {name: first_special + index for index, name in enumerate(SPECIALS)}
    prompt = ("<|en|>", "<|transcribe|>", "<|notimestamps|>")
    forced = [[place, added[name]] for place, name in enumerate(prompt, 1)]
    settings = {"model_type": "whisper", "activation_function": "gelu", **asdict(config)}
    settings |= {"forced_decoder_ids": forced, "is_multilingual": True}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "vocab.json").write_text(json.dumps(pieces(first_special)))
    (folder / "added_tokens.json").write_text(json.dumps(added))
    return folder


def never_ending(bundle: Bundle) -> Bundle:
    """The bundle with another end of the text, which random weights do not write."""
    return replace(bundle, tokens=replace(bundle.tokens, end_of_text=RARE))


def pieces(count: int) -> dict[str, int]:
    """`count` pieces in byte letters: ten letters first, then pairs, triples and so on of them."""
    letters, pieces = "abcdefghi\u0120", [""]
    while len(pieces) <= count:
        pieces = [""] + [old + letter for old in pieces for letter in letters]
    return {piece: number for number, piece in enumerate(pieces[1 : count + 1])}


def refusal(folder: Path) -> str:
    """Return the one line with which a checkpoint folder is refused."""
    with pytest.raises(ModelError) as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    assert message.isprintable() and str(folder) in message
    return message


def _uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Of mean 0 and variance 1."""
    numbers: NDArray[np.float32] = ((rng.random(shape) - 0.5) * np.sqrt(12.0)).astype(np.float32)
    return numbers


def _scale(name: str, shape: tuple[int, ...], noise: NDArray[np.float32]) -> NDArray[np.float32]:
    """Noise in the size that keeps the signal of order one through the network."""
    if name == "model.decoder.layer_norm.weight":
        return (0.7 + 0.1 * noise).astype(np.float32)
    if "layer_norm.weight" in name:
        return (1.0 + 0.2 * noise).astype(np.float32)
    if name.endswith("bias"):
        return (0.03 * noise).astype(np.float32)
    scaled: NDArray[np.float32]
    if "decoder.embed_tokens" in name:
        scaled = (3.0 * noise / np.sqrt(shape[1])).astype(np.float32)
        return scaled
    if "embed_positions" in name:
        return (noise if "decoder" in name else 0.5 * noise).astype(np.float32)
    gain = 1.5 if "q_proj" in name or "k_proj" in name else 0.8
    scaled = (gain * noise / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
    return scaled


RANDOM_RECIPE = Recipe(name="random", window_s=10.0, description="random weights")


@pytest.fixture(scope="session")
def built_in() -> Bundle:
    """The built-in model, loaded. Skips the test without it."""
    require_model()
    return load_bundle(BUILT_IN)


@pytest.fixture(scope="module")
def transcriber(built_in: Bundle) -> Iterator[Transcriber]:
    """The built-in model with the default settings."""
    with open_transcriber(Settings(), bundle=built_in) as opened:
        yield opened


def linked(bundle: Path, folder: Path) -> Path:
    """A bundle in `folder` whose files are links to another's; its manifest is a copy."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in bundle.iterdir():
        if file.name != MANIFEST:
            (folder / file.name).symlink_to(file.resolve())
    shutil.copy(bundle / MANIFEST, folder)
    return folder


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint. Not to be changed."""
    folder = tmp_path_factory.mktemp("checkpoint") / "random"
    return write_checkpoint(folder, SMALL_SHAPE, random_weights(SMALL_SHAPE, seed=1))


@pytest.fixture(scope="session")
def bundle_folder(tmp_path_factory: pytest.TempPathFactory, checkpoint_folder: Path) -> Path:
    """A small bundle. Not to be changed."""
    folder = tmp_path_factory.mktemp("bundle") / "random"
    build_bundle(checkpoint_folder, folder, RANDOM_RECIPE)
    return folder


@pytest.fixture(scope="session")
def bundle(bundle_folder: Path) -> Bundle:
    """The same, loaded."""
    return load_bundle(bundle_folder)
