"""Find and fetch the Whisper HEFs that Hailo publishes.

The store is public and without checksums: a file is known by its address, its size and its first
bytes; libhailort checks the rest when it is loaded. ROOMSCRIBE_HAILO_STORE names another store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.convert.download import (
    Downloader,
    RefusalError,
    RemoteFile,
    UnreachableError,
)
from appliance.convert.known import NAMES
from appliance.errors import ModelError
from appliance.model import CHIP_NAMES, MAGIC, model_errors

STORE = "https://hailo-csdata.s3.eu-west-2.amazonaws.com/resources"
VARIABLE = "ROOMSCRIBE_HAILO_STORE"
NPY_MAGIC = b"\x93NUMPY"
LIMIT = 500_000_000
"""Bytes; far more than an encoder of Whisper base needs."""

_ENCODERS = {
    ("hailo8", "tiny"): (10.0, "h8/tiny-whisper-encoder-10s_15dB.hef"),
    ("hailo8", "base"): (5.0, "h8/base-whisper-encoder-5s.hef"),
    ("hailo8l", "tiny"): (10.0, "h8l/tiny-whisper-encoder-10s_15dB_h8l.hef"),
    ("hailo8l", "base"): (5.0, "h8l/base-whisper-encoder-5s_h8l.hef"),
    ("hailo10h", "tiny"): (10.0, "h10h/tiny-whisper-encoder-10s.hef"),
    ("hailo10h", "tiny.en"): (10.0, "h10h/tiny_en-whisper-encoder-10s.hef"),
    ("hailo10h", "base"): (10.0, "h10h/base-whisper-encoder-10s.hef"),
}
"""(chip, checkpoint): window in seconds, file."""

_DECODERS = {
    ("hailo8", "tiny"): (32, "h8/tiny-whisper-decoder-fixed-sequence-matmul-split.hef"),
    ("hailo8", "base"): (24, "h8/base-whisper-decoder-fixed-sequence-matmul-split.hef"),
    ("hailo8l", "tiny"): (32, "h8l/tiny-whisper-decoder-fixed-sequence-matmul-split_h8l.hef"),
    ("hailo8l", "base"): (24, "h8l/base-whisper-decoder-fixed-sequence-matmul-split_h8l.hef"),
    ("hailo10h", "tiny"): (32, "h10h/tiny-whisper-decoder-fixed-sequence.hef"),
    ("hailo10h", "tiny.en"): (32, "h10h/tiny_en-whisper-decoder-fixed-sequence.hef"),
    ("hailo10h", "base"): (64, "h10h/base-whisper-decoder-10s-out-seq-64.hef"),
}
"""(chip, checkpoint): tokens of the fixed sequence, file."""


@dataclass(frozen=True, slots=True)
class HefSource:
    """An encoder that Hailo has compiled."""

    chip: str
    checkpoint: str
    window_s: float
    """Must equal the bundle's window."""
    address: str


@dataclass(frozen=True, slots=True)
class DecoderSource:
    """A decoder that Hailo has compiled, with the tables its host looks tokens up in."""

    chip: str
    checkpoint: str
    tokens: int
    """Length of the sequence that each step computes anew."""
    address: str
    embedding: str
    """Address of the token embedding, .npy."""
    positions: str
    """Address of what is added to the embedding, .npy."""


def encoder_hef(
    chip: str, checkpoint: str, environment: Mapping[str, str] = os.environ
) -> HefSource | None:
    """Return Hailo's encoder for a chip and a checkpoint (name or repository), or None."""
    name = _short(checkpoint)
    if (chip, name) not in _ENCODERS:
        return None
    window_s, path = _ENCODERS[chip, name]
    return HefSource(chip, name, window_s, f"{_store(environment)}/whisper/{path}")


