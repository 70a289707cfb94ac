"""The mute: its file, and a source that is closed while it holds."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from rigs.command import errors, refusal, roomscribe
from rigs.daemon import write_config
from rigs.sources import FakeSource, silence
from rigs.waiting import PATIENCE_S, until

from appliance.capture.recorder import Recorder
from appliance.config import CaptureSettings
from appliance.daemon import mute as switch
from appliance.daemon.bus import Bus
from appliance.daemon.capture_supervisor import CaptureSupervisor
from appliance.daemon.health import Health
from appliance.daemon.mute import Mute, Position
from appliance.daemon.mute_end import format_end, parse_end
from appliance.daemon.stages import Sentinel, StageQueue
from appliance.errors import DeviceError, StoreError
from appliance.records import Frame, Listener


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


class Listening(Listener):
    """A capture supervisor in a thread of its own, and what came of it."""

    def __init__(self, folder: Path, microphones: Microphones) -> None:
        bus = Bus()
        self.mute, self.health = Mute(folder, on_change=bus.on_mute), Health()
        self.queue = StageQueue[Frame](1000)
        self.frames = 0
        self.supervisor = CaptureSupervisor(
            CaptureSettings(), self.health, self.mute, self.queue, bus, source=microphones.open
        )
        bus.add(self, self.supervisor)
        self.thread = threading.Thread(
            target=self.supervisor.listen, args=(lambda: None,), daemon=True
        )
        self.thread.start()

    def on_frame(self, _frame: Frame) -> None:
        self.frames += 1

    @property
    def lost(self) -> int:
        return sum(one is Sentinel.LOST for one in self.queue.queue)

    def stop(self) -> None:
        self.supervisor.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def microphones() -> Microphones:
    return Microphones()


@pytest.fixture
def listener(tmp_path: Path, microphones: Microphones) -> Iterator[Listening]:
    one = Listening(tmp_path, microphones)
    yield one
    one.stop()


@pytest.mark.parametrize("on", [True, False])
def test_a_position_survives_a_restart(tmp_path: Path, on: bool) -> None:
    mute = Mute(tmp_path)
    mute.set(not on)
    mute.set(on)
    assert Mute(tmp_path).on is on
    assert [file.name for file in tmp_path.iterdir()] == ["mute"]


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"maybe\n", b"\xff\x00", b"ONE\n", b"ON 30m\n", b"ON 2026-11-25T06:00:00\n"),
        *(b"OFF 2026-11-25T06:00:00Z\n", b"ON 0001-01-01T00:00:00+23:00\n"),
    ],
)
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
    turned: list[bool] = []
    mute = Mute(tmp_path, on_change=lambda: turned.append(mute.on))
    mute.poll()
    switch.write(tmp_path / "mute", Position(True))
    mute.poll()
    mute.poll()
    switch.write(tmp_path / "mute", Position(False))
    mute.poll()
    mute.set(True)
    mute.poll()
    assert turned == [True, False, True]


def refuse(*_: object) -> switch.Stamp:
    raise StoreError("no space")


def test_a_disk_that_refuses_leaves_it_muted_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mute = Mute(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(switch, "write", refuse)
        mute.set(True)
        assert (mute.on, mute.unsaved) == (True, "no space")
        mute.poll()
        assert (mute.on, mute.unsaved) == (True, "no space")
    poll_until(mute, lambda: not mute.unsaved)
    assert (mute.on, Mute(tmp_path).on) == (True, True)


def poll_until(mute: Mute, condition: Callable[[], object]) -> None:
    """As the daemon does, five times a second."""

    def polled() -> object:
        mute.poll()
        return condition()

    until(polled)


def unreadable(file: Path) -> None:
    """Makes it a file that opens and gives EIO when it is read."""
    file.unlink(missing_ok=True)
    file.symlink_to("/proc/self/mem")


@pytest.mark.parametrize("position", [True, False])
def test_a_file_that_cannot_be_read_at_the_start_mutes_until_it_can(
    tmp_path: Path, position: bool
) -> None:
    unreadable(tmp_path / "mute")
    turned: list[bool] = []
    mute = Mute(tmp_path, on_change=lambda: turned.append(mute.on))
    mute.poll()
    assert (mute.on, mute.is_known, turned) == (True, False, [])
    assert "Input/output error; the microphone stays closed" in mute.unread
    (tmp_path / "mute").unlink()
    switch.write(tmp_path / "mute", Position(position))
    poll_until(mute, lambda: mute.is_known)
    assert (mute.on, mute.unread, turned) == (position, "", [position])


@pytest.mark.parametrize("position", [True, False])
def test_a_mute_while_its_file_cannot_be_read_is_obeyed_and_saved_later(
    tmp_path: Path, position: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable(tmp_path / "mute")
    mute = Mute(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(switch, "write", refuse)
        mute.set(position)
    found = mute.on, mute.is_known, mute.unread, mute.unsaved
    assert found == (position, True, "", "no space")
    (tmp_path / "mute").unlink()
    switch.write(tmp_path / "mute", Position(not position))
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


def test_a_position_that_cannot_be_kept_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    with pytest.raises(StoreError, match="it is lost at the next start"):
        switch.write(tmp_path / "nowhere" / "mute", Position(True))
    (tmp_path / "mute").mkdir()
    with pytest.raises(StoreError):
        switch.write(tmp_path / "mute", Position(True))
    assert [file.name for file in tmp_path.iterdir()] == ["mute"]


NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)


class Hands:
    """Two clocks that a test sets."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.uptime_s = NOON, 5000.0
        clock = SimpleNamespace(now=lambda _: self.now, fromisoformat=datetime.fromisoformat)
        patch.setattr(switch, "datetime", clock)
        patch.setattr(switch, "boot_clock_s", lambda: self.uptime_s)

    def wait(self, minutes: float) -> None:
        self.now += timedelta(minutes=minutes)
        self.uptime_s += 60 * minutes


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    return Hands(monkeypatch)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's time zone."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def test_a_mute_with_an_end_survives_a_restart_and_ends_by_itself(
    tmp_path: Path, hands: Hands
) -> None:
    turned: list[bool] = []
    mute = Mute(tmp_path)
    mute.set(True, "a test", "30m")
    assert mute.until == NOON + timedelta(minutes=30)
    assert (tmp_path / "mute").read_text() == "ON 2026-11-25T12:30:00Z\n"
    hands.wait(29.9)
    mute = Mute(tmp_path, on_change=lambda: turned.append(mute.on))
    mute.poll()
    assert (mute.on, mute.until, turned) == (True, NOON + timedelta(minutes=30), [])
    hands.wait(0.1)
    mute.poll()
    mute.poll()
    assert (mute.on, mute.until, turned) == (False, None, [False])
    assert (tmp_path / "mute").read_text() == "OFF\n", "a clock that is set back mutes nobody"


