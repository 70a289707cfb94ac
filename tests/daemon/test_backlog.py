"""The queue of windows: bounded, few samples in memory, the oldest dropped, and said."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from rigs.needs import needs_memory
from rigs.windows import a_window

from appliance.config import Settings, SpoolSettings
from appliance.daemon.backlog import HELD, UNSPOOLED, Backlog
from appliance.daemon.health import Health
from appliance.daemon.spool import Spool
from appliance.records import Discarded, Window

WINDOW_S = 6.0


class House:
    """A backlog, with or without a spool."""

    def __init__(self, memory: Path | None, limit_mb: int = 1) -> None:
        self.health = Health()
        chosen = SpoolSettings(limit_mb=limit_mb, path=str(memory or ""))
        if memory:
            self.spool = Spool.open(Settings(spool=chosen), self.health)
        else:
            self.spool = Spool(None, -1, self.health)
        self.discarded: list[Discarded] = []
        self.backlog = Backlog(self.spool, chosen, self.health, self.discarded.append)

    def hears(self, number: int, seconds: float = WINDOW_S) -> list[Window]:
        windows = [a_window(f"u{place}", seconds) for place in range(number)]
        for window in windows:
            self.backlog.push(window)
        return windows

    def takes(self, number: int) -> list[str]:
        found = [self.backlog.next(0) for _ in range(number)]
        return [taken.window.id for taken in found if taken]


@needs_memory
def test_windows_come_in_the_order_in_which_they_were_heard(memory: Path) -> None:
    house = House(memory)
    heard = [window.id for window in house.hears(HELD + 3, 0.1)]
    assert house.takes(HELD + 3) == heard
    assert house.backlog.next(0) is None


@needs_memory
def test_only_a_few_hold_their_samples_in_memory(memory: Path) -> None:
    house = House(memory, limit_mb=64)
    heard = house.hears(100, 0.1)
    assert sum(1 for one in house.backlog._waiting if one.window) == HELD
    taken = [house.backlog.next(0) for _ in range(100)]
    for found, window in zip(taken, heard, strict=True):
        assert found
        assert (found.window.samples == window.samples).all()


@needs_memory
def test_beyond_the_limit_the_oldest_goes_and_is_counted(memory: Path) -> None:
    house = House(memory)
    heard = house.hears(8)  # 192 kB each, 5 in a megabyte
    assert [one.utterance_id for one in house.discarded] == ["u0", "u1", "u2"]
    assert {one.reason for one in house.discarded} == {"overload"}
    assert house.health.counters() == {"lost_overload": 3}
    assert len(list(memory.glob("*.window"))) == 5
    assert house.takes(9) == [window.id for window in heard[3:]]


def test_without_a_spool_the_number_is_bounded() -> None:
    house = House(None)
    heard = house.hears(UNSPOOLED + 2, 0.1)
    assert len(house.backlog) == UNSPOOLED == house.backlog.lost()
    assert [one.utterance_id for one in house.discarded] == ["u0", "u1"]
    assert house.takes(1) == [heard[2].id]


@needs_memory
def test_what_waits_for_the_store_alone_goes_before_what_nobody_has_transcribed(
    memory: Path,
) -> None:
    house = House(memory)
    house.hears(5)
    house.takes(5)
    house.hears(2)
    assert house.discarded == []
    assert len(house.backlog) == 2


def test_being_behind_is_a_trouble_until_it_has_caught_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    house = House(None)
    house.hears(5)
    assert house.health.troubles() == {}
    house.hears(3)
    assert "more than 30 s of speech wait" in house.health.troubles()["backlog"]
    house.takes(6)
    assert house.health.troubles()
    house.takes(1)
    assert house.health.troubles() == {}
    assert len(caplog.records) == 2, "once when it falls behind, once when it has caught up"


@needs_memory
def test_what_was_left_comes_first_and_is_counted(memory: Path) -> None:
    before = House(memory)
    left = before.hears(2, 0.1)
    before.spool.close()
    house = House(memory)
    new = house.hears(1, 0.1)
    assert house.takes(3) == [window.id for window in (*left, *new)]
    assert house.health.counters() == {"recovered": 2}


@needs_memory
def test_a_window_that_is_gone_is_discarded_and_the_next_one_comes(memory: Path) -> None:
    before = House(memory)
    left = before.hears(2, 0.1)
    before.spool.close()
    house = House(memory)
    min(memory.glob("*.window")).unlink()
    assert house.takes(2) == [left[1].id]
    assert [one.reason for one in house.discarded] == ["failed"]


def test_it_is_over_when_nothing_follows_and_nothing_waits() -> None:
    house = House(None)
    house.hears(2, 0.1)
    house.backlog.complete()
    assert not house.backlog.over
    house.takes(2)
    assert house.backlog.over


def test_at_a_stop_what_there_is_no_time_for_is_left() -> None:
    house = House(None)
    house.hears(2, 0.1)
    house.backlog.complete(-1.0)
    assert house.backlog.over
    assert house.backlog.next(0) is None
    assert house.backlog.lost() == 2


def test_who_waits_for_a_window_is_woken_by_the_end() -> None:
    house = House(None)
    threading.Timer(0.1, house.backlog.complete).start()
    begun_s = time.monotonic()
    assert house.backlog.next(30) is None
    assert time.monotonic() - begun_s < 20
