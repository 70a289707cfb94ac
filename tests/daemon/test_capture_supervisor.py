"""The capture supervisor with a real microphone that is taken away, hangs, or is too loud."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from rigs.command import is_gone
from rigs.microphone import PulseMicrophone
from rigs.needs import needs_microphone
from rigs.sources import FakeSource, silence
from rigs.waiting import PATIENCE_S, until

from appliance import records
from appliance.config import CaptureSettings
from appliance.daemon.capture_supervisor import UNSTEADY, CaptureSupervisor
from appliance.daemon.health import Health
from appliance.daemon.mute import Mute
from appliance.daemon.stages import StageQueue
from appliance.errors import DeviceError

pytestmark = needs_microphone

SUPERVISOR = """
import sys, tempfile, time
from pathlib import Path
from appliance.daemon.capture_supervisor import CaptureSupervisor
from appliance.daemon.health import Health
from appliance.daemon.mute import Mute
from appliance.daemon.stages import StageQueue
from appliance.config import CaptureSettings
from appliance.records import Listener

last = 0
class Hearing(Listener):
    def on_frame(self, frame):
        global last
        if supervisor._recorder.pid != last:
            last = supervisor._recorder.pid
            print("frame", frame.start_s, time.monotonic(), last, flush=True)
def trouble():
    print("trouble", time.monotonic(), health.snapshot().troubles, flush=True)

