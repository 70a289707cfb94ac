"""The queue of windows: bounded, few samples in memory, the oldest dropped; and its leases."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from rigs.needs import needs_memory
from rigs.waiting import NEVER_S, PATIENCE_S
from rigs.windows import NO_FOLDER, a_window

from appliance.config import Settings, SpoolSettings
from appliance.daemon import backlog
from appliance.daemon.backlog import (
    DEATHS,
    FAILURES_IN_A_ROW,
    REQUEST_LIMIT,
    SAMPLES_IN_MEMORY,
    UNSPOOLED_LIMIT,
    Backlog,
    Lease,
    Work,
)
from appliance.daemon.health import Health
from appliance.daemon.spool import parse
from appliance.errors import DeviceError
from appliance.infer.request import Request
from appliance.records import Discarded, Listener, Transcription, Window

WINDOW_S = 6.0


OPENED: list[Backlog] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close the backlogs of a test, also those of processes that it takes for dead."""
    yield
    for opened in OPENED:
        opened.close()
    OPENED.clear()


def attempts(memory: Path) -> list[int]:
    return [parse(file.read_bytes())[1] for file in sorted(memory.glob("*.window"))]


class Rig(Listener):
    """A backlog, with or without a spool."""

    def __init__(self, memory: Path | None, limit_mb: int = 1) -> None:
        self.health = Health()
        chosen = SpoolSettings(limit_mb=limit_mb, path=str(memory or NO_FOLDER))
        self.discarded: list[Discarded] = []
        self.backlog = Backlog(Settings(spool=chosen), self.health, self)
        OPENED.append(self.backlog)

    def push(self, number: int, seconds: float = WINDOW_S) -> list[Window]:
        windows = [a_window(f"u{place}", seconds) for place in range(number)]
        for window in windows:
            self.backlog.push(window)
        return windows

    def on_discarded(self, discarded: Discarded) -> None:
        self.discarded.append(discarded)

    def speculate(self, window: Window) -> None:
        self.backlog.speculate(window, lambda window: Work(Request(window)))

    def take(self) -> Lease:
        lease = self.backlog.take_window(0)
        assert lease
        return lease

    def takes(self, number: int) -> list[str]:
        found = [self.backlog.take_window(0) for _ in range(number)]
        return [lease.window.id for lease in found if lease]


@needs_memory
def test_only_a_few_hold_their_samples_in_memory(memory: Path) -> None:
    rig = Rig(memory, limit_mb=64)
    heard = rig.push(100, 0.1)
    assert sum(1 for one in rig.backlog._waiting if one.window) == SAMPLES_IN_MEMORY
    taken = [rig.backlog.take_window(0) for _ in range(100)]
    for found, window in zip(taken, heard, strict=True):
        assert found
        assert (found.window.samples == window.samples).all()


@needs_memory
def test_beyond_the_limit_the_oldest_goes_and_is_counted(memory: Path) -> None:
    rig = Rig(memory)
    heard = rig.push(8)  # 192 kB each, 5 in a megabyte
    assert [one.utterance_id for one in rig.discarded] == ["u0", "u1", "u2"]
    assert {one.reason for one in rig.discarded} == {"overload"}
    assert rig.health.counters() == {"lost_overload": 3}
    assert len(list(memory.glob("*.window"))) == 5
    assert rig.takes(9) == [window.id for window in heard[3:]]


def test_without_a_spool_the_number_is_bounded() -> None:
    rig = Rig(None)
    heard = rig.push(UNSPOOLED_LIMIT + 2, 0.1)
    assert len(rig.backlog) == UNSPOOLED_LIMIT == rig.backlog.count_lost()
    assert [one.utterance_id for one in rig.discarded] == ["u0", "u1"]
    assert rig.takes(1) == [heard[2].id]


@needs_memory
def test_what_waits_for_the_store_alone_goes_before_what_nobody_has_transcribed(
    memory: Path,
) -> None:
    rig = Rig(memory)
    rig.push(5)
    rig.takes(5)
    rig.push(2)
    assert rig.discarded == []
    assert len(rig.backlog) == 2


