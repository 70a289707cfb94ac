"""The mute: its file, and a source that is closed while it holds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rigs.command import errors, roomscribe
from rigs.sources import FakeSource, silence
from rigs.waiting import until

from appliance.capture.recorder import Recorder
from appliance.config import NO_DEVICE, CaptureSettings
from appliance.daemon import mute as switch
from appliance.daemon.capture_supervisor import CaptureSupervisor
from appliance.daemon.health import Health
from appliance.daemon.mute import Mute
from appliance.errors import DeviceError, StoreError
from appliance.records import Frame

HEALS_WITHIN_S = 10.0


class Microphones:
    """Sources that are opened one after the other."""

    def __init__(self) -> None:
        self.opened: list[FakeSource] = []
        self.broken = False

    def open(self, _settings: CaptureSettings, _recorder: Recorder) -> FakeSource:
        if self.broken:
            raise DeviceError("expected a microphone, found none")
        self.opened.append(FakeSource(silence(0.03)))
        return self.opened[-1]

    @property
    def listening(self) -> int:
        return sum(not source.closed for source in self.opened)


class Listener:
    """A capture supervisor in a thread of its own, and what came of it."""

    def __init__(self, folder: Path, microphones: Microphones) -> None:
        self.mute = Mute(folder)
        self.health = Health()
        self.frames = self.lost = 0
        self.supervisor = CaptureSupervisor(
            CaptureSettings(),
            self.health,
            self.mute,
            self._put,
            self._lose,
            source=microphones.open,
        )
        self.mute.on_change = self.supervisor.apply_mute
        self.thread = threading.Thread(
            target=self.supervisor.listen, args=(lambda: None,), daemon=True
        )
        self.thread.start()

    def _put(self, _frame: Frame) -> None:
        self.frames += 1

    def _lose(self) -> None:
        self.lost += 1

    def stop(self) -> None:
        self.supervisor.stop()
        self.thread.join(5)
        assert not self.thread.is_alive()


@pytest.fixture
def microphones() -> Microphones:
    return Microphones()


@pytest.fixture
def listener(tmp_path: Path, microphones: Microphones) -> Iterator[Listener]:
    one = Listener(tmp_path, microphones)
    yield one
    one.stop()


def test_nothing_was_ever_said_and_so_it_is_not_muted(tmp_path: Path) -> None:
    assert not Mute(tmp_path).on


@pytest.mark.parametrize("on", [True, False])
def test_a_position_survives_a_restart(tmp_path: Path, on: bool) -> None:
    mute = Mute(tmp_path)
    mute.set(not on)
    mute.set(on)
    assert Mute(tmp_path).on is on
    assert [file.name for file in tmp_path.iterdir()] == ["mute"]


@pytest.mark.parametrize("text", [b"", b"maybe\n", b"\xff\x00", b"ONE\n"])
def test_a_file_that_makes_no_sense_mutes(
    tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mute").write_bytes(text)
    mute = Mute(tmp_path)
    assert (mute.on, mute.is_known) == (True, True)
    assert "staying muted: run `roomscribe mute off` to unmute" in caplog.text
    assert mute.unread in caplog.text
    mute.set(False)
    assert (mute.unread, Mute(tmp_path).on) == ("", False)


def test_another_process_that_writes_the_file_is_followed(tmp_path: Path) -> None:
    mute = Mute(tmp_path)
    turned: list[bool] = []
    mute.on_change = lambda: turned.append(mute.on)
    mute.poll()
    switch.write(tmp_path / "mute", True)
    mute.poll()
    mute.poll()
    switch.write(tmp_path / "mute", False)
    mute.poll()
    mute.set(True)
    mute.poll()
    assert turned == [True, False, True]


def test_a_disk_that_refuses_leaves_it_muted_and_says_so(tmp_path: Path) -> None:
    full = True

    def write(file: Path, on: bool) -> switch.Stamp:
        if full:
            raise StoreError("no space")
        return switch.write(file, on)

    mute = Mute(tmp_path, write=write)
    mute.set(True)
    assert (mute.on, mute.unsaved) == (True, "no space")
    mute.poll()
    assert (mute.on, mute.unsaved) == (True, "no space")
    full = False
    poll_until(mute, lambda: not mute.unsaved)
    assert (mute.on, Mute(tmp_path).on) == (True, True)


def poll_until(mute: Mute, condition: Callable[[], object]) -> None:
    """As the daemon does, five times a second."""

    def polled() -> object:
        mute.poll()
        return condition()

    until(polled, HEALS_WITHIN_S)


def unreadable(file: Path) -> None:
    """Makes it a file that opens and gives EIO when it is read."""
    file.unlink(missing_ok=True)
    file.symlink_to("/proc/self/mem")


@pytest.mark.parametrize("position", [True, False])
def test_a_file_that_cannot_be_read_at_the_start_mutes_until_it_can(
    tmp_path: Path, position: bool
) -> None:
    unreadable(tmp_path / "mute")
    mute = Mute(tmp_path)
    turned: list[bool] = []
    mute.on_change = lambda: turned.append(mute.on)
    mute.poll()
    assert (mute.on, mute.is_known, turned) == (True, False, [])
    assert "Input/output error; the microphone stays closed" in mute.unread
    (tmp_path / "mute").unlink()
    switch.write(tmp_path / "mute", position)
    poll_until(mute, lambda: mute.is_known)
    assert (mute.on, mute.unread, turned) == (position, "", [position])


@pytest.mark.parametrize("position", [True, False])
def test_who_turns_it_while_its_file_cannot_be_read_is_obeyed_and_then_written_down(
    tmp_path: Path, position: bool
) -> None:
    failing = True

    def write(file: Path, on: bool) -> switch.Stamp:
        if failing:
            raise StoreError("it fails")
        return switch.write(file, on)

    unreadable(tmp_path / "mute")
    mute = Mute(tmp_path, write=write)
    mute.set(position)
    assert (mute.on, mute.is_known, mute.unread, mute.unsaved) == (position, True, "", "it fails")
    (tmp_path / "mute").unlink()
    switch.write(tmp_path / "mute", not position)
    failing = False
    poll_until(mute, lambda: not mute.unsaved)
    assert (mute.on, Mute(tmp_path).on) == (position, position)


def test_a_position_that_cannot_be_read_any_more_is_not_listened_to(tmp_path: Path) -> None:
    mute = Mute(tmp_path)
    unreadable(tmp_path / "mute")
    mute.poll()
    assert (mute.on, mute.is_known) == (True, False)


def test_who_is_muted_stays_so_when_the_file_vanishes(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mute = Mute(folder)
    mute.set(True)
    folder.rename(tmp_path / "away")
    mute.poll()
    assert mute.on
    assert "cannot save that the appliance is muted" in mute.unsaved
    folder.mkdir()
    poll_until(mute, lambda: not mute.unsaved)
    assert Mute(folder).on


def test_the_command_says_that_it_cannot_read_the_file_and_writes_it_all_the_same(
    tmp_path: Path,
) -> None:
    there = ("--config", config(tmp_path))
    unreadable(tmp_path / "state" / "mute")
    done = roomscribe("mute", *there)
    assert (done.returncode, done.stdout) == (74, "")
    assert "Input/output error" in errors(done)[0]
    assert roomscribe("mute", "off", *there).stdout == "not muted\n"
    assert roomscribe("mute", *there).returncode == 1


def test_a_position_that_cannot_be_kept_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    with pytest.raises(StoreError, match="it is lost at the next start"):
        switch.write(tmp_path / "nowhere" / "mute", True)
    (tmp_path / "mute").mkdir()
    with pytest.raises(StoreError):
        switch.write(tmp_path / "mute", True)
    assert [file.name for file in tmp_path.iterdir()] == ["mute"]


def test_the_source_is_closed_while_muted_and_opened_again(
    listener: Listener, microphones: Microphones, tmp_path: Path
) -> None:
    until(lambda: listener.frames)
    assert switch.is_listening(tmp_path)
    listener.mute.set(True)
    until(lambda: listener.supervisor.muted)
    assert microphones.listening == 0
    assert listener.lost == 1, "whoever was speaking is cut short"
    assert listener.supervisor.description is None
    assert not switch.is_listening(tmp_path)
    heard = listener.frames
    time.sleep(0.2)
    assert listener.frames == heard
    listener.mute.set(False)
    until(lambda: listener.frames > heard)
    assert (len(microphones.opened), microphones.listening) == (2, 1)
    assert not listener.supervisor.muted


def test_a_mute_that_is_taken_back_at_once_does_not_end_the_listening(
    listener: Listener, microphones: Microphones
) -> None:
    until(lambda: listener.frames)
    for _ in range(20):
        listener.mute.toggle()
        listener.mute.toggle()
    heard = listener.frames
    until(lambda: listener.frames > heard + 1)
    assert microphones.listening == 1


def test_a_source_is_never_opened_when_it_starts_muted(
    tmp_path: Path, microphones: Microphones
) -> None:
    switch.write(tmp_path / "mute", True)
    listener = Listener(tmp_path, microphones)
    try:
        assert listener.supervisor.muted
        time.sleep(0.1)
        assert microphones.opened == []
        listener.mute.set(False)
        until(lambda: listener.frames)
    finally:
        listener.stop()


def test_a_missing_microphone_is_no_trouble_while_muted(
    tmp_path: Path, microphones: Microphones
) -> None:
    microphones.broken = True
    listener = Listener(tmp_path, microphones)
    try:
        until(listener.health.troubles)
        listener.mute.set(True)
        until(lambda: listener.supervisor.muted)
        assert listener.health.troubles() == {}
        listener.mute.set(False)
        until(listener.health.troubles)
    finally:
        listener.stop()


def config(folder: Path) -> Path:
    (folder / "state").mkdir(exist_ok=True)
    file = folder / "roomscribe.toml"
    file.write_text(f'[store]\npath = "{folder / "state"}"\n', encoding="utf-8")
    return file


def test_the_command_turns_it_without_a_daemon(tmp_path: Path) -> None:
    there = ("--config", config(tmp_path))
    steps: list[tuple[tuple[str, ...], str, int]] = [
        ((), "not muted\n", 1),
        (("toggle",), "muted: the microphone is closed\n", 0),
        ((), "muted: the microphone is closed\n", 0),
        (("on",), "muted: the microphone is closed\n", 0),
        (("off",), "not muted\n", 0),
    ]
    for words, said, status in steps:
        done = roomscribe("mute", *words, *there)
        assert (done.stdout, done.returncode) == (said, status), words


def test_the_command_does_not_say_muted_where_no_daemon_looks(tmp_path: Path) -> None:
    file = tmp_path / "roomscribe.toml"
    file.write_text(f'[store]\npath = "{tmp_path / "elsewhere"}"\n', encoding="utf-8")
    done = roomscribe("mute", "on", "--config", file)
    assert (done.returncode, done.stdout) == (74, "")
    assert "where the daemon keeps its log, cannot be used" in errors(done)[0]


def test_the_command_fails_when_the_microphone_stays_open(tmp_path: Path) -> None:
    there = config(tmp_path)
    with Mute(tmp_path / "state").listening():
        assert roomscribe("mute", "--config", there).stdout.endswith("the microphone is open\n")
        done = roomscribe("mute", "on", "--config", there)
    assert done.returncode == 69
    assert "the microphone is still open" in errors(done)[0]


def test_the_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        with Mute(tmp_path).listening():
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "listening").exists()
    assert not switch.is_listening(tmp_path)


def test_an_appliance_without_a_microphone_is_muted_and_unmuted_all_the_same(
    tmp_path: Path,
) -> None:
    mute = Mute(tmp_path)
    supervisor = CaptureSupervisor(
        CaptureSettings(device=NO_DEVICE), Health(), mute, lambda _: None, lambda: None
    )
    mute.on_change = supervisor.apply_mute
    thread = threading.Thread(target=supervisor.listen, args=(lambda: None,), daemon=True)
    thread.start()
    try:
        assert not supervisor.muted
        mute.set(True, "a test")
        until(lambda: supervisor.muted)
        mute.set(False, "a test")
        until(lambda: not supervisor.muted)
    finally:
        supervisor.stop()
        thread.join(5)
    assert not thread.is_alive()
