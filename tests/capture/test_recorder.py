"""The process that reads the microphone: asked, waited for, killed; and what it would open."""

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rigs.command import is_gone
from rigs.waiting import until

from appliance.capture import portaudio
from appliance.capture.devices import Device
from appliance.capture.microphone import Microphone
from appliance.capture.portaudio import SOUND, Inbox, Message
from appliance.capture.recorder import LIMITS, EndError, Recorder, RecorderLimits, StallError
from appliance.config import CaptureSettings
from appliance.errors import DeviceError
from appliance.records import Frame

FAKE = """
import json, os, struct, sys, time
from appliance.capture.portaudio import Message
def tell(kind, data, lost=False, end_s=None):
    os.write(1, Message(kind, data, end_s or time.monotonic(), lost).pack())
def say(**words):
    tell(0, json.dumps(words).encode())
def opened(name="a fake", rate_hz=16000.0, channels=1):
    say(opened={"name": name, "rate_hz": rate_hz, "channels": channels})
say(started=True)
sys.stdin.readline()
"""
"""A recorder's program that says what a test lets it say, after the first request."""


def fake(program: str, limits: RecorderLimits = LIMITS) -> Recorder:
    return Recorder([sys.executable, "-c", FAKE + program], limits)


def test_a_reader_that_gives_nothing_is_killed_and_another_one_is_started() -> None:
    with fake("opened(); time.sleep(60)", RecorderLimits(first_s=0.3)) as one:
        one.open("")
        pid = one.pid
        assert pid
        with pytest.raises(StallError, match="nothing for"):
            one.read()
        assert is_gone(pid)
        one.open("")
        assert one.pid != pid


def test_a_reader_that_does_not_even_open_is_a_device_error_with_its_fix() -> None:
    with (
        fake("time.sleep(60)", RecorderLimits(open_s=0.3)) as one,
        pytest.raises(DeviceError, match="start the sound server"),
    ):
        one.open("")


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("os.kill(os.getpid(), 11); time.sleep(9)", "SIGSEGV"),
        ("sys.exit(3)", "exit status 3"),
        ("say(lost='Input/output error')", "Input/output error"),
    ],
)
def test_a_reader_that_ends_says_how(end: str, told: str) -> None:
    with fake(f"opened(); {end}") as one:
        one.open("")
        with pytest.raises(EndError, match=told):
            one.read()


def test_a_reader_that_found_nothing_is_asked_again_before_there_is_another() -> None:
    program = "say(error='none')\nfor line in sys.stdin: say(error='none')"
    with fake(program, RecorderLimits(attempts=3)) as one:
        pids = []
        for _ in range(4):
            with pytest.raises(DeviceError, match="none"):
                one.open("")
            pids.append(one.pid)
    assert pids[0] == pids[1] == pids[2] != pids[3]


@pytest.mark.parametrize("program", ["time.sleep(3600)", "opened(); time.sleep(3600)"])
def test_an_opening_or_a_reading_ends_at_once_when_interrupted(program: str) -> None:
    with fake(program) as one:
        if program.startswith("opened"):
            one.open("")
        threading.Timer(0.3, one.interrupt).start()
        if program.startswith("opened"):
            assert one.read() is None
        else:
            with pytest.raises(DeviceError, match="stopped"):
                one.open("")
        one.resume()


def test_stereo_at_44100_becomes_frames_of_the_same_tone_in_time() -> None:
    program = """
import math
opened(rate_hz=44100.0, channels=2)
begun_s, at = time.monotonic(), 0
for block in range(100):
    tone = [round(9000 * math.sin(2 * math.pi * 440 * (at + i) / 44100)) for i in range(1323)]
    at += 1323
    data = struct.pack("2646h", *(value for one in tone for value in (one, one)))
    tell(1, data, end_s=begun_s + at / 44100)
time.sleep(60)
"""
    with Microphone(CaptureSettings(), fake(program)) as microphone:
        frames = []
        for frame in microphone.frames():
            frames.append(frame)
            if len(frames) == 95:
                microphone.stop()
    assert not any(frame.after_gap for frame in frames)
    assert np.allclose(np.diff([frame.start_s for frame in frames]), 0.03, atol=0.001)
    sound = np.concatenate([frame.samples for frame in frames[2:]]).astype(float)
    loudest = np.argmax(np.abs(np.fft.rfft(sound * np.hanning(len(sound)))))
    assert loudest * 16_000 / len(sound) == pytest.approx(440, abs=1)
    assert np.abs(sound).max() == pytest.approx(9000, rel=0.02)