def test_being_behind_is_a_trouble_until_it_has_caught_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = Rig(None)
    caplog.clear()
    rig.push(5)
    assert rig.health.snapshot().troubles == {}
    rig.push(3)
    assert "more than 30 s of speech wait" in rig.health.snapshot().troubles["backlog"]
    rig.takes(6)
    assert rig.health.snapshot().troubles
    rig.takes(1)
    assert rig.health.snapshot().troubles == {}
    assert len(caplog.records) == 2, "once when it falls behind, once when it has caught up"


@needs_memory
def test_a_window_that_is_gone_is_discarded_and_the_next_one_comes(memory: Path) -> None:
    before = Rig(memory)
    left = before.push(2, 0.1)
    before.backlog.close()
    rig = Rig(memory)
    min(memory.glob("*.window")).unlink()
    assert rig.takes(2) == [left[1].id]
    assert [one.reason for one in rig.discarded] == ["failed"]


def test_it_is_over_when_nothing_follows_and_nothing_waits() -> None:
    rig = Rig(None)
    rig.push(2, 0.1)
    rig.backlog.complete()
    assert not rig.backlog.is_over
    rig.takes(2)
    assert rig.backlog.is_over


def test_at_a_stop_what_there_is_no_time_for_is_left() -> None:
    rig = Rig(None)
    rig.push(2, 0.1)
    rig.backlog.complete(-1.0)
    assert rig.backlog.is_over
    assert rig.backlog.take_window(0) is None
    assert rig.backlog.count_lost() == 2


def test_who_waits_for_a_window_is_woken_by_the_end() -> None:
    rig = Rig(None)
    threading.Timer(0.1, rig.backlog.complete).start()
    assert rig.backlog.take_window(NEVER_S) is None


@needs_memory
def test_a_failed_window_is_counted_and_goes_when_the_next_succeeds(memory: Path) -> None:
    rig = Rig(memory)
    rig.push(2, 0.1)
    failed, good = rig.take(), rig.take()
    failed.fail(RuntimeError("a strange sound"))
    assert [(one.reason, one.utterance_id) for one in rig.discarded] == [("failed", "u0")]
    assert len(list(memory.glob("*.window"))) == 2
    good.mark_transcribed()
    good.finish()
    assert list(memory.glob("*.window")) == []


@needs_memory
def test_windows_that_fail_in_a_row_are_left_to_the_next_start(memory: Path) -> None:
    rig = Rig(memory)
    windows = rig.push(FAILURES_IN_A_ROW, 0.1)
    leases = [rig.take() for _ in windows]
    for lease in leases[:-1]:
        lease.fail(RuntimeError("graph"))
    with pytest.raises(DeviceError, match="3 times in a row, last with: graph"):
        leases[-1].fail(RuntimeError("graph"))
    rig.backlog.close()
    assert attempts(memory) == [1] * len(windows)


@needs_memory
def test_a_deadly_window_is_tried_alone_then_after_another_then_set_aside(memory: Path) -> None:
    rig = Rig(memory)
    deadly, ahead, behind = rig.push(3, 0.1)
    assert [rig.take().window.id, rig.take().window.id] == [deadly.id, ahead.id]
    for deaths in range(1, DEATHS):
        rig.backlog.close()  # leaves what kill -9 leaves
        rig = Rig(memory)
        assert attempts(memory) == [deaths, 1, 0]
        assert rig.take().window.id == deadly.id
        assert rig.backlog.take_window(0) is None
    rig.backlog.close()
    rig = Rig(memory)
    assert rig.backlog.take_window(0) is None
    lease = rig.take()
    assert lease.window.id == ahead.id
    assert rig.backlog.take_window(0) is None
    lease.mark_transcribed()
    lease.finish()
    assert rig.take().window.id == deadly.id
    assert rig.backlog.take_window(0) is None
    rig.backlog.close()
    rig = Rig(memory)
    assert rig.backlog.take_window(0) is None
    assert [one.reason for one in rig.discarded] == ["set_aside"]
    assert rig.health.counters() == {"recovered": 2, "set_aside": 1}
    assert rig.take().window.id == behind.id


