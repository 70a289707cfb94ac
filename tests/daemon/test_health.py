"""The memory of a day, as it outlives the process."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest

from appliance.daemon.health import DAY_FILE, Day


def test_the_most_of_each_stretch_is_kept_and_a_restart_goes_on_with_it(tmp_path: Path) -> None:
    day = Day(tmp_path, every_s=0.05)
    day.record(100.0)
    day.record(120.26)
    day.record(90.0)
    assert day.points() == ()
    time.sleep(0.06)
    day.record(80.0)
    ((at, most_mb),) = day.points()
    assert (most_mb, abs(at - time.time()) < 5) == (120.3, True)
    assert Day(tmp_path).points() == day.points()
    assert stat.S_IMODE((tmp_path / DAY_FILE).stat().st_mode) == 0o600


def test_what_is_older_than_a_day_or_to_come_goes(tmp_path: Path) -> None:
    now = round(time.time())
    points = [[now - 86_500, 1.0], [now - 86_000, 2.0], [now + 9000, 3.0]]
    (tmp_path / DAY_FILE).write_text(json.dumps(points))
    day = Day(tmp_path, every_s=0.0)
    assert day.points() == ((now - 86_000, 2.0),)
    day.record(4.0)
    assert [mb for _, mb in json.loads((tmp_path / DAY_FILE).read_text())] == [2.0, 4.0]


@pytest.mark.parametrize("text", ["", "{", "7", "[[1]]", '[["x", 2]]', "[[1, NaN]]", "\x00"])
def test_a_file_that_makes_no_sense_is_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / DAY_FILE).write_text(text)
    assert Day(tmp_path).points() == ()


def test_a_folder_that_refuses_costs_nothing_but_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = Day(tmp_path / "gone", every_s=0.0)
    day.record(5.0)
    assert [mb for _, mb in day.points()] == [5.0]
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    Day(every_s=0.0).record(5.0)
