"""Whether this machine has what runs a model: the package roomscribe-ear comes without it."""

from __future__ import annotations

import importlib.util

from appliance.config import Settings

LACKING = (
    "transcribing on this machine: expected the library onnxruntime, found none; have a brain "
    "transcribe (`sudo roomscribe fleet join CODE`), or take the package that brings it "
    "(`sudo apt install roomscribe`)"
)


def lacking_runtime() -> str:
    """Why no model can be used here, with the cure, on one line; empty where one can."""
    try:
        found = importlib.util.find_spec("onnxruntime")
    except ImportError:
        found = None
    return "" if found else LACKING


def transcribed_elsewhere(settings: Settings) -> bool:
    """True when another machine is to transcribe, and none has to be able to here."""
    return settings.fleet.role == "ear" or settings.transcriber.backend == "wyoming"