@needs_memory
@pytest.mark.parametrize("dies", [True, False], ids=["dies", "fails"])
def test_a_device_that_fails_at_every_start_loses_no_window(memory: Path, dies: bool) -> None:
    rig = Rig(memory)
    windows = rig.push(6, 0.1)
    for _ in range(6 * DEATHS):
        rig.backlog.close()
        rig = Rig(memory)
        with suppress(DeviceError):
            while rig.backlog:
                lease = rig.backlog.take_window(0)
                if lease and dies:
                    break
                if lease:
                    lease.fail(RuntimeError("the driver"))
    assert attempts(memory) == [DEATHS] * 6
    rig.backlog.close()
    rig = Rig(memory)
    assert rig.takes(6) == []
    (new,) = rig.push(1, 0.1)
    for window in (new, *windows):
        lease = rig.take()
        assert lease.window.id == window.id
        lease.mark_transcribed()
        lease.finish()


@needs_memory
def test_two_leases_never_hold_one_window(memory: Path) -> None:
    rig = Rig(memory, limit_mb=64)
    windows = rig.push(200, 0.01)
    rig.backlog.complete()
    leases: list[Lease] = []

    def take() -> None:
        while not rig.backlog.is_over:
            if lease := rig.backlog.take_window(0.01):
                leases.append(lease)

    takers = [threading.Thread(target=take) for _ in range(8)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join(PATIENCE_S)
    assert sorted(lease.window.id for lease in leases) == sorted(one.id for one in windows)


def test_a_guess_is_taken_once_and_only_while_nothing_waits() -> None:
    rig = Rig(None)
    guess = a_window()
    rig.speculate(guess)
    (window,) = rig.push(1)
    assert rig.backlog.take_speculation() is None
    assert rig.take().window is window
    assert rig.backlog.take_window(NEVER_S) is None, "does not wait: there is a guess"
    taken = rig.backlog.take_speculation()
    assert taken and taken.window is guess
    assert rig.backlog.take_speculation() is None
    assert rig.health.counters()["guesses"] == 1


@needs_memory
def test_a_guess_that_came_true_is_in_the_spool_once(memory: Path) -> None:
    rig = Rig(memory)
    guess = a_window()
    rig.speculate(guess)
    assert [path.name[9:35] for path in memory.glob("*.window")] == [guess.id]
    taken = rig.backlog.take_speculation()
    rig.backlog.push(guess)
    rig.backlog.withdraw_speculation()
    lease = rig.take()
    assert lease.speculation is taken
    assert len(list(memory.glob("*.window"))) == 1
    lease.finish()
    assert list(memory.glob("*.window")) == []


@needs_memory
def test_a_guess_that_did_not_come_true_leaves_nothing(memory: Path) -> None:
    rig = Rig(memory)
    first, second = a_window(), a_window()
    rig.speculate(first)
    taken = rig.backlog.take_speculation()
    assert taken
    rig.speculate(second)
    assert not taken.wanted
    rig.backlog.withdraw_speculation()
    assert rig.backlog.take_speculation() is None
    assert list(memory.glob("*.window")) == []
    assert rig.backlog.count_lost() == 0


@needs_memory
def test_what_comes_otherwise_than_speculated_is_kept_as_it_came(memory: Path) -> None:
    rig = Rig(memory)
    guess = a_window()
    rig.speculate(guess)
    rig.backlog.push(replace(guess, flags=("interrupted",)))
    rig.backlog.close()
    again = Rig(memory)
    assert again.take().window.flags == ("interrupted",)
    assert again.backlog.take_window(0) is None


@needs_memory
@pytest.mark.parametrize("came_true", [False, True])
def test_a_process_that_dies_of_a_speculation_counts_once_for_the_window(
    memory: Path, came_true: bool
) -> None:
    """Killed between the guess and the close, or just after it: the sentence is found, once."""
    rig = Rig(memory)
    guess = a_window()
    rig.speculate(guess)
    assert rig.backlog.take_speculation()
    if came_true:
        rig.backlog.push(guess)
        rig.take()
    rig.backlog.close()  # leaves what kill -9 leaves
    again = Rig(memory)
    assert attempts(memory) == [1]
    assert again.take().window.id == guess.id


@needs_memory
def test_no_death_is_the_fault_of_a_speculation_that_was_transcribed(memory: Path) -> None:
    rig = Rig(memory)
    rig.speculate(a_window())
    taken = rig.backlog.take_speculation()
    assert taken
    rig.backlog.end_speculation(taken)
    rig.backlog.close()
    assert attempts(memory) == [0]


def a_request(
    backlog: Backlog,
    answers: list[Transcription | Exception] | None = None,
    *,
    partial: bool = False,
) -> Work | None:
    kept = [] if answers is None else answers
    return backlog.submit(
        Request(a_window(), partial=partial), lambda _, result: kept.append(result)
    )


def test_requests_come_after_windows_and_speculation_and_partials_last() -> None:
    rig = Rig(None)
    partial = a_request(rig.backlog, partial=True)
    first, second = a_request(rig.backlog), a_request(rig.backlog)
    rig.push(1)
    rig.speculate(a_window())
    assert rig.backlog.take_request() is None
    rig.take().finish()
    assert rig.backlog.take_request() is None
    assert rig.backlog.take_speculation()
    assert rig.backlog.take_window(NEVER_S) is None, "does not wait: there is a request"
    assert [rig.backlog.take_request() for _ in range(4)] == [first, second, partial, None]


def test_while_the_room_speaks_requests_of_others_are_rare_and_do_not_starve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "ROOM_FIRST_S", 0.2)
    rig = Rig(None)
    first, second = a_request(rig.backlog), a_request(rig.backlog)
    rig.backlog.on_speech(True)
    begun_s = time.monotonic()
    assert rig.backlog.take_request() is first
    assert rig.backlog.take_request() is None
    partial = a_request(rig.backlog, partial=True)
    assert rig.backlog.take_request() is partial, "it is the room's own"
    while not (taken := rig.backlog.take_request()):
        time.sleep(0.01)
    assert taken is second
    assert time.monotonic() - begun_s >= 0.2
    rig.backlog.on_speech(False)
    last = a_request(rig.backlog)
    assert rig.backlog.take_request() is last, "at once when the room is quiet"


