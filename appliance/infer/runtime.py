"""Whether this machine has a model and can run it: the package roomscribe-satellite has neither."""

from __future__ import annotations

import importlib.util

from appliance.config import Settings
from appliance.model import BUILT_IN, chosen_model, installed_bundles

LACKING = (
    "this machine cannot transcribe: {} is missing; have a worker transcribe "
    "(`sudo roomscribe fleet join CODE`), or install the package that contains it "
    "(`sudo apt install {}`)"
)


def lacking_runtime() -> str:
    """Return why no model can run here, with the fix, on one line; "" if one can."""
    try:
        found = importlib.util.find_spec("onnxruntime")
    except ImportError:
        found = None
    return "" if found else LACKING.format("the library onnxruntime", "roomscribe")


def lacking_model(settings: Settings) -> str:
    """Return why no model can run here, or that none is installed; "" if one can. onnxruntime may
    stay installed when the package that needed it is removed."""
    if lacking := lacking_runtime():
        return lacking
    found = settings.model.bundle or chosen_model() or BUILT_IN in installed_bundles()
    return "" if found else LACKING.format("a model", "roomscribe roomscribe-model-tiny-en")


def transcribed_elsewhere(settings: Settings) -> bool:
    """True if another machine transcribes, so that this one need not be able to."""
    return settings.fleet.role == "satellite" or settings.transcriber.backend == "wyoming"
