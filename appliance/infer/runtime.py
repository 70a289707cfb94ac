"""Whether this machine has a model and what runs one: the package roomscribe-ear has neither."""

from __future__ import annotations

import importlib.util

from appliance.config import Settings
from appliance.model import BUILT_IN, chosen_model, installed_bundles

LACKING = (
    "transcribing on this machine: expected {}, found none; have a brain transcribe "
    "(`sudo roomscribe fleet join CODE`), or take the package that brings it "
    "(`sudo apt install roomscribe`)"
)


def lacking_runtime() -> str:
    """Why no model can be run here, with the fix, on one line; empty where one can."""
    try:
        found = importlib.util.find_spec("onnxruntime")
    except ImportError:
        found = None
    return "" if found else LACKING.format("the library onnxruntime")


def lacking_model(settings: Settings) -> str:
    """The same, and why there is none to run: onnxruntime stays behind when the package that asked
    for it goes."""
    if lacking := lacking_runtime():
        return lacking
    found = settings.model.bundle or chosen_model() or BUILT_IN in installed_bundles()
    return "" if found else LACKING.format("a model")


def transcribed_elsewhere(settings: Settings) -> bool:
    """True when another machine is to transcribe, and none has to be able to here."""
    return settings.fleet.role == "ear" or settings.transcriber.backend == "wyoming"