def test_the_microphone_is_busy_until_its_window_is_done() -> None:
    rig = Rig(None)
    assert not rig.backlog.is_busy
    rig.push(1)
    assert rig.backlog.is_busy
    lease = rig.backlog.take_window(0)
    assert lease
    assert rig.backlog.is_busy
    lease.finish()
    assert not rig.backlog.is_busy


def test_requests_that_nobody_wants_any_more_make_room() -> None:
    rig = Rig(None)
    asked = [work for _ in range(REQUEST_LIMIT) if (work := a_request(rig.backlog))]
    assert len(asked) == REQUEST_LIMIT
    assert not a_request(rig.backlog)
    asked[3].cancel()
    assert a_request(rig.backlog)
    assert not a_request(rig.backlog)
    asked[0].cancel()
    assert rig.backlog.take_request() is asked[1]


def test_requests_wake_whoever_waits_for_a_window() -> None:
    rig = Rig(None)
    threading.Timer(0.1, a_request, [rig.backlog]).start()
    assert rig.backlog.take_window(NEVER_S) is None
    assert rig.backlog.take_request()


def test_requests_that_are_left_at_the_end_are_told_so() -> None:
    rig = Rig(None)
    answers: list[Transcription | Exception] = []
    assert a_request(rig.backlog, answers)
    unwanted = a_request(rig.backlog, answers)
    assert unwanted
    unwanted.cancel()
    rig.backlog.complete()
    assert not a_request(rig.backlog, answers)
    rig.backlog.close()
    assert [str(one) for one in answers] == ["roomscribe is stopping"]
