"""Make a bundle of a checkpoint (name, hub id or folder) in a staging folder."""

import mmap
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from appliance.convert import hailo_store
from appliance.convert.build import PARTS, Recipe, build_bundle, window_positions
from appliance.convert.checkpoint import read_sizes, require_checkpoint
from appliance.convert.decoding import read_decoding
from appliance.convert.download import Downloader
from appliance.convert.known import NAMES
from appliance.convert.progress import ProgressDisplay
from appliance.convert.shapes import WhisperConfig, checkpoint_name, parameters
from appliance.convert.sources import TOKEN, Check, Origin, obtain
from appliance.errors import ConfigError, ModelError
from appliance.model import (
    CHIP_NAMES,
    HEF_FILE,
    HEF_MAGIC,
    LONGEST_WINDOW_S,
    POSITIONS_PER_SECOND,
    WINDOW_S,
    StagingFolder,
    enter_files,
    model_errors,
    require_regular,
    unreadable,
)
from appliance.system import free_memory

BASE_D_MODEL = 512
AUTO, NONE = "auto", "none"
SPEECH_API = re.compile(r"whisper[-_](tiny|base|small)(\.en)?\.hef", re.IGNORECASE)
"""Names of Hailo's files for its speech API."""
BASE_MEMORY, MEMORY_EACH = 250_000_000, {"int8": 1.2, "none": 4.2}
"""Bytes at any size of the network, and for each of its parameters."""


@dataclass(frozen=True, slots=True)
class AddRequest:
    """Options of `roomscribe model add`."""

    source: str
    """A known name, a hub id, or a folder."""
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

    @property
    def chip(self) -> str | None:
        """The chip to get Hailo's encoder for."""
        named = self.hef if self.hef in CHIP_NAMES else None
        return self.chip_present if self.hef == AUTO else named

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


@dataclass(frozen=True, slots=True)
class Plan:
    """What is built for a request, as far as its options say."""

    request: AddRequest
    hef: hailo_store.HefSource | None
    """Hailo's encoder, to be fetched."""
    why_no_hef: str
    """Why none is fetched although there is a chip; else ""."""

    def window_s(self, config: WhisperConfig) -> float:
        """Return the bundle's window in seconds."""
        from_hef = self.hef.window_s if self.hef else None
        return self.request.window_s or from_hef or window_of(config)

    def require_buildable(self, folder: Path, free: float) -> WhisperConfig:
        """Return the sizes of a checkpoint. Raises ModelError if it cannot be built, as its small
        files and the bytes of `free` memory show."""
        config = read_sizes(folder)
        window_positions(config, self.window_s(config))
        read_decoding(folder, config, self.request.language)
        needed = memory_needed(config, self.request.quantize)
        if free < needed:
            smaller = "a smaller model" if self.request.quantize == "int8" else "--quantize int8"
            raise ModelError(
                f"{self.request.source}: expected {needed / 1e9:.1f} GB of memory to build and to "
                f"verify it, found {free / 1e9:.1f} GB free; stop other programs, add swap, or "
                f"take {smaller}"
            )
        return config


def make_bundle(
    request: AddRequest,
    staging: StagingFolder,
    *,
    progress: ProgressDisplay,
    say: Callable[[str], object],
    free: Callable[[], float] = free_memory,
) -> None:
    """Build the bundle in staging.draft; `say` gets remarks for the user on the way.

    `free` returns the free memory in bytes; with too little, nothing is downloaded. Complete
    downloads stay in staging.checkpoint. Raises ConfigError and ModelError.
    """
    plan, step = make_plan(request), f"building {staging.name}"

    def check(folder: Path) -> None:
        progress.expect(step, build_work(plan.require_buildable(folder, free())))

    origin = _obtain_checkpoint(request, staging, progress, check)
    if origin.remark:
        say(origin.remark)
    _build(plan, origin, staging, progress, say)
    _put_hef(plan, staging, progress, say)


def make_plan(request: AddRequest) -> Plan:
    """Return the plan for a request. Raises ConfigError and ModelError for wrong options."""
    if request.window_s is not None and not 0.04 <= request.window_s <= LONGEST_WINDOW_S:
        raise ConfigError(
            f"--window: expected 0.04 to {LONGEST_WINDOW_S:g} seconds, found {request.window_s:g}"
        )
    if request.hef_file:
        _require_hef(request.hef_file)
    return Plan(request, *_choose_hef(request))


