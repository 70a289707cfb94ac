"""The rows of the benchmark: what each one is, and the model that it needs."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from appliance.config import Settings
from appliance.convert import Recipe, build_bundle
from appliance.errors import ConfigError, DeviceError, RoomscribeError
from appliance.infer import find_chip
from appliance.model import (
    ENCODER_FILE,
    HEF_FILE,
    LONGEST_WINDOW_S,
    WINDOW_S,
    enter_files,
    load_bundle,
)

LABELS = {
    "faster-whisper": "faster-whisper, INT8, 30 s, beam 1",
    "faster-whisper-beam": "faster-whisper, INT8, 30 s, beam 5",
    "cpu-30s-fp32": "Roomscribe, CPU, 30 s, FP32 encoder, INT8 decoder",
    "cpu-30s-int8": "Roomscribe, CPU, 30 s, INT8",
    "cpu": "Roomscribe, CPU, 10 s, INT8 (as configured)",
    "cpu-beam": "Roomscribe, CPU, 10 s, INT8, beam 5 (as configured, for files)",
    "hybrid": "Roomscribe, hybrid: encoder on the Hailo, cached decoder on the CPU",
    "npu": "Roomscribe, full NPU: encoder and decoder on the Hailo",
}
FASTER_WHISPER, BEAM = "faster-whisper", "-beam"
MIXED, INT8_30S = "cpu-30s-fp32", "cpu-30s-int8"
RECIPES = {
    INT8_30S: Recipe("benchmark", LONGEST_WINDOW_S, quantize="int8"),
    "cpu": Recipe("benchmark", WINDOW_S, quantize="int8"),
}
"""How bundles are made of the weights."""
NEEDS_WEIGHTS = "it needs the weights: give --checkpoint FOLDER"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table before it is measured."""

    key: str
    folder: Path | None = None
    """CTranslate2's folder for faster-whisper, a bundle for the others; None: left out."""
    settings: Settings = field(default_factory=Settings)
    absent: str = ""
    """Why it is left out."""
    decoder: Path | None = None
    """The full NPU's folder with a decoder's HEF; None: the bundle's."""

    @property
    def label(self) -> str:
        """Its name for people."""
        return LABELS[self.key]

    @property
    def beam(self) -> bool:
        """Whether several texts are searched, as of a file."""
        return self.key.endswith(BEAM)

    @property
    def has_cache(self) -> bool:
        """Whether the product's decoder writes the text token by token on the CPU."""
        return not self.beam and self.key not in (FASTER_WHISPER, "npu")

    @property
    def on_chip(self) -> bool:
        """Whether a Hailo has a part in it."""
        return self.key in ("hybrid", "npu")


def wanted_rows(given: str) -> tuple[str, ...]:
    """Return the rows named in `given`, a list with commas; if it is empty, all. Raises
    ConfigError."""
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    if not set(names) <= set(LABELS) or (given and not names):
        raise ConfigError(f"benchmark --rows: expected some of {', '.join(LABELS)}, found {given}")
    return names or tuple(LABELS)


def make_rows(
    keys: Sequence[str],
    checkpoint: Path | None,
    settings: Settings,
    threads: int,
    scratch: Path,
) -> list[Row]:
    """Return the rows of these keys, their bundles written into `scratch`; rows that cannot be
    measured here say why. Raises ModelError for the checkpoint."""
    settings = replace(
        settings,
        encoder=replace(settings.encoder, backend="cpu", threads=threads),
        decoder=replace(settings.decoder, threads=threads),
        phrases=replace(settings.phrases, file=""),  # the search is no part of Whisper
    )
    return [_make(key, checkpoint, settings, scratch) for key in keys]


def _make(key: str, checkpoint: Path | None, settings: Settings, scratch: Path) -> Row:
    kind = key.removesuffix(BEAM)
    if kind == FASTER_WHISPER:
        absent = _lacking_faster_whisper(checkpoint)
        return Row(key, None if absent else checkpoint, settings, absent)
    if key in ("hybrid", "npu"):
        return _hailo_row(key, settings)
    if checkpoint:
        folder = scratch / kind
        if not folder.exists():  # beside it with a beam
            build_row(kind, checkpoint, folder)
        return Row(key, folder, settings)
    if kind == "cpu":
        return Row(key, load_bundle(settings.model.bundle).folder, settings)
    return Row(key, absent=NEEDS_WEIGHTS)


def build_row(kind: str, checkpoint: Path, folder: Path) -> None:
    """Write the bundle of a row. Raises ModelError."""
    build_bundle(checkpoint, folder, RECIPES[INT8_30S if kind == MIXED else kind])
    if kind == MIXED:
        wide = folder.with_name(f"{kind}-encoder")
        build_bundle(checkpoint, wide, replace(RECIPES[INT8_30S], quantize="none"))
        for file in wide.glob(f"{Path(ENCODER_FILE).stem}.*"):  # with its weights, if apart
            shutil.copyfile(file, folder / file.name)
            enter_files(folder, [file.name])
        shutil.rmtree(wide)


def _lacking_faster_whisper(checkpoint: Path | None) -> str:
    """Why faster-whisper cannot run these weights; "" if it can."""
    if find_spec("faster_whisper") is None:
        return "the package faster-whisper is not installed: pip install '.[benchmark]'"
    if checkpoint is None:
        return NEEDS_WEIGHTS
    missing = [n for n in ("model.bin", "tokenizer.json") if not (checkpoint / n).is_file()]
    if missing:
        return (
            f"faster-whisper reads CTranslate2's folders, and {checkpoint} has no "
            f"{' and no '.join(missing)}"
        )
    return ""


def _hailo_row(key: str, settings: Settings) -> Row:
    """A row on the Hailo, which runs the model in use: HEFs are compiled for one model."""
    try:
        if find_chip() is None:
            return Row(key, absent="there is no Hailo in this machine")
        bundle = load_bundle(settings.model.bundle)
    except (DeviceError, RoomscribeError) as error:
        return Row(key, absent=str(error))
    if bundle.hef is None:
        absent = f"the model in use, {bundle.name}, has no {HEF_FILE}: roomscribe model add tiny"
        return Row(key, absent=absent)
    settings = replace(settings, encoder=replace(settings.encoder, backend="hailo"))
    return Row(key, bundle.folder, settings)
