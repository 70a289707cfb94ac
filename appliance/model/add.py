"""A checkpoint by name, hub id or folder -> a bundle in its workplace, with a HEF if asked for."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ConfigError, ModelError
from appliance.model import hailo_store, huggingface as hub
from appliance.model.build import POSITIONS_PER_SECOND, Recipe, build_bundle, identify, write_json
from appliance.model.checkpoint import CONFIG_FILE
from appliance.model.hailo_store import CHIPS
from appliance.model.library import MANIFEST, StagingFolder, told
from appliance.model.shapes import WhisperConfig, read_config

DEFAULT_WINDOW_S = 10.0
BASE_D_MODEL, BASE_WINDOW_S = 512, 5.0
"""whisper-base's width: Hailo publishes its encoder for 5 s (its 10 s form does not compile)."""
HEF = "encoder.hef"
DECODER_FILES = ("decoder.hef", "token_embedding_weight.npy", "onnx_add_input.npy")
"""For the full-NPU path: HEF, token embedding, positions."""
AUTO, NONE = "auto", "none"


@dataclass(frozen=True, slots=True)
class AddRequest:
    """What the user asks for."""

    source: str
    """A known name, a hub id, or a folder."""
    revision: str = "main"
    name: str = ""
    """Of the bundle; "": from the source."""
    window_s: float | None = None
    quantize: str = "int8"
    language: str = "en"
    hef: str = NONE
    """auto, none, a chip, or a file."""
    chip_present: str | None = None
    """The Hailo in this machine."""
    npu_decoder: bool = False
    """Hailo's decoder, too."""

    @property
    def chip(self) -> str | None:
        """The chip for which a HEF is wanted."""
        return self.chip_present if self.hef == AUTO else self.hef if self.hef in CHIPS else None

    @property
    def hef_file(self) -> Path | None:
        """The user's own HEF."""
        return None if self.hef in (AUTO, NONE, *CHIPS) else Path(self.hef).expanduser()

    @property
    def folder(self) -> Path | None:
        """The folder that the source names, if it names one. Known names go before folders."""
        folder = Path(self.source).expanduser()
        return folder if self.source not in hub.NAMES and folder.is_dir() else None

    @property
    def bundle_name(self) -> str:
        """What the bundle is to be called."""
        if self.name or self.source in hub.NAMES:
            return self.name or self.source
        stem = self.folder.resolve().name if self.folder else self.source.rsplit("/", 1)[-1]
        return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-.")


def make_bundle(order: AddRequest, place: StagingFolder) -> Iterator[str]:
    """Builds the bundle in place.draft; yields remarks for the user on the way.

    Raises ConfigError and ModelError; downloads that are done stay in place.checkpoint.
    """
    hef = _published_hef(order)
    decoder = _published_decoder(order)
    if order.folder:
        checkpoint, source, licence = order.folder, order.folder.resolve().name, ""
    else:
        with told(place.checkpoint):
            place.checkpoint.mkdir(exist_ok=True)
        origin = hub.fetch_checkpoint(order.source, order.revision, place.checkpoint)
        checkpoint, licence = place.checkpoint, origin.licence
        source = f"{origin.repository}@{origin.revision}"
        yield f"fetched {source}: every file is as the hub has it"
    config = read_config(checkpoint / CONFIG_FILE)
    window_s = order.window_s or (hef.window_s if hef else window_of(config))
    recipe = Recipe(
        name=place.name,
        window_s=window_s,
        source=source,
        licence=licence,
        language=order.language,
        quantize=order.quantize,
    )
    build_bundle(checkpoint, place.draft, recipe)
    if hef:
        file = hailo_store.fetch_hef(hef, place.checkpoint)
        yield f"fetched {hef.address} (Hailo publishes no checksum)"
        _put_hef(file, hef.chip, place)
        if decoder:
            yield f"fetching {decoder.address}, for comparison only: the CPU decodes faster"
            _put_decoder(decoder, place)
    elif order.hef_file:
        _put_hef(order.hef_file, "", place)
    elif order.chip:
        yield f"without a HEF: {hailo_store.explain_none(order.chip, order.source, window_s)}"


def window_of(config: WhisperConfig) -> float:
    """The window, in seconds, of a model whose user asked for none."""
    wanted = BASE_WINDOW_S if config.d_model == BASE_D_MODEL else DEFAULT_WINDOW_S
    return min(wanted, config.max_source_positions / POSITIONS_PER_SECOND)


def _published_hef(order: AddRequest) -> hailo_store.HefSource | None:
    """Hailo's encoder for the order; None when none is wanted, or there is none and may be none.

    Raises ConfigError when the user named a chip for which there is none.
    """
    if not order.chip:
        return None
    found = None if order.folder else hailo_store.encoder_hef(order.chip, order.source)
    if found and order.window_s in (None, found.window_s):
        return found
    if order.hef == AUTO:
        return None
    window_s = order.window_s or DEFAULT_WINDOW_S
    raise ConfigError(f"--hef: {hailo_store.explain_none(order.chip, order.source, window_s)}")


def _published_decoder(order: AddRequest) -> hailo_store.DecoderSource | None:
    """Hailo's decoder for the order; None when none is wanted.

    Raises ConfigError when there is none, or no encoder of Hailo's to go with it.
    """
    if not order.npu_decoder:
        return None
    if not order.chip:
        found = "no Hailo in this machine" if order.hef == AUTO else f"--hef {order.hef}"
        raise ConfigError(
            f"--npu-decoder: expected a chip, as with --hef {', '.join(CHIPS)}, found {found}"
        )
    source = None if order.folder else hailo_store.decoder_hef(order.chip, order.source)
    if source is None or _published_hef(order) is None:
        raise ConfigError(
            f"--npu-decoder: Hailo publishes decoders for {order.chip} with its encoders of "
            f"{hailo_store.published_decoders(order.chip)} alone, found {order.source}; leave it "
            "out: the CPU decodes faster"
        )
    return source


def _put_decoder(source: hailo_store.DecoderSource, place: StagingFolder) -> None:
    """Puts Hailo's decoder and its tables into the draft and its manifest. Raises ModelError."""
    fetched = hailo_store.fetch_decoder(source, place.checkpoint)
    with told(place.draft):
        for file, name in zip(fetched, DECODER_FILES, strict=True):
            shutil.copyfile(file, place.draft / name)
        _enter(DECODER_FILES, place)


def _put_hef(file: Path, chip: str, place: StagingFolder) -> None:
    """Copies a HEF into the draft and enters it into the manifest. Raises ModelError."""
    with told(file):
        with file.open("rb") as stream:
            magic = stream.read(len(hailo_store.MAGIC))
        if magic != hailo_store.MAGIC:
            raise ModelError(
                f"{file}: expected a HEF (its first bytes are {hailo_store.MAGIC!r}), "
                f"found {magic!r}; give --hef a file that Hailo's compiler wrote, or none"
            )
        shutil.copyfile(file, place.draft / HEF)
    with told(place.draft):
        _enter((HEF,), place, hef_chip=chip)


def _enter(names: tuple[str, ...], place: StagingFolder, **facts: str) -> None:
    """Enters files, and what else is to be known, into the draft's manifest."""
    manifest = json.loads((place.draft / MANIFEST).read_bytes()) | facts
    manifest["files"] |= {name: identify(place.draft / name) for name in names}
    write_json(place.draft / MANIFEST, manifest, indent=1)