def _obtain_checkpoint(
    request: AddRequest, staging: StagingFolder, progress: ProgressDisplay, check: Check
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
    client = Downloader(os.environ.get(TOKEN, "").strip(), progress)
    return obtain(request.source, staging.checkpoint, staging.folder / "unpacked", client, check)


def _build(
    plan: Plan,
    origin: Origin,
    staging: StagingFolder,
    progress: ProgressDisplay,
    say: Callable[[str], object],
) -> None:
    """Build the graphs of the checkpoint in staging.draft."""
    request, step = plan.request, f"building {staging.name}"
    config = read_sizes(origin.folder)
    decoding = read_decoding(origin.folder, config, request.language)
    say(f"language: {decoding.language} ({decoding.language_from})")
    recipe = Recipe(
        name=staging.name,
        description=request.title,
        window_s=plan.window_s(config),
        source=origin.source,
        licence=origin.licence,
        language=request.language,
        quantize=request.quantize,
    )
    say(step)
    progress.begin(step)
    part = build_work(config) // PARTS
    build_bundle(origin.folder, staging.draft, recipe, written=lambda: progress.advance(part))


def _put_hef(
    plan: Plan,
    staging: StagingFolder,
    progress: ProgressDisplay,
    say: Callable[[str], object],
) -> None:
    """Put Hailo's or the user's encoder for the chip into the draft."""
    if plan.hef:
        client = Downloader(progress=progress)
        file = hailo_store.fetch_encoder(plan.hef, staging.folder, client)
        say(f"fetched {plan.hef.address} (Hailo publishes no checksum)")
        _put_file(staging, HEF_FILE, file)
    elif plan.request.hef_file:
        _put_file(staging, HEF_FILE, plan.request.hef_file)
    elif plan.why_no_hef:
        say(f"without a HEF: {plan.why_no_hef}")


def build_work(config: WhisperConfig) -> int:
    """Return the work of a build, in bytes that take as long to download at 6 MB/s."""
    return parameters(config) // 2


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


def _choose_hef(request: AddRequest) -> tuple[hailo_store.HefSource | None, str]:
    """Return which encoder of Hailo's to fetch, or why none; neither without a chip.

    `auto` takes one only if it has the CPU's window: with base's of 5 s on a Hailo-8, more words
    are wrong (docs/hailo.md). For a folder, one is found by the sizes of the network, and taken if
    the user named the chip. Raises ConfigError if the user named a chip and none fits, and
    ModelError for the folder.
    """
    if not request.chip:
        return None, ""
    name = request.source
    if request.folder:
        require_checkpoint(request.folder)
        name = hailo_store.name_of(read_sizes(request.folder)) or request.bundle_name
    is_auto = request.hef == AUTO
    window_s = request.window_s or (WINDOW_S if is_auto else None)
    found = hailo_store.find_hef(request.chip, name)
    if found and window_s in (None, found.window_s):
        if request.folder and is_auto:
            weights = f"if it has OpenAI's weights of {name}"
            return None, f"{weights}, --hef {request.chip} takes Hailo's encoder"
        return found, ""
    reason = hailo_store.explain_none(request.chip, name, window_s or WINDOW_S)
    if not is_auto:
        raise ConfigError(f"--hef: {reason}")
    return None, reason


def _require_hef(file: Path) -> None:
    """Raise ModelError for a file that is no HEF, or one of Hailo's speech API. Whether it fits
    model and chip is HailoRT's to say, when the chip is opened."""
    try:
        require_regular(file)
        with file.open("rb") as stream:
            begin = stream.read(len(HEF_MAGIC))
            whole = begin == HEF_MAGIC and _holds_decoder(stream)
    except OSError as error:
        raise unreadable(file, error) from error
    if begin != HEF_MAGIC:
        raise ModelError(
            f"{file}: expected a HEF (its first bytes are {HEF_MAGIC!r}), found {begin!r}; "
            "fetch or compile the HEF again"
        )
    if whole or SPEECH_API.fullmatch(file.name):
        raise ModelError(
            f"{file}: expected the HEF of an encoder, found one with encoder and decoder, for "
            "Hailo's own speech API (genai.Speech2Text), which Roomscribe does not use; give --hef "
            "hailo10h, which downloads the encoder alone"
        )


def _holds_decoder(stream: BinaryIO) -> bool:
    """Return True if a HEF has the networks of HailoRT's speech API (their names in 5.2.0:
    hailort_server/genai/speech2text)."""
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return all(content.find(b"whisper-%b" % name) >= 0 for name in (b"encoder", b"decoder"))


def _put_file(staging: StagingFolder, name: str, file: Path) -> None:
    """Copy a file into the draft under this name, and enter it in its manifest."""
    with model_errors(staging.draft):
        shutil.copyfile(file, staging.draft / name)
        enter_files(staging.draft, [name])
