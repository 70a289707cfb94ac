"""Find and fetch the Whisper HEFs that Hailo publishes.

The store is public and without checksums: a file is known by its address, its size and its first
bytes; libhailort checks the rest when it is loaded. ROOMSCRIBE_HAILO_STORE names another store.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.convert.download import Downloader, RefusalError, RemoteFile, UnreachableError
from appliance.convert.known import NAMES
from appliance.convert.shapes import WhisperConfig
from appliance.errors import ModelError
from appliance.model import CHIP_NAMES, HEF_MAGIC, model_errors

STORE = "https://hailo-csdata.s3.eu-west-2.amazonaws.com/resources"
VARIABLE = "ROOMSCRIBE_HAILO_STORE"
LIMIT = 500_000_000
"""Bytes; far more than an encoder of Whisper base needs."""

_PUBLISHED = {
    ("hailo8", "tiny"): (10.0, "h8/tiny", "10s_15dB"),
    ("hailo8", "base"): (5.0, "h8/base", "5s"),
    ("hailo8l", "tiny"): (10.0, "h8l/tiny", "10s_15dB_h8l"),
    ("hailo8l", "base"): (5.0, "h8l/base", "5s_h8l"),
    ("hailo10h", "tiny"): (10.0, "h10h/tiny", "10s"),
    ("hailo10h", "tiny.en"): (10.0, "h10h/tiny_en", "10s"),
    ("hailo10h", "base"): (10.0, "h10h/base", "10s"),
}
"""(chip, checkpoint): window in seconds, the file's beginning, the encoder's end."""


_SIZES = {(384, 4, 51865): "tiny", (384, 4, 51864): "tiny.en", (512, 6, 51865): "base"}
"""Width, layers and vocabulary of the checkpoints that Hailo compiles."""


@dataclass(frozen=True, slots=True)
class HefSource:
    """An encoder that Hailo has compiled."""

    window_s: float
    """Must equal the bundle's window."""
    address: str


def find_hef(
    chip: str, checkpoint: str, environment: Mapping[str, str] = os.environ
) -> HefSource | None:
    """Return what Hailo has for a chip and a checkpoint (name or repository), or None."""
    name = next((name for name, each in NAMES.items() if each == checkpoint), checkpoint)
    if (chip, name) not in _PUBLISHED:
        return None
    window_s, begin, encoder = _PUBLISHED[chip, name]
    store = (environment.get(VARIABLE, "").strip() or STORE).rstrip("/")
    return HefSource(window_s, f"{store}/whisper/{begin}-whisper-encoder-{encoder}.hef")


def name_of(config: WhisperConfig) -> str:
    """Return which of these checkpoints has such sizes; empty if none has."""
    return _SIZES.get((config.d_model, config.encoder_layers, config.vocab_size), "")


def published(chip: str) -> str:
    """Return the encoders for a chip, for messages: "tiny (10 s), base (5 s)"."""
    found = [(name, size) for (each, name), (size, *_) in _PUBLISHED.items() if each == chip]
    return ", ".join(f"{name} ({window_s:g} s)" for name, window_s in found)


def shortest_window_s(checkpoint: str) -> float:
    """Return the shortest window for which Hailo has compiled a checkpoint's encoder."""
    return min(window_s for (_, each), (window_s, *_) in _PUBLISHED.items() if each == checkpoint)


def explain_none(chip: str, checkpoint: str, window_s: float) -> str:
    """Return why no published HEF fits, and what to do; one line."""
    if chip not in CHIP_NAMES:
        return f"chip {chip!r}: expected {', '.join(CHIP_NAMES)}"
    return (
        f"{checkpoint} with a window of {window_s:g} s on {chip}: Hailo publishes no such encoder, "
        f"only {published(chip)}; take one of these with its window (--window), compile one of "
        "your own (roomscribe model export), or leave the HEF out (--hef none)"
    )


def fetch_encoder(source: HefSource, folder: Path, client: Downloader) -> Path:
    """Fetch the encoder into `folder` and return it. Raises ModelError."""
    fix = "give a HEF of yours (--hef FILE), or none (--hef none)"
    address = source.address
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
        if (begin := stream.read(len(HEF_MAGIC))) == HEF_MAGIC:
            return path
    raise ModelError(
        f"{address}: expected a file that begins with {HEF_MAGIC!r}, found {begin!r}; {fix}"
    )
