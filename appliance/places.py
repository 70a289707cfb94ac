"""Where model bundles lie, and which one is in use when the configuration names none."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGED = Path(__file__).resolve().parent / "bundles"
"""Comes with the package; never written to."""
INSTALLED = Path("/var/lib/roomscribe/models")
VARIABLE = "ROOMSCRIBE_MODELS"
"""Environment variable naming another folder than INSTALLED to put models into."""
BUILT_IN = "home-en"
CHOICE = "in-use"
"""File in the models folder that holds the name of the chosen model."""


def models_folder() -> Path:
    """Where models are installed: $ROOMSCRIBE_MODELS, else INSTALLED."""
    named = os.environ.get(VARIABLE, "")
    return Path(named).expanduser().absolute() if named else INSTALLED


def model_places() -> list[Path]:
    """Folders in which a model is looked for by its name, in this order."""
    return list(dict.fromkeys([PACKAGED, INSTALLED, models_folder()]))


def chosen_model() -> str:
    """Name of the model that `roomscribe model use` chose; "" when nobody chose one."""
    try:
        return (models_folder() / CHOICE).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
