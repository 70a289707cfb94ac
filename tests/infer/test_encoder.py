"""The encoder runs on the NPU, and on the CPU while that cannot: no window is lost between them."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rigs.hailo import PATIENT, hold, looked_after, mel_of
from rigs.hailo_simulator.control import Simulator, with_hef

from appliance.config import EncoderSettings
from appliance.errors import DeviceError, ModelError
from appliance.infer.encoder import CpuEncoder
from appliance.infer.hailo import diagnosis, failover
from appliance.infer.hailo.failover import FailoverEncoder
from appliance.infer.hailo.npu import NpuLimits, is_closing, open_npu
from appliance.infer.opening import open_encoder
from appliance.model.bundle import ENCODER_FILE, HEF_FILE, Bundle

AUTO, HAILO, CPU = (EncoderSettings(backend=name, threads=1) for name in ("auto", "hailo", "cpu"))


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def on_clock(bundle: Bundle, clock: Clock, limits: NpuLimits = PATIENT) -> FailoverEncoder:
    file = bundle.folder / HEF_FILE
    cpu = CpuEncoder(bundle, 1)
    return FailoverEncoder(lambda: open_npu(bundle, file, share=False, limits=limits), cpu, clock)


def test_without_a_chip_the_cpu_encodes_and_nothing_is_said(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    encoder = open_encoder(hef_bundle, AUTO)
    looked_after(encoder, 0.0)
    assert encoder.encode(mel_of(hef_bundle, 1)).shape == (100, 128)
    assert (encoder.name, encoder.trouble, encoder.facts()) == ("cpu", None, {})
    encoder.close()


def test_a_chip_that_comes_later_is_taken(simulator: Simulator, hef_bundle: Bundle) -> None:
    encoder = open_encoder(hef_bundle, AUTO)
    simulator.plug()
    looked_after(encoder, 0.0)
    assert encoder.name == "hailo8" and encoder.trouble is None
    encoder.close()


@pytest.mark.parametrize("settings", [AUTO, HAILO])
def test_a_chip_that_is_there_is_used(
    simulator: Simulator, hef_bundle: Bundle, settings: EncoderSettings
) -> None:
    simulator.plug()
    encoder = open_encoder(hef_bundle, settings)
    mel = mel_of(hef_bundle, 1)
    assert np.allclose(encoder.encode(mel), CpuEncoder(hef_bundle, 1).encode(mel), atol=1e-5)
    assert encoder.name == "hailo8" and encoder.trouble is None
    facts = encoder.facts()
    assert facts["chip"] == "hailo8" and facts["temperature_c"] == 51.5 and facts["power_w"] == 1.6
    assert facts["driver"] == facts["library"] == "4.23.0" and "4.23.0" in facts["firmware"]
    facts.clear()
    assert encoder.facts()
    encoder.close()


def test_the_cpu_is_used_where_it_is_asked_for_or_there_is_no_hef(
    simulator: Simulator, hef_bundle: Bundle, bundle: Bundle
) -> None:
    simulator.plug()
    for encoder in (open_encoder(hef_bundle, CPU), open_encoder(bundle, AUTO)):
        assert isinstance(encoder, CpuEncoder) and encoder.name == "cpu"
        looked_after(encoder, 0.0)
        assert (encoder.trouble, encoder.facts()) == (None, {})
        encoder.close()
    assert simulator.inner.history == []


def test_with_hailo_alone_a_chip_that_cannot_be_used_stops_the_start(
    simulator: Simulator, hef_bundle: Bundle, bundle: Bundle
) -> None:
    with pytest.raises(DeviceError, match="no Hailo found"):
        open_encoder(hef_bundle, HAILO)
    with pytest.raises(
        ModelError, match=r"no encoder\.hef, which .* --hef hailo8, or set backend = au"
    ):
        open_encoder(bundle, HAILO)
    simulator.plug(busy=True)
    with pytest.raises(DeviceError, match="in use by"):
        open_encoder(hef_bundle, HAILO)


def test_with_auto_a_chip_that_cannot_be_used_is_a_trouble_with_its_fix(
    simulator: Simulator, hef_bundle: Bundle, tmp_path: Path
) -> None:
    simulator.plug(busy=True)
    encoder = open_encoder(hef_bundle, AUTO)
    assert encoder.trouble and "share = true" in encoder.trouble
    assert encoder.trouble.endswith("until then the CPU encodes")
    assert encoder.encode(mel_of(hef_bundle, 1)).any() and encoder.name == "cpu"
    simulator.set(busy=False)
    other = open_encoder(with_hef(hef_bundle, tmp_path / "b", "HAILO10H"), AUTO)
    assert other.trouble and "it is for another chip" in other.trouble
    for each in (encoder, other):
        each.close()


def test_a_model_without_an_encoder_for_the_cpu_needs_the_chip(
    simulator: Simulator, hef_bundle: Bundle
) -> None:
    files = tuple(name for name in hef_bundle.files if name != ENCODER_FILE)
    alone = replace(hef_bundle, files=files)
    with pytest.raises(DeviceError, match="no Hailo found"):
        open_encoder(alone, AUTO)
    with pytest.raises(ModelError, match=r"has no encoder\.onnx"):
        open_encoder(replace(alone, files=()), AUTO)
    simulator.plug()
    encoder = open_encoder(alone, AUTO)
    simulator.set(fail_jobs="all")
    for _ in range(2):
        with pytest.raises(DeviceError, match="no encoder for the CPU"):
            encoder.encode(mel_of(hef_bundle, 1))
    encoder.close()


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a failed job": ({"fail_jobs": "all"}, "HAILO_INTERNAL_FAILURE"),
    "a full queue": ({"fail_jobs": "all", "fail_status": 82}, "HAILO_QUEUE_IS_FULL"),
    "a job given up": ({"fail_jobs": "all", "fail_status": 63}, "stream_abort"),
    "a hang": ({"hang_jobs": "all"}, "did not answer in time"),
    "numbers that are none": ({"nan_jobs": "all"}, "NaN or infinity"),
    "a dead chip": ({"dead": True}, "stream_abort"),
}
HEALTHY = {"fail_jobs": [], "hang_jobs": [], "nan_jobs": [], "dead": False}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_window_that_the_npu_fails_comes_from_the_cpu_at_once(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock, fault: str
) -> None:
    simulator.plug()
    encoder = on_clock(hef_bundle, clock, NpuLimits(job_ms=1000, first_job_ms=2000))
    encoder.open()
    mel, cpu = mel_of(hef_bundle, 7), CpuEncoder(hef_bundle, 1)
    settings, words = FAULTS[fault]
    simulator.set(**settings)
    assert np.array_equal(encoder.encode(mel), cpu.encode(mel))
    assert encoder.name == "cpu" and encoder.trouble and words in encoder.trouble
    assert encoder.facts() == {"counters": {"npu_failovers": 1}}
    clock.now_s += 1.5
    looked_after(encoder, clock.now_s)
    assert encoder.name == "cpu" and encoder.trouble, "the fault is still there"
    simulator.set(**HEALTHY)
    clock.now_s += 2.5
    looked_after(encoder, clock.now_s)
    assert encoder.name == "hailo8" and encoder.trouble is None and encoder.facts()
    assert np.allclose(encoder.encode(mel), cpu.encode(mel), atol=1e-5)
    encoder.close()


DEAF = {"hang_jobs": "all", "hang_s": 60.0, "ignore_abort": True}
"""A chip that hangs, and takes no notice of being given up."""
HEARS = {"hang_jobs": [], "ignore_abort": False}
AT_ONCE_S = 1.5
"""Less than what hangs here takes."""
SOON_S = 2.0
"""What a start or a stop may wait for it."""


def seconds(action: Callable[..., object], *arguments: object) -> float:
    """How long it takes."""
    begun_s = time.monotonic()
    action(*arguments)
    return time.monotonic() - begun_s


def test_nobody_waits_for_a_chip_that_hangs_and_cannot_be_given_up(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock
) -> None:
    simulator.plug(close_s=2.0)
    limits = NpuLimits(job_ms=500, first_job_ms=1200)
    encoder, cpu = on_clock(hef_bundle, clock, limits), CpuEncoder(hef_bundle, 1)
    encoder.open()
    mels = [mel_of(hef_bundle, seed) for seed in range(8)]
    wanted = [cpu.encode(mel) for mel in mels]
    encoder.encode(mels[0])
    before = threading.active_count()
    simulator.set(**DEAF)
    begun_s, longest_s, most, tried = time.monotonic(), 0.0, 0, 0

    def encode(number: int) -> None:
        assert np.array_equal(encoder.encode(mels[number]), wanted[number])

    def tried_again() -> bool:
        return "the first job" in str(encoder.trouble)

    # it is closed, opened in vain, and closed again, on a busy machine later
    while (passed_s := time.monotonic() - begun_s) < 5.0 or not (tried_again() or passed_s > 30):
        clock.now_s += 0.1
        encoding_s = seconds(encode, tried % len(mels))
        longest_s = max(longest_s, encoding_s, seconds(encoder.poll, clock.now_s))
        assert encoder.name == "cpu" and encoder.trouble
        assert "did not answer in time" in encoder.trouble
        most = max(most, threading.active_count())
        tried += 1
        time.sleep(0.05)
    assert longest_s < AT_ONCE_S and most <= before + 2
    assert tried_again()
    simulator.set(**HEARS)
    clock.now_s += 60
    for _ in range(2):  # what was begun before ends first
        looked_after(encoder, clock.now_s)
        clock.now_s += 60
    assert encoder.name == "hailo8" and encoder.trouble is None
    encoder.close()


def test_closing_does_not_wait_for_a_chip_that_hangs(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock
) -> None:
    simulator.plug(close_s=4.0)
    limits = NpuLimits(job_ms=200)
    encoder = on_clock(hef_bundle, clock, limits)
    encoder.open()
    simulator.set(**DEAF)
    encoder.encode(mel_of(hef_bundle, 1))
    clock.now_s += 31.0
    encoder.poll(clock.now_s)
    assert "did not answer in time" in str(encoder.trouble)
    assert "sudo systemctl restart roomscribe" in str(encoder.trouble)
    assert seconds(encoder.close) < SOON_S
    with pytest.raises(DeviceError, match="not released a chip that hangs"):
        on_clock(hef_bundle, clock, limits).open()
    simulator.set(**HEARS)
    assert not is_closing(20.0) and diagnosis.owners() == []


def test_a_chip_that_is_pulled_out_is_taken_again_as_soon_as_it_is_back(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock
) -> None:
    simulator.plug()
    encoder = on_clock(hef_bundle, clock)
    encoder.open()
    simulator.unplug()
    assert encoder.encode(mel_of(hef_bundle, 1)).any() and encoder.name == "cpu"
    for _ in range(100):
        clock.now_s += 1
        looked_after(encoder, clock.now_s)
        assert encoder.trouble
    simulator.plug()
    looked_after(encoder, clock.now_s)
    assert encoder.name == "hailo8" and encoder.trouble is None
    encoder.close()


def test_a_chip_that_another_program_had_is_taken_once_it_is_free(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock
) -> None:
    simulator.plug()
    other: subprocess.Popen[str] = hold(simulator)
    encoder = on_clock(hef_bundle, clock)
    with pytest.raises(DeviceError, match=f"process {other.pid}"):
        encoder.open()
    looked_after(encoder, clock.now_s)
    assert encoder.name == "cpu"
    other.kill()
    other.communicate()
    clock.now_s += 30
    looked_after(encoder, clock.now_s)
    assert encoder.name == "hailo8"
    encoder.close()


def test_pauses_between_attempts_grow_and_start_anew_after_steady_work(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock
) -> None:
    simulator.plug(refuse_status=8)
    tried: list[float] = []

    def refused() -> Any:
        tried.append(clock.now_s)
        return open_npu(hef_bundle, hef_bundle.folder / HEF_FILE, share=False)

    encoder = FailoverEncoder(refused, CpuEncoder(hef_bundle, 1), clock)
    with pytest.raises(DeviceError):
        encoder.open()
    for _ in range(300):
        clock.now_s += 1
        looked_after(encoder, clock.now_s)
    pauses = np.diff(tried).tolist()
    assert pauses[:5] == [1, 2, 4, 8, 16] and set(pauses[5:]) == {30}
    simulator.set(refuse_status=0)
    clock.now_s += 60
    looked_after(encoder, clock.now_s)
    for expected_s, windows in ((30, 3), (1, failover.STEADY_AFTER)):
        assert encoder.name == "hailo8"
        for seed in range(windows):
            encoder.encode(mel_of(hef_bundle, seed % 3))
        simulator.set(fail_jobs="all")
        encoder.encode(mel_of(hef_bundle, 1))
        simulator.set(fail_jobs=[])
        begun_s = clock.now_s
        while encoder.name == "cpu":
            clock.now_s += 1
            looked_after(encoder, clock.now_s)
        assert clock.now_s - begun_s == expected_s
    encoder.close()


def test_a_chip_that_becomes_too_hot_is_let_go_until_it_has_cooled_down(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock
) -> None:
    simulator.plug()
    encoder = on_clock(hef_bundle, clock)
    encoder.open()
    simulator.set(zone=2, temperature_c=121.0)
    for _ in range(40):
        clock.now_s += 1
        looked_after(encoder, clock.now_s)
    assert encoder.name == "cpu" and encoder.trouble and "121 °C" in encoder.trouble
    simulator.set(zone=0, temperature_c=70.0)
    clock.now_s += 60
    looked_after(encoder, clock.now_s)
    assert encoder.name == "hailo8" and encoder.facts()["temperature_c"] == 70.0
    encoder.close()


def test_a_stream_with_faults_everywhere_gives_what_the_cpu_alone_gives(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock
) -> None:
    simulator.plug()
    encoder, cpu = on_clock(hef_bundle, clock), CpuEncoder(hef_bundle, 1)
    encoder.open()
    rng = np.random.Generator(np.random.PCG64(5))
    used = []
    for number in range(60):
        strikes = rng.random() < 0.3
        simulator.set(fail_jobs="all" if strikes else [], fail_status=int(rng.choice([4, 8, 63])))
        mel = mel_of(hef_bundle, number)
        assert np.allclose(encoder.encode(mel), cpu.encode(mel), atol=1e-5)
        used.append(encoder.name)
        simulator.set(fail_jobs=[])
        clock.now_s += float(rng.random() * 60)
        looked_after(encoder, clock.now_s)
    assert used.count("hailo8") > 20 and used.count("cpu") > 10
    encoder.close()