def decoder_hef(
    chip: str, checkpoint: str, environment: Mapping[str, str] = os.environ
) -> DecoderSource | None:
    """Return Hailo's decoder for a chip and a checkpoint (name or repository), or None."""
    name, store = _short(checkpoint), _store(environment)
    if (chip, name) not in _DECODERS:
        return None
    tokens, path = _DECODERS[chip, name]
    tables = f"{store}/npy%20files/whisper/decoder_assets/{name}/decoder_tokenization"
    return DecoderSource(
        chip,
        name,
        tokens,
        f"{store}/whisper/{path}",
        f"{tables}/token_embedding_weight_{name}.npy",
        f"{tables}/onnx_add_input_{name}.npy",
    )


def published(chip: str) -> str:
    """Return the encoders for a chip, for messages: "tiny (10 s), base (5 s)"."""
    found = [(name, size) for (each, name), (size, _) in _ENCODERS.items() if each == chip]
    return ", ".join(f"{name} ({window_s:g} s)" for name, window_s in found)


def shortest_window_s(checkpoint: str) -> float:
    """Return the shortest window for which Hailo has compiled a checkpoint's encoder."""
    return min(window_s for (_, each), (window_s, _) in _ENCODERS.items() if each == checkpoint)


def published_decoders(chip: str) -> str:
    """Return the decoders for a chip, for messages: "tiny (32 tokens)"."""
    found = [(name, size) for (each, name), (size, _) in _DECODERS.items() if each == chip]
    return ", ".join(f"{name} ({tokens} tokens)" for name, tokens in found)


def explain_none(chip: str, checkpoint: str, window_s: float) -> str:
    """Return why no published HEF fits, and what to do; one line."""
    if chip not in CHIP_NAMES:
        return f"chip {chip!r}: expected {', '.join(CHIP_NAMES)}"
    return (
        f"{checkpoint} with a window of {window_s:g} s on {chip}: Hailo publishes no such encoder, "
        f"only {published(chip)}; take one of these with its window (--window), compile one of "
        "your own (roomscribe model export), or leave the HEF out (--hef none)"
    )


def fetch_hef(source: HefSource, folder: Path, client: Downloader) -> Path:
    """Fetch the HEF into `folder` and return it. Raises ModelError."""
    fix = "give a HEF of yours (--hef FILE), or none (--hef none)"
    return _fetch(client, source.address, MAGIC, folder, fix)


def fetch_decoder(
    source: DecoderSource, folder: Path, client: Downloader
) -> tuple[Path, Path, Path]:
    """Fetch the decoder's HEF, token table and table of positions into `folder`, and return them.

    Raises ModelError.
    """
    fix = "leave --npu-decoder out: the CPU decodes faster"
    return (
        _fetch(client, source.address, MAGIC, folder, fix),
        _fetch(client, source.embedding, NPY_MAGIC, folder, fix),
        _fetch(client, source.positions, NPY_MAGIC, folder, fix),
    )


def _fetch(client: Downloader, address: str, magic: bytes, folder: Path, fix: str) -> Path:
    """Fetch a file of the store into `folder`. Raises ModelError; `fix`: how to do without it."""
    path = folder / address.rsplit("/", 1)[-1]
    try:
        client.fetch(RemoteFile(address, limit=LIMIT), path)
    except RefusalError as refused:
        raise ModelError(f"{refused}; Hailo's store has moved or dropped it: {fix}") from refused
    except UnreachableError as error:
        raise ModelError(
            f"{error}; check the network and run the same command again, or: {fix}"
        ) from error
    with model_errors(path), path.open("rb") as stream:
        if (begin := stream.read(len(magic))) == magic:
            return path
    raise ModelError(
        f"{address}: expected a file that begins with {magic!r}, found {begin!r}; {fix}"
    )


def _short(checkpoint: str) -> str:
    """Return the short name of a known repository."""
    return next((name for name, each in NAMES.items() if each == checkpoint), checkpoint)


def _store(environment: Mapping[str, str]) -> str:
    return (environment.get(VARIABLE, "").strip() or STORE).rstrip("/")
