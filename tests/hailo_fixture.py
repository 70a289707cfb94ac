"""A simulated Hailo for one test, and a bundle with a HEF for it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hailo_simulator.control import Simulator, with_hef

from appliance.infer.bundle import Bundle, load_bundle
from appliance.model.build import Recipe, build_bundle
from appliance.records import Mel


@pytest.fixture
def simulator(tmp_path: Path) -> Iterator[Simulator]:
    """A machine without a chip yet; at the end nothing must have gone wrong unnoticed."""
    simulator = Simulator(tmp_path / "machine")
    simulator.enter()
    gc.freeze()  # as the real classes do, the simulated ones collect garbage again and again
    try:
        simulator.set(latency_ms=1)
        yield simulator
        assert simulator.inner.violations == []
    finally:
        gc.unfreeze()
        simulator.leave()


@pytest.fixture(scope="session")
def hef_bundle(tmp_path_factory: pytest.TempPathFactory, checkpoint_folder: Path) -> Bundle:
    """A bundle of 2 s windows with a HEF for a Hailo-8. Not to be changed."""
    folder = tmp_path_factory.mktemp("hailo")
    build_bundle(checkpoint_folder, folder / "plain", Recipe("small", 2.0))
    return with_hef(load_bundle(folder / "plain"), folder / "small")


def mel_of(bundle: Bundle, seed: int) -> Mel:
    """A mel (W, n_mels) of noise."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return (rng.random((bundle.frames, bundle.n_mels)) * 2 - 1).astype(np.float32)