def test_what_came_before_a_loss_is_heard_although_it_was_late() -> None:
    program = """
opened()
now_s = time.monotonic()
tell(1, bytes(960), end_s=now_s)
tell(1, struct.pack("480h", *range(480)), end_s=now_s + 0.4)
say(lost="gone")
"""
    heard: list[Frame] = []
    with (
        Microphone(CaptureSettings(), fake(program)) as microphone,
        pytest.raises(DeviceError, match="expected sound, found gone"),
    ):
        heard.extend(microphone.frames())
    assert [frame.samples.any() for frame in heard] == [False, True]


def test_blocks_that_have_arrived_are_read_as_one_up_to_a_loss() -> None:
    inbox = Inbox()
    for number in range(5):
        inbox.push(Message(SOUND, bytes([number]), float(number), number == 2).pack())
    joined = [inbox.join(block) for _ in range(2) if (block := inbox.next())]
    whole = Message(SOUND, bytes([0, 1]), 1.0), Message(SOUND, bytes([2, 3, 4]), 4.0, True)
    assert joined == [*whole]


def test_a_parent_that_is_killed_leaves_no_reader_behind() -> None:
    program = (
        "from appliance.capture.recorder import Recorder; import time\n"
        "one = Recorder(); one.devices(); print(one.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        reader = int(parent.stdout.readline())
        try:
            os.kill(reader, signal.SIGTERM)
            os.kill(reader, signal.SIGINT)
            time.sleep(0.2)
            assert not is_gone(reader), "it is the parent that is to decide when to stop"
        finally:
            parent.kill()
    until(lambda: is_gone(reader))


class FakePortAudio:
    """Opens what is in `possible` only: (rate, channels)."""

    class PortAudioError(Exception):
        """As sounddevice's own."""

    def __init__(self, *possible: tuple[float, int], reason: str = "Invalid sample rate") -> None:
        self._possible, self._reason = possible, reason

    def RawInputStream(self, samplerate: float, channels: int, **_more: Any) -> object:  # noqa: N802
        if (samplerate, channels) not in self._possible:
            raise self.PortAudioError(self._reason, -9997)
        return SimpleNamespace()


CARD = Device(0, "USB Mic: Audio (hw:1,0)", 6, 44100.0, default=True)


@pytest.mark.parametrize(
    ("possible", "channel"),
    [((16000.0, 1), 0), ((16000.0, 2), 0), ((44100.0, 1), 0), ((44100.0, 6), 0), ((16000.0, 6), 4)],
)
def test_the_shape_nearest_to_what_is_needed_is_opened(
    possible: tuple[float, int], channel: int
) -> None:
    card = FakePortAudio(possible, (44100.0, 6))
    _, *shape = portaudio._open(card, CARD, "", channel)  # type: ignore[arg-type]
    assert tuple(shape) == possible


def test_a_channel_that_a_card_does_not_have_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"capture\.channel: expected at most 6, .*, found 7"):
        portaudio._open(FakePortAudio(), CARD, "", 7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("Invalid number of channels", "plug it in again"),
        ("Device unavailable", "end the program that is using it"),
        ("Device or resource busy", "end the program that is using it"),
    ],
)
def test_a_microphone_that_does_not_open_says_why_and_what_to_do(reason: str, fix: str) -> None:
    with pytest.raises(DeviceError) as caught:
        portaudio._open(FakePortAudio(reason=reason), CARD, "", 0)  # type: ignore[arg-type]
    assert reason in str(caught.value)
    assert fix in str(caught.value)
    assert "16000 or 44100 Hz" in str(caught.value)
