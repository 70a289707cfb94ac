"""The microphone, real through PulseAudio, or as a daemon reports it."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rigs.checkout import ROOT
from rigs.command import captured
from rigs.microphone import PulseMicrophone
from rigs.needs import needs_microphone
from rigs.page import Feed, serving
from rigs.waiting import PATIENCE_S
from rigs.windows import noise

from appliance.cli.doctor import microphone as hearing
from appliance.cli.doctor.daemon import DaemonProcess, running_daemon
from appliance.cli.doctor.microphone import judge_sound
from appliance.cli.doctor.outcome import Outcome, Surroundings
from appliance.config import CaptureSettings, Settings, SpeakerSettings, StoreSettings
from appliance.control import SOCKET_NAME
from appliance.errors import DeviceError
from appliance.store import runtime_folder

LOOK = """
import json, sys
from dataclasses import asdict, replace
from appliance.cli.doctor.main import GROUPS, look
from appliance.cli.doctor.outcome import Surroundings
from appliance.config import Settings
check = replace(GROUPS["sound"][0], within_s=float(sys.argv[1]))
print(json.dumps(asdict(look(check, Surroundings(Settings())))))
"""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulseMicrophone]:
    with PulseMicrophone(tmp_path_factory.mktemp("rig")) as microphone:
        yield microphone


def look(rig: PulseMicrophone, within_s: float = PATIENCE_S) -> Outcome:
    """The microphone's check in a process that sees the rig."""
    command = sys.executable, "-c", LOOK, within_s
    done = captured(*command, env=rig.environment, cwd=ROOT, check=True)
    return Outcome(**json.loads(done.stdout))


@needs_microphone
def test_a_working_microphone_passes_and_reports_its_level(rig: PulseMicrophone) -> None:
    with rig.playing(noise(0.1, 20)):
        found = look(rig)
    assert found.status == "ok", found.found
    assert "at 16000 Hz: -20 dBFS" in found.found


@needs_microphone
def test_digital_silence_is_a_fault(rig: PulseMicrophone) -> None:
    found = look(rig)
    assert found.status == "failed"
    assert "digital silence" in found.found
    assert "alsamixer" in found.fix


@needs_microphone
def test_a_sound_server_that_hangs_does_not_hang_the_doctor(tmp_path: Path) -> None:
    with PulseMicrophone(tmp_path / "rig") as stalled:
        stalled.stall()
        found = look(stalled, within_s=2.0)
    assert found.status == "failed"
    assert found.found == "no result after 2 s while opening the microphone"


def test_a_missing_microphone_fails_with_a_fix() -> None:
    settings = Settings(capture=CaptureSettings(device="no such microphone"))
    with pytest.raises(DeviceError, match=r"no microphone found") as caught:
        hearing.microphone(Surroundings(settings, root=Path("/nowhere")))
    assert "plug" in str(caught.value)


def test_the_loudspeaker_is_checked_where_it_is_switched_on() -> None:
    assert hearing.loudspeaker(Surroundings(Settings())).status == "skipped"
    settings = Settings(speaker=SpeakerSettings(True, "no such loudspeaker"))
    with pytest.raises(DeviceError, match="no loudspeaker"):
        hearing.loudspeaker(Surroundings(settings))


def test_a_recording_in_its_place_is_not_listened_to() -> None:
    settings = Settings(capture=CaptureSettings(recording="talk.flac"))
    assert hearing.microphone(Surroundings(settings)).status == "skipped"


def machine(root: Path, *, pid: int = 77, name: str = "roomscribe") -> Path:
    """A machine in which one process has the microphone open."""
    node = root / "dev/snd/pcmC1D0c"
    node.parent.mkdir(parents=True)
    node.touch()
    (root / f"proc/{pid}/fd").mkdir(parents=True)
    (root / f"proc/{pid}/fd/9").symlink_to("/dev/snd/pcmC1D0c")
    (root / f"proc/{pid}/comm").write_text(f"{name}\n", encoding="ascii")
    return root


@pytest.mark.parametrize(("name", "status"), [("USB microphone", "ok"), ("none", "failed")])
def test_a_microphone_that_the_daemon_uses_has_its_state(
    tmp_path: Path, name: str, status: str
) -> None:
    settings = Settings(store=StoreSettings(path=str(tmp_path / "state")))
    folder = runtime_folder(settings)
    folder.mkdir(parents=True)
    feed = Feed()
    feed.appliance["microphone"] = name
    with serving(feed, folder / SOCKET_NAME):
        daemon = DaemonProcess(77, service=True)
        found = hearing.microphone(Surroundings(settings, daemon=daemon))
    shutil.rmtree(folder)
    assert found.status == status
    assert ("receives sound" in found.found) == (status == "ok")


def test_another_program_that_holds_it_is_named(tmp_path: Path) -> None:
    root = machine(tmp_path, pid=78, name="arecord")
    assert [str(one) for one in hearing.recording_processes(root)] == ["arecord (process 78)"]
    settings = Settings(capture=CaptureSettings(device="no such microphone"))
    with pytest.raises(DeviceError, match=r"^used by arecord \(process 78\); "):
        hearing.microphone(Surroundings(settings, root=root))


def test_a_daemon_is_known_by_its_control_socket(tmp_path: Path) -> None:
    settings = Settings(store=StoreSettings(path=str(tmp_path / "state")))
    folder = runtime_folder(settings)
    folder.mkdir(parents=True)
    assert running_daemon(settings) is None
    with serving(Feed(), folder / SOCKET_NAME):
        assert running_daemon(settings) == DaemonProcess(os.getpid(), service=False)
    shutil.rmtree(folder)


def test_what_a_daemon_reports_of_the_sound_is_a_fault_with_its_fix() -> None:
    quiet = "speech is too quiet, -61 dBFS; words are lost: turn the microphone up"
    state = {"microphone": "USB", "reasons": ["no broker: look there", quiet]}
    found = hearing.heard_by_daemon(state, "used by it")
    assert (found.status, found.fix) == ("failed", "turn the microphone up")
    assert "too quiet, -61 dBFS" in found.found
    assert hearing.heard_by_daemon({**state, "reasons": []}, "used by it").status == "ok"


def test_sound_is_judged_by_its_level() -> None:
    assert judge_sound("it", noise(0.01, 1)).found == "it: -40 dBFS, peak -28 dBFS"
    assert judge_sound("it", np.full(16_000, 7, np.int16)).status == "failed"
    assert judge_sound("it", np.empty(0, np.int16)).status == "failed"
    loud = judge_sound("it", noise(2.0, 1))
    assert loud.status == "failed"
    assert "clipped" in loud.found
    assert "gain" in loud.fix
