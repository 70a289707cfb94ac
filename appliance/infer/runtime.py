"""The model in use, and whether this machine can run one: roomscribe-satellite has none."""

import ctypes
import importlib.util
import platform
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

from appliance.config import Settings
from appliance.model import BUILT_IN, WINDOW_S, Bundle, chosen_model, installed_bundles, library

LACKING = (
    "this machine cannot transcribe: {} is missing; have a worker transcribe "
    "(`sudo roomscribe fleet join CODE`), or install the package that contains it "
    "(`sudo apt install {}`)"
)
OLD_PROCESSOR = (
    "this machine cannot transcribe: its processor has no half-precision numbers (a Raspberry Pi "
    "4, for example), and onnxruntime 1.21 ends at once there (microsoft/onnxruntime#23957); use "
    "a Raspberry Pi 5, or have a worker transcribe (`sudo roomscribe fleet join CODE`)"
)
AT_HWCAP, HWCAP_ASIMDHP = 16, 1 << 10
"""Linux, uapi/linux/auxvec.h and arch/arm64/include/uapi/asm/hwcap.h."""


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """The facts of a model elsewhere, in place of a bundle."""

    name: str
    language: str
    languages: tuple[str, ...]
    window_s: float = WINDOW_S
    """As long as the built-in model's where the other machine does not say."""

    @property
    def title(self) -> str:
        """The model's name for people."""
        return library.title_of(self.name)


Model = Bundle | RemoteModel
"""What the rest of the program reads of the model in use: name, title, languages and window_s."""


def lacking_runtime() -> str:
    """Return why no model can run here, with the fix, on one line; "" if one can."""
    try:
        found = importlib.util.find_spec("onnxruntime")
    except ImportError:
        found = None
    if not found:
        return LACKING.format("the library onnxruntime", "roomscribe")
    with suppress(metadata.PackageNotFoundError):
        if not _has_half_precision() and metadata.version("onnxruntime").startswith("1.21"):
            return OLD_PROCESSOR
    return ""


def _has_half_precision() -> bool:
    """False on an ARM processor before ARMv8.2, whose vector instructions have no float16."""
    is_other = platform.machine() != "aarch64"
    return is_other or bool(ctypes.CDLL(None).getauxval(AT_HWCAP) & HWCAP_ASIMDHP)


def lacking_model(settings: Settings) -> str:
    """Return why no model can run here, or that none is installed; "" if one can. onnxruntime may
    stay installed when the package that needed it is removed."""
    if lacking := lacking_runtime():
        return lacking
    found = settings.model.bundle or chosen_model() or BUILT_IN in installed_bundles()
    return "" if found else LACKING.format("a model", "roomscribe roomscribe-model-tiny-en")


def transcribed_elsewhere(settings: Settings) -> bool:
    """True if another machine transcribes, so that this one need not be able to."""
    return settings.fleet.role == "satellite"
