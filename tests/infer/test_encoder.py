"""The encoder runs on the NPU, and on the CPU while that cannot: no window is lost between them."""

import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rigs.command import captured
from rigs.hailo import PATIENT, failover, hold, looked_after, mel_of
from rigs.hailo_simulator.control import Simulator, with_hef
from rigs.waiting import until

from appliance.capture import recorder
from appliance.capture.microphone import Microphone
from appliance.config import CaptureSettings, EncoderSettings
from appliance.daemon.single_instance import lock_instance
from appliance.errors import DeviceError, ModelError
from appliance.infer.encoder import CpuEncoder
from appliance.infer.hailo import diagnosis, failover as failover_module
from appliance.infer.hailo.diagnosis import NpuError
from appliance.infer.hailo.failover import FailoverEncoder
from appliance.infer.hailo.process_owner import NpuProcess
from appliance.infer.hailo.shared import make_order
from appliance.infer.opening import open_encoder
from appliance.model.bundle import ENCODER_FILE, Bundle

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


def on_clock(bundle: Bundle, clock: Clock, **limits: Any) -> FailoverEncoder:
    return failover(bundle, CpuEncoder(bundle, 1), clock, **limits)


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
    assert facts["chip"] == "hailo8" and facts["temperature_c"] == 51.5
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
    assert simulator.history == []


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


HASTY = {"job_ms": 300, "longest_job_ms": 5000, "first_job_ms": 2000}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a failed job": ({"fail_jobs": "all"}, "HAILO_INTERNAL_FAILURE"),
    "a full queue": ({"fail_jobs": "all", "fail_status": 82}, "HAILO_QUEUE_IS_FULL"),
    "a job given up": ({"fail_jobs": "all", "fail_status": 63}, "abort"),
    "a hang": ({"hang_jobs": "all"}, "did not answer in time"),
    "numbers that are none": ({"nan_jobs": "all"}, "NaN or infinity; if it happens again, restart"),
    "a dead chip": ({"dead": True}, "abort"),
}
HEALTHY = {"fail_jobs": [], "hang_jobs": [], "nan_jobs": [], "dead": False}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_window_that_the_npu_fails_comes_from_the_cpu_at_once(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock, fault: str
) -> None:
    simulator.plug()
    encoder = on_clock(hef_bundle, clock, **HASTY | {"job_ms": 1000, "answer_ms": 30_000})
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


def test_a_process_that_is_stopped_during_a_job_is_killed_and_the_cpu_encodes(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock
) -> None:
    simulator.plug()
    encoder = on_clock(hef_bundle, clock, **HASTY)
    encoder.open()
    mel, pid = mel_of(hef_bundle, 1), encoder.pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    assert np.array_equal(encoder.encode(mel), CpuEncoder(hef_bundle, 1).encode(mel))
    assert re.search(r"no answer within \d+ ms; its process was killed", str(encoder.trouble))
    until(encoder.has_released)
    assert not Path(f"/proc/{pid}").exists() and diagnosis.owners() == []
    clock.now_s += 29
    looked_after(encoder, clock.now_s)
    assert encoder.pid is None, "it is tried again half a minute later"
    clock.now_s += 1
    looked_after(encoder, clock.now_s)
    assert encoder.name == "hailo8" and encoder.pid != pid
    encoder.close()


def test_a_process_that_is_stopped_while_it_opens_the_chip_is_killed(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock
) -> None:
    encoder = on_clock(hef_bundle, clock, open_s=1.0)
    simulator.plug()
    encoder.poll(clock.now_s)
    assert encoder.pid
    os.kill(encoder.pid, signal.SIGSTOP)
    mel, cpu = mel_of(hef_bundle, 1), CpuEncoder(hef_bundle, 1)
    assert np.array_equal(encoder.encode(mel), cpu.encode(mel)) and encoder.pid, "it is waited for"

    def is_dropped() -> bool:
        encoder.poll(clock.now_s)
        return encoder.pid is None

    until(is_dropped)
    assert "opening the chip took too long" in str(encoder.trouble)
    until(encoder.has_released)
    encoder.close()
    again = on_clock(hef_bundle, clock)
    again.open()
    again.close()


def test_a_call_that_holds_the_interpreters_lock_is_found_by_the_heartbeat(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock
) -> None:
    simulator.plug()
    encoder = on_clock(hef_bundle, clock, beat_s=1.0, read_every_s=0.0)
    encoder.open()
    simulator.set(hold_s=30.0)
    assert encoder.encode(mel_of(hef_bundle, 1)).any(), "a good job, and then the sensors are read"

    def has_noticed() -> bool:
        encoder.poll(clock.now_s)
        return encoder.name == "cpu"

    until(has_noticed)
    assert "HailoRT hangs; its process was killed" in str(encoder.trouble)
    encoder.close()


SPEAK = """
import os, sys, time
pipe, lost = os.open(sys.argv[1], os.O_WRONLY | os.O_NONBLOCK), 0
for _ in range(400):
    time.sleep(0.03)
    try:
        os.write(pipe, bytes(960))
    except BlockingIOError:
        lost += 1
print(lost)
"""
"""12 s of sound; prints how many of its 400 frames nobody read in time."""


