"""Bundles with random weights, built once a session by the real build: for tests of infer/."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_whisper import HOME, random_weights, write_checkpoint

from appliance.model.build import Recipe, build_bundle
from appliance.model.bundle import Bundle, load_bundle

RANDOM_RECIPE = Recipe(name="random", window_s=10.0, description="random weights", demo_model=True)


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the embedded model's shape. Not to be changed."""
    folder = tmp_path_factory.mktemp("checkpoint") / "random"
    return write_checkpoint(folder, HOME, random_weights(HOME, seed=1))


@pytest.fixture(scope="session")
def bundle_folder(tmp_path_factory: pytest.TempPathFactory, checkpoint_folder: Path) -> Path:
    """A bundle of the embedded model's shape. Not to be changed."""
    folder = tmp_path_factory.mktemp("bundle") / "random"
    build_bundle(checkpoint_folder, folder, RANDOM_RECIPE)
    return folder


@pytest.fixture(scope="session")
def bundle(bundle_folder: Path) -> Bundle:
    """The same, loaded."""
    return load_bundle(bundle_folder)
