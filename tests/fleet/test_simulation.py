"""The simulation of large fleets: its arithmetic, and how near it is to what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from figures.fleet_simulation import (
    LEASE_S,
    Line,
    Plan,
    Simulation,
    compare,
    enough_workers,
    quantile,
)

QUIET = Plan(1, 1, 0.1, spread=0.0, every_s=10.0, for_s=100.0)


def test_a_line_works_on_one_window_after_the_other() -> None:
    line = Line(bytes_per_s=1000.0, each_s=0.5)
    assert (line.passed(0.0, 1000), line.passed(1.0, 500), line.passed(9.0, 0)) == (1.5, 2.5, 9.5)
    assert line.busy_s == 3.0


def test_a_window_of_an_idle_fleet_waits_for_nothing() -> None:
    found = Simulation(QUIET).run()
    assert found.sent == len(found.answers) == 10
    assert 0.1 < quantile(found.delays(), 1.0) < 0.15


def test_a_dead_workers_window_is_transcribed_when_its_lease_ends() -> None:
    began_s = Simulation(QUIET).run().answers[3][1]
    dying = replace(QUIET, workers=2, deaths=(began_s + 0.07,))
    waits = [Simulation(replace(dying, seed=seed)).run().delays()[-1] for seed in range(1, 9)]
    assert max(waits) > LEASE_S > min(waits)


def test_windows_beyond_the_workers_power_are_late() -> None:
    busy = Plan(100, 1, 0.2, every_s=10.0, for_s=60.0)
    assert Simulation(busy).run().late_share() > 0.4
    enough = replace(busy, workers=3)
    assert Simulation(enough).run().late_share() == 0.0


@pytest.mark.parametrize(
    ("rooms", "workers", "service_s", "measured"),
    [(3, 1, 0.2, 4.12), (3, 2, 0.2, 8.24), (10, 2, 0.3, 6.9), (40, 2, 0.3, 6.7)],
)
def test_throughput_is_within_a_fifth_of_what_was_measured(
    rooms: int, workers: int, service_s: float, measured: float
) -> None:
    found = Simulation(Plan(rooms, workers, service_s, 0.0, every_s=0.0, for_s=60.0)).run()
    assert len(found.answers) / 60 == pytest.approx(measured, rel=0.2)


def test_enough_workers_answer_in_time_and_one_is_to_spare() -> None:
    assert [enough_workers(rooms, 0.06, 60.0) for rooms in (1, 10, 2000)] == [1, 2, 8]
    found = Simulation(Plan(200, enough_workers(200, 0.4, 60.0) - 1, 0.4, for_s=120.0)).run()
    assert found.late_share() < 0.01


def test_a_death_is_as_long_as_it_was_measured() -> None:
    line = next(line for line in compare() if "worker's death" in line)
    assert "p50 0.4" in line.partition("->")[2]
    assert "p95 3.2" in line.partition("->")[2]