health = Health(trouble)
settings = CaptureSettings(device=sys.argv[1], silence_s=float(sys.argv[2]))
mute = Mute(Path(tempfile.mkdtemp()))
supervisor = CaptureSupervisor(settings, health, mute, StageQueue(10), Hearing())
supervisor.listen(lambda: None)
"""


class Listener:
    """A capture supervisor in another process, and the lines that it prints."""

    def __init__(
        self, microphone: PulseMicrophone, device: str = "", silence_s: float = 0.0
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, device, str(silence_s)],
            env=microphone.environment,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self.reader = 0
        """Process that reads the microphone, as of the last frame that was told."""
        self._text = b""

    def wait(self, what: str, within_s: float = PATIENCE_S) -> list[str]:
        """The words of the next line that begins with `what`."""
        assert self._process.stdout
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            line, newline, rest = self._text.partition(b"\n")
            if newline:
                self._text = rest
                words = line.decode().split()
                if words[0] == what:
                    if what == "frame":
                        self.reader = int(words[3])
                    return words[1:]
            elif select.select([self._process.stdout], [], [], 0.2)[0]:
                data = os.read(self._process.stdout.fileno(), 65536)
                if not data:
                    raise RuntimeError("the supervisor has ended")
                self._text += data
        raise TimeoutError(f"no {what} within {within_s:g} s")

    def kill(self) -> None:
        """Kill the supervisor."""
        with self._process:  # closes its pipe
            self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[PulseMicrophone]:
    with PulseMicrophone(tmp_path / "rig") as microphone:
        yield microphone


@pytest.fixture
def listener(rig: PulseMicrophone) -> Iterator[Listener]:
    with Listener(rig) as one:
        one.wait("frame")
        yield one


def trouble(listener: Listener) -> str:
    """The next trouble; empty when all is well."""
    return " ".join(listener.wait("trouble", PATIENCE_S)[1:]).strip("{}")


def test_an_unplugged_microphone_is_reported_and_heard_when_it_is_back(
    rig: PulseMicrophone, listener: Listener
) -> None:
    rig.unplug()
    assert "is it still plugged in?" in trouble(listener)
    time.sleep(1)
    rig.plug()
    listener.wait("frame", PATIENCE_S)
    assert rig.listeners() == 1


def test_a_sound_server_that_stalls_is_noticed_and_heard_when_it_goes_on(
    rig: PulseMicrophone, listener: Listener
) -> None:
    reader = listener.reader
    rig.stall()
    try:
        assert "the sound server or the card hangs" in trouble(listener)
        assert is_gone(reader)
    finally:
        rig.go_on()
    listener.wait("frame", PATIENCE_S)
    assert listener.reader != reader
    assert rig.listeners() == 1


def test_a_sound_server_that_starts_again_is_heard(
    rig: PulseMicrophone, listener: Listener
) -> None:
    rig.stop()
    assert trouble(listener)
    rig.start()
    listener.wait("frame", PATIENCE_S)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_reader_that_dies_or_hangs_is_replaced(
    listener: Listener, number: signal.Signals
) -> None:
    reader = listener.reader
    os.kill(reader, number)
    assert trouble(listener)
    listener.wait("frame", PATIENCE_S)
    assert listener.reader != reader
    assert is_gone(reader)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_supervisor_that_is_killed_leaves_no_reader_and_no_open_microphone(
    rig: PulseMicrophone, listener: Listener, hangs: bool
) -> None:
    if hangs:
        os.kill(listener.reader, signal.SIGSTOP)
    listener.kill()
    until(lambda: is_gone(listener.reader))
    until(lambda: rig.listeners() == 0)


def test_digital_silence_counts_as_no_microphone_until_the_first_sound(
    rig: PulseMicrophone,
) -> None:
    hum = np.tile(np.array([20, -20], np.int16), 8_000 * 30)
    with Listener(rig, silence_s=0.5) as listener:
        told = trouble(listener)
        assert told.startswith("'microphone'")
        assert "digital silence" in told
        with rig.playing(hum):
            assert trouble(listener) == ""
            rig.mute(True)
            assert "alsamixer" in trouble(listener)
            rig.mute(False)
            assert trouble(listener) == ""


def test_sound_that_is_clipped_for_long_is_told_and_the_microphone_stays_online(
    rig: PulseMicrophone, listener: Listener
) -> None:
    square = np.where(np.arange(16_000 * 20) // 40 % 2, 32767, -32768).astype(np.int16)
    with rig.playing(square):
        told = trouble(listener)
    assert told.startswith("'sound'")
    assert "clipped" in told
    assert "'microphone'" not in told


def test_a_missing_microphone_is_logged_once_however_often_it_is_looked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[float] = []

    def source(*_: object) -> FakeSource:
        tries.append(time.monotonic())
        if len(tries) == 5:
            supervisor.stop()
        raise DeviceError("there is no microphone")

    supervisor = CaptureSupervisor(
        CaptureSettings(), Health(), Mute(tmp_path), StageQueue[records.Frame](10),
        records.Listener(), source=source, reopen_pause_s=0.01,
    )  # fmt: skip
    supervisor.listen(lambda: None)
    assert len(tries) == 5
    assert [record.message for record in caplog.records] == ["there is no microphone"]


def test_a_microphone_that_is_lost_again_and_again_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "roomscribe.daemon")
    opened: list[FakeSource] = []

    def breaking() -> Iterator[records.Frame]:
        yield from islice(silence(), 3)
        raise DeviceError("the microphone is lost")

    def source(*_: object) -> FakeSource:
        if len(opened) == 2 * UNSTEADY:
            supervisor.stop()
        opened.append(FakeSource(breaking()))
        return opened[-1]

    health, frames = Health(), StageQueue[records.Frame](1000)
    supervisor = CaptureSupervisor(
        CaptureSettings(), health, Mute(tmp_path), frames, records.Listener(), source=source
    )
    supervisor.listen(lambda: None)
    told = [record.message for record in caplog.records]
    assert sum("is lost" in line for line in told) == UNSTEADY
    assert "lost 5 times within 2 minutes" in told[-1]
    assert "lost 5 times" in str(health.snapshot().troubles["microphone"])
    heard = [frames.next(0.0) for _ in range(frames.qsize())]
    assert sum(isinstance(each, records.Frame) for each in heard) == 6 * UNSTEADY
