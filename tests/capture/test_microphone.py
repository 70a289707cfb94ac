"""The microphone: dated by the clock, and real sound through PulseAudio.

Digital silence and distortion, told and taken back.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from rigs.command import captured
from rigs.microphone import PulseMicrophone
from rigs.needs import needs_microphone
from rigs.waiting import PATIENCE_S

from appliance.capture.clock import SampleClock
from appliance.capture.microphone import Levels, list_microphones

LISTENER = """
import json, re, sys, time
import numpy as np
from appliance.capture.microphone import Microphone, list_microphones
from appliance.errors import DeviceError
from appliance.config import CaptureSettings

kept, dates, error = [], [], "none yet: the sound server hangs"
while "hangs" in error:  # as a busy machine seems to; opened again, as the daemon does
    error = ""
    try:
        with Microphone(CaptureSettings()) as microphone:
            for frame in microphone.frames():
                kept.append(frame.samples)
                dates.append((frame.start_s, time.monotonic()))
                if len(kept) == 33:  # a second; the first sound may come unsettled
                    maps = open(f"/proc/{microphone._recorder.pid}/maps").read()
                    plugins = sorted(set(re.findall(r"libasound_module_pcm_(\\w+)", maps)))
                    print("open", flush=True)
                if len(kept) * 0.03 >= float(sys.argv[2]):
                    microphone.stop()
    except DeviceError as trouble:
        error = str(trouble)
np.save(sys.argv[1], np.concatenate(kept))
names = [one.name for one in list_microphones()] if not error else []
print(json.dumps({"dates": dates, "error": error, "names": names, "plugins": plugins}))
"""


@pytest.mark.parametrize(
    ("trouble", "fix"),
    [
        ("raise OSError('PortAudio library not found')", "install the package libportaudio2"),
        ("raise ModuleNotFoundError('no sounddevice')", "pip install sounddevice"),
    ],
)
def test_a_missing_library_is_a_device_error_that_names_it(
    tmp_path: Path, trouble: str, fix: str
) -> None:
    (tmp_path / "sounddevice.py").write_text(trouble, encoding="utf-8")
    program = "from appliance.capture.microphone import list_microphones as l\nl()"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = captured(sys.executable, "-c", program, env=environment)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("appliance.errors.DeviceError: ")
    assert fix in last


def test_listing_works_with_and_without_a_microphone() -> None:
    assert all(one.channels > 0 for one in list_microphones())


def test_dates_follow_the_clock_smoothly_and_jump_only_over_lost_samples() -> None:
    clock = SampleClock()
    assert not clock.follow(100.03, 0.03)
    assert clock.began_s == pytest.approx(100.0)
    assert not clock.follow(100.08, 0.06)
    assert clock.began_s == pytest.approx(100.0002)
    verdicts = [
        clock.follow(101.09 + late, 0.09 + late) for late in map(float, np.arange(0, 0.6, 0.03))
    ]
    assert verdicts[:10] == [None] * 10
    assert verdicts.count(True) == 1
    assert clock.began_s == pytest.approx(101.0, abs=0.001)
    began_s = clock.began_s
    assert clock.follow(101.75, 0.72, lost=True)
    assert clock.began_s == pytest.approx(max(began_s, 101.03))


def test_sound_that_is_only_late_is_not_taken_for_lost() -> None:
    clock = SampleClock()
    assert not clock.follow(100.03, 0.03)
    burst = [clock.follow(101.0, heard_s) for heard_s in map(float, np.arange(0.06, 1.0, 0.03))]
    assert burst[0] is None
    assert burst[-1] is False
    assert True not in burst
    assert clock.began_s == pytest.approx(100.0, abs=0.01)


def test_dates_keep_up_with_a_sound_card_whose_clock_is_slow() -> None:
    clock = SampleClock()
    for block in range(1, 20_000):
        assert not clock.follow(100 + block * 0.03 * 1.0003, block * 0.03)
    assert clock.began_s + block * 0.03 == pytest.approx(100 + block * 0.03 * 1.0003, abs=0.01)


@needs_microphone
def test_what_is_spoken_is_what_is_heard_bit_for_bit_and_in_time(tmp_path: Path) -> None:
    spoken = np.random.default_rng(0).integers(-9000, 9000, 24000).astype(np.int16)
    # A sink that wakes up may swallow the first few milliseconds.
    soundfile.write(tmp_path / "noise.wav", np.append(np.zeros(8000, np.int16), spoken), 16000)
    with PulseMicrophone(tmp_path / "rig") as microphone:
        heard, told = listen(microphone, tmp_path, 5.0)
    begin = int(np.flatnonzero(heard)[0]) - int(np.flatnonzero(spoken)[0])
    assert np.array_equal(heard[begin : begin + len(spoken)], spoken)
    dates = np.array(told["dates"])
    steps = np.diff(dates[:, 0])
    # a busy machine may hold the reader up for a moment; the dates do not follow it
    assert np.median(steps) == pytest.approx(0.03, abs=0.001)
    assert np.mean(np.abs(steps - 0.03) < 0.005) > 0.9
    assert np.median(dates[:, 1] - dates[:, 0] - 0.03) == pytest.approx(0.03, abs=0.05)
    assert "default" in told["names"]
    assert told["plugins"] == ["pulse"], "the others of ALSA's plugins are not kept in memory"


@needs_microphone
def test_an_unplugged_microphone_is_a_device_error_that_says_what_to_do(tmp_path: Path) -> None:
    with PulseMicrophone(tmp_path / "rig") as microphone:
        _, told = listen(microphone, tmp_path, 60.0, unplug=True)
    assert re.search("still plugged in|plug one in|plug it in again", told["error"]), told["error"]


def listen(
    microphone: PulseMicrophone, folder: Path, seconds: float, unplug: bool = False
) -> tuple[NDArray[np.int16], dict[str, Any]]:
    """What another process hears while something is spoken, and what it tells about it."""
    arguments = [str(folder / "heard.npy"), str(seconds)]
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER, *arguments],
        env=microphone.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as listener:
        assert listener.stdout
        assert listener.stdout.readline() == "open\n"
        if unplug:
            microphone.stop()
        else:
            microphone.speak(folder / "noise.wav")
        output, _ = listener.communicate(timeout=PATIENCE_S)
    return np.load(folder / "heard.npy"), json.loads(output)


ZEROS = np.zeros((480, 1), np.int16)
STILL = np.full((480, 2), (5000, -1), np.int16)
DITHER = np.resize(np.array([0, 1, 0, -1], np.int16), (480, 1))
"""As much as PortAudio's dither puts into zeros."""
SOFT = np.resize(np.array([2, -1, 1, -2], np.int16), (480, 1))
"""As soft as the softest pauses of people's recordings."""
LOUD = np.repeat(np.array([[32767], [-32768]], np.int16), 240, axis=0)