def test_no_frame_is_lost_while_every_call_of_hailort_hangs(
    simulator: Simulator, hef_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 10 s with the interpreter's lock; the recorder keeps 4 s here, the pipe 2."""
    monkeypatch.setattr(recorder, "PIPE_BYTES", 1 << 17)
    simulator.plug(hold_s=10.0, latency_ms=10_000)
    encoder = failover(hef_bundle, CpuEncoder(hef_bundle, 1))
    os.mkfifo(pipe := tmp_path / "microphone")
    settings = CaptureSettings(device=f"pipe://{pipe}?sampleformat=16000:16:1")
    with ThreadPoolExecutor() as pool, Microphone(settings) as microphone:
        speaker = pool.submit(captured, sys.executable, "-c", SPEAK, pipe)
        opening = pool.submit(encoder.open)
        assert len(list(islice(microphone.frames(), 400))) == 400
        assert speaker.result().stdout == "0\n"
        assert not opening.done() and encoder.pid, "it was hanging all the time"
        os.kill(encoder.pid, signal.SIGKILL)
        with pytest.raises(DeviceError):
            opening.result()
    encoder.close()


class Unkillable(NpuProcess):
    """A process in a driver that never returns: no signal ends it until `ends`."""

    ends = False

    def kill(self, within_s: float = 0.0) -> bool:
        """See NpuProcess."""
        return self.ends and super().kill(within_s)


def test_a_process_that_cannot_be_killed_is_left_behind(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator.plug()
    monkeypatch.setattr(failover_module, "KILLED_WITHIN_S", 0.0)
    order = make_order(hef_bundle, **PATIENT | HASTY)
    started: list[Unkillable] = []

    def start() -> NpuProcess:
        started.append(Unkillable(order))
        return started[-1]

    encoder = FailoverEncoder(start, CpuEncoder(hef_bundle, 1), clock)
    encoder.open()
    os.kill(started[0].pid, signal.SIGSTOP)
    for _ in range(3):
        assert encoder.encode(mel_of(hef_bundle, 1)).any()
        clock.now_s += 600
        encoder.poll(clock.now_s)
    assert f"its process {started[0].pid} hangs in the driver" in str(encoder.trouble)
    assert "cannot be killed; restart the machine" in str(encoder.trouble)
    assert len(started) == 1, "another one would hang in the same driver"
    started[0].ends = True
    looked_after(encoder, clock.now_s)
    assert len(started) == 2 and encoder.name == "hailo8" and encoder.trouble is None
    started[1].ends = True
    encoder.close()


def test_a_process_that_crashes_says_how_and_another_is_tried_later(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock
) -> None:
    simulator.plug(crash=True)
    encoder = on_clock(hef_bundle, clock)
    with pytest.raises(DeviceError, match="the end of its process by SIGSEGV"):
        encoder.open()
    simulator.set(crash=False)
    clock.now_s += 30
    looked_after(encoder, clock.now_s)
    assert encoder.name == "hailo8"
    assert encoder.pid
    os.kill(encoder.pid, signal.SIGKILL)
    assert encoder.encode(mel_of(hef_bundle, 1)).any()
    assert "SIGKILL" in str(encoder.trouble)
    encoder.close()


def test_the_process_has_no_descriptor_of_the_daemon_and_ends_when_it_is_closed(
    simulator: Simulator, hef_bundle: Bundle, clock: Clock, tmp_path: Path
) -> None:
    simulator.plug()
    with lock_instance(tmp_path), socket.socket(), (tmp_path / "log").open("w") as log:
        os.set_inheritable(log.fileno(), True)  # as a library may leave one
        encoder = on_clock(hef_bundle, clock)
        encoder.open()
        opened = [str(link.readlink()) for link in Path(f"/proc/{encoder.pid}/fd").iterdir()]
        allowed = ("pipe:", "/dev/null", "/memfd:roomscribe-npu", str(simulator.folder))
        assert [name for name in opened if not name.startswith(allowed)] == []
        encoder.close()
    assert diagnosis.owners() == []


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
    simulator.plug()
    tried: list[float] = []

    def start() -> NpuProcess:
        tried.append(clock.now_s)
        if clock.now_s < 1400:
            raise NpuError("unknown", "refused")
        return NpuProcess(make_order(hef_bundle, **PATIENT))

    encoder = FailoverEncoder(start, CpuEncoder(hef_bundle, 1), clock)
    with pytest.raises(DeviceError):
        encoder.open()
    for _ in range(300):
        clock.now_s += 1
        looked_after(encoder, clock.now_s)
    pauses = np.diff(tried).tolist()
    assert pauses[:5] == [1, 2, 4, 8, 16] and set(pauses[5:]) == {30}
    clock.now_s += 200
    looked_after(encoder, clock.now_s)
    for expected_s, windows in ((30, 3), (1, failover_module.STEADY_AFTER)):
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
    encoder = on_clock(hef_bundle, clock, read_every_s=0.0)
    encoder.open()
    simulator.set(zone=2, temperature_c=121.0)
    assert encoder.encode(mel_of(hef_bundle, 1)).any()

    def has_noticed() -> bool:
        encoder.poll(clock.now_s)
        return encoder.name == "cpu"

    until(has_noticed)
    assert encoder.trouble and "121 °C" in encoder.trouble
    simulator.set(zone=0, temperature_c=70.0)
    clock.now_s += 60
    looked_after(encoder, clock.now_s)
    assert encoder.name == "hailo8" and encoder.facts()["temperature_c"] == 70.0
    encoder.close()