def test_a_mute_whose_end_passed_while_the_machine_was_off_is_over(
    tmp_path: Path, hands: Hands
) -> None:
    switch.write(tmp_path / "mute", Position(True, NOON + timedelta(hours=1)))
    hands.now += timedelta(hours=2)  # and the uptime began anew
    assert not Mute(tmp_path).on
    assert (tmp_path / "mute").read_text() == "OFF\n"


def test_a_clock_that_is_set_forward_opens_no_microphone_early(
    tmp_path: Path, hands: Hands
) -> None:
    mute = Mute(tmp_path)
    switch.write(tmp_path / "mute", Position(True, NOON + timedelta(minutes=30)))
    mute.poll()
    hands.now += timedelta(days=1)
    mute.poll()
    assert mute.on
    hands.wait(30)
    mute.poll()
    assert not mute.on


@pytest.mark.usefixtures("hands")
def test_the_last_command_decides_until_when(tmp_path: Path) -> None:
    turned: list[datetime | None] = []
    mute = Mute(tmp_path, on_change=lambda: turned.append(mute.until))
    for end in ("2h", "30m", ""):
        mute.set(True, end=end)
        assert mute.on
        assert Mute(tmp_path).until == mute.until
    mute.set(True, end="2h")
    mute.set(False)
    half, two = NOON + timedelta(minutes=30), NOON + timedelta(hours=2)
    assert turned == [two, half, None, two, None]
    assert (tmp_path / "mute").read_text() == "OFF\n"