def push(levels: Levels, sound: NDArray[np.int16], seconds: float) -> None:
    for _ in range(round(seconds / 0.03)):
        levels.push(sound, 0.03)


@pytest.mark.parametrize(
    "still", [ZEROS, STILL, DITHER, DITHER + 900], ids=["zeros", "an offset", "dither", "both"]
)
def test_samples_that_change_by_a_bit_are_silence_until_the_first_sound(
    still: NDArray[np.int16],
) -> None:
    levels = Levels(5.0)
    push(levels, still, 4.9)
    assert not levels.silent
    push(levels, still, 0.2)
    assert levels.silent
    push(levels, SOFT, 0.03)
    assert not levels.silent


@pytest.mark.parametrize(("channels", "chosen", "alive"), [(6, 0, 4), (6, 2, 4), (2, 2, 1)])
def test_a_channel_with_sound_is_named_if_the_one_that_is_heard_has_none(
    channels: int, chosen: int, alive: int
) -> None:
    levels = Levels(5.0, chosen)
    sound = np.zeros((480, channels), np.int16)
    sound[::2, alive - 1] = 100
    push(levels, sound, 6)
    assert levels.silent
    assert levels.alive == alive
    sound[::2, max(chosen - 1, 0)] = 3
    push(levels, sound, 0.03)
    assert not levels.silent


def test_softest_noise_is_no_silence_and_zero_seconds_mean_never() -> None:
    levels = Levels(5.0)
    for _ in range(300):
        push(levels, ZEROS, 0.03)
        push(levels, SOFT, 0.03)
    assert not levels.silent
    never = Levels(0.0)
    push(never, ZEROS, 60)
    assert not never.silent


def test_seconds_at_full_scale_are_told_until_as_many_were_clear() -> None:
    levels = Levels(5.0)
    push(levels, LOUD, 4.8)
    assert not levels.distorted, "a door that bangs is no fault"
    push(levels, LOUD, 0.3)
    assert levels.distorted
    push(levels, SOFT, 4)
    assert levels.distorted, "it does not flicker"
    push(levels, SOFT, 2)
    assert not levels.distorted
