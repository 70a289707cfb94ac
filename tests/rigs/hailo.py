"""A simulated Hailo for one test, and a bundle with a HEF for it."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rigs.hailo_simulator.control import Simulator, with_decoder, with_hef
from rigs.models import ODD, SMALL_SHAPE, random_weights, write_checkpoint
from rigs.waiting import until

from appliance.convert.build import Recipe, build_bundle
from appliance.convert.shapes import WhisperConfig
from appliance.infer.encoder import CpuEncoder, Encoder
from appliance.infer.hailo.failover import FailoverEncoder
from appliance.infer.hailo.process_owner import NpuProcess
from appliance.infer.hailo.shared import make_order
from appliance.model.bundle import Bundle, load_bundle
from appliance.records import Mel

PATIENT: dict[str, Any] = {"job_ms": 30_000, "first_job_ms": 30_000, "open_s": 60.0, "beat_s": 60.0}
"""For tests in which no job hangs: the simulated chip computes on this machine's processor."""


@pytest.fixture
def simulator(tmp_path: Path) -> Iterator[Simulator]:
    """A machine without a chip yet; at the end nothing must have gone wrong unnoticed."""
    simulator = Simulator(tmp_path / "machine")
    simulator.enter()
    try:
        simulator.set(latency_ms=1)
        yield simulator
        assert simulator.violations == []
    finally:
        simulator.leave()


@pytest.fixture(scope="session")
def hef_bundle(checkpoint_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of 2 s windows with a HEF for a Hailo-8. Not to be changed."""
    folder = tmp_path_factory.mktemp("hailo")
    build_bundle(checkpoint_folder, folder / "plain", Recipe("small", 2.0))
    return with_hef(load_bundle(folder / "plain"), folder / "small")


LENGTHS = {"home": 40, "odd": 45}
"""Tokens in the sequence of the decoders below."""


def build_npu_bundle(folder: Path, name: str, config: WhisperConfig, seed: int) -> Bundle:
    """Return a bundle of 2 s windows with random weights and both HEFs for a Hailo-8."""
    checkpoint = write_checkpoint(folder / "checkpoint", config, random_weights(config, seed))
    build_bundle(checkpoint, folder / "plain", Recipe(name, 2.0))
    encoding = with_hef(load_bundle(folder / "plain"), folder / name)
    return with_decoder(encoding, checkpoint, LENGTHS[name])


@pytest.fixture(scope="session")
def npu_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Two of them. Not to be changed."""
    return {
        name: build_npu_bundle(tmp_path_factory.mktemp(name), name, config, seed)
        for name, config, seed in (("home", SMALL_SHAPE, 1), ("odd", ODD, 3))
    }


@pytest.fixture
def npu_bundle(npu_bundles: dict[str, Bundle]) -> Bundle:
    """The first of them."""
    return npu_bundles["home"]


@pytest.fixture
def copied(npu_bundle: Bundle, tmp_path: Path) -> Bundle:
    """The same, to be changed."""
    return load_bundle(shutil.copytree(npu_bundle.folder, tmp_path / "copied"))


def looked_after(encoder: Encoder, now_s: float) -> None:
    """Look after an encoder when a process that was killed has ended, and wait for what that
    began."""
    if isinstance(encoder, FailoverEncoder):
        until(encoder.has_released)
    encoder.poll(now_s)

    def is_settled() -> bool:
        encoder.poll(now_s)
        return encoder.name != "cpu" or not getattr(encoder, "pid", None)

    until(is_settled)


def failover(
    bundle: Bundle,
    cpu: CpuEncoder | None,
    clock: Callable[[], float] = time.monotonic,
    **limits: Any,
) -> FailoverEncoder:
    """An encoder for the simulated chip, not open yet; `limits` replace those of PATIENT."""
    order = make_order(bundle, **PATIENT | limits)
    return FailoverEncoder(lambda: NpuProcess(order), cpu, clock)


def mel_of(bundle: Bundle, seed: int) -> Mel:
    """A mel (W, n_mels) of noise."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return (rng.random((bundle.frames, bundle.n_mels)) * 2 - 1).astype(np.float32)


HOLDER = """
import sys, time
from hailo_platform import VDevice
parameters = VDevice.create_params()
if sys.argv[1:]:
    parameters.group_id, parameters.multi_process_service = "SHARED", "share" in sys.argv
device = VDevice(parameters)
print("holding", flush=True)
time.sleep(60)
"""


def hold(machine: Simulator, *words: str) -> subprocess.Popen[str]:
    """Another process that has the chip; `share`: through the service, `group`: by its group."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *words],
        env=os.environ | machine.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline() == "holding\n"
    return process
