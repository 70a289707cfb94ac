"""Finds model bundles: by name in the package itself and in the models folders of
appliance.places, or where a path says."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.errors import ModelError
from appliance.places import BUILT_IN, PACKAGED, chosen_model, model_places

MANIFEST = "bundle.json"


def installed_bundles() -> dict[str, Path]:
    """Folders of the bundles that load_bundle finds by name; not verified."""
    found: dict[str, Path] = {}
    for place in model_places():
        if place.is_dir():
            for file in sorted(place.glob(f"*/{MANIFEST}")):
                found.setdefault(file.parent.name, file.parent)
    return found


def find_bundle(path_or_name: str | Path) -> Path:
    """The folder meant by a path or a bare name, which has a manifest. Raises ModelError."""
    path_or_name = path_or_name or chosen_model() or BUILT_IN
    if isinstance(path_or_name, Path) or os.sep in path_or_name or path_or_name in (".", ".."):
        folder = Path(path_or_name).expanduser()
        if not (folder / MANIFEST).is_file():
            raise ModelError(
                f"{folder}: expected a model bundle (a folder with a {MANIFEST}), found "
                f"{'no such file in it' if folder.is_dir() else 'no such folder'}; "
                f"correct [model] bundle; installed are: {_installed_names()}"
            )
        return folder
    installed = installed_bundles()
    if path_or_name in installed:
        return installed[path_or_name]
    places = ", ".join(map(str, model_places()))
    raise ModelError(
        f"model bundle {path_or_name!r}: expected it in {places}, found there: "
        f"{_installed_names()}; correct [model] bundle, or roomscribe model add tiny"
    )


def _installed_names() -> str:
    return ", ".join(installed_bundles()) or "none"


def cure(folder: Path) -> str:
    """What to do about a fault in a bundle."""
    if folder.resolve().is_relative_to(PACKAGED):
        return "the package is damaged: reinstall roomscribe"
    return "the bundle is damaged: install it again, or roomscribe model add tiny"