@pytest.mark.parametrize(
    ("local", "hours"),
    [
        ("2026-11-25T22:00", 8),
        ("2026-11-25T03:00", 27),  # someone rises early
        ("2026-11-25T02:59", 3 + 1 / 60),  # someone is still awake
        ("2026-03-28T22:00", 7),  # summer time begins
        ("2026-10-24T22:00", 9),  # and ends
        ("2026-10-25T01:00", 6),
    ],
)
def test_tomorrow_is_six_in_the_local_morning(berlin: None, local: str, hours: float) -> None:
    now = datetime.fromisoformat(local).astimezone(UTC)
    assert parse_end("tomorrow", now) == now + timedelta(hours=hours)
    assert format_end(parse_end("tomorrow", now), now).endswith(" 06:00")


@pytest.mark.parametrize(
    "end", ["30", "0m", "169h", "10081m", "-5m", "1.5h", "30M", "30m ", "Tomorrow", "٣m", "1d"]
)
def test_a_wrong_end_is_one_line_and_turns_nothing(tmp_path: Path, end: str) -> None:
    mute = Mute(tmp_path)
    with pytest.raises(ValueError, match=r"^expected tomorrow, or 1m to 168h such as 30m or 2h$"):
        mute.set(True, end=end)
    assert not mute.on
    with pytest.raises(ValueError, match="only a mute has one"):
        mute.set(False, end="30m")


def test_the_source_is_closed_while_muted_and_opened_again(
    listener: Listening, microphones: Microphones, tmp_path: Path
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


def test_a_source_is_never_opened_when_it_starts_muted(
    tmp_path: Path, microphones: Microphones
) -> None:
    switch.write(tmp_path / "mute", Position(True))
    listener = Listening(tmp_path, microphones)
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
    listener = Listening(tmp_path, microphones)
    try:
        until(lambda: listener.health.snapshot().troubles)
        listener.mute.set(True)
        until(lambda: listener.supervisor.muted)
        assert listener.health.snapshot().troubles == {}
        listener.mute.set(False)
        until(lambda: listener.health.snapshot().troubles)
    finally:
        listener.stop()


def config(folder: Path) -> Path:
    (folder / "state").mkdir(exist_ok=True)
    return write_config(folder)


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


def test_the_command_mutes_for_a_while(tmp_path: Path) -> None:
    there = ("--config", config(tmp_path))
    for end in ("168h", "tomorrow", "1m"):
        done = roomscribe("mute", "on", end, *there)
        assert re.fullmatch(r"muted until .*\d\d:\d\d: the microphone is closed\n", done.stdout)
    assert roomscribe("mute", *there).stdout == done.stdout
    for words in (("on", "soon"), ("off", "30m"), ("30m",)):
        done = roomscribe("mute", *words, *there)
        assert (done.returncode, done.stdout, done.stderr.count("error: ")) == (2, "", 1)
    assert Mute(tmp_path / "state").until
    file = tmp_path / "state" / "mute"
    switch.write(file, Position(True, datetime(2026, 1, 1, tzinfo=UTC)))
    assert roomscribe("mute", *there).stdout == "not muted\n"


def test_the_command_does_not_say_muted_where_no_daemon_looks(tmp_path: Path) -> None:
    done = roomscribe("mute", "on", "--config", write_config(tmp_path))
    assert (done.returncode, done.stdout) == (74, "")
    assert "where the daemon keeps its log, cannot be used" in errors(done)[0]


def test_the_command_fails_when_the_microphone_stays_open(tmp_path: Path) -> None:
    there = config(tmp_path)
    with Mute(tmp_path / "state").listening():
        assert roomscribe("mute", "--config", there).stdout.endswith("the microphone is open\n")
        done = roomscribe("mute", "on", "--config", there)
    assert "the microphone is still open" in refusal(done, 69)
