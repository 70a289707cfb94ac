"""Timers of the room: when they ring, and for how long."""

from typing import Any

from appliance.wyoming.protocol import Event
from appliance.wyoming.timers import GRACE_S, RING_S, Timers


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers = Timers(lambda: self.now_s)

    def tell(self, kind: str, name: Any = "a", **data: Any) -> None:
        self.timers.take(Event(f"timer-{kind}", {"id": name, **data}))

    def rings_after(self, seconds: float) -> bool:
        self.now_s += seconds
        self.timers.poll()
        return self.timers.rings


def test_a_timer_rings_when_home_assistant_says_so_for_a_minute() -> None:
    clock = Clock()
    clock.tell("started", total_seconds=5)
    assert not clock.rings_after(5)
    clock.tell("finished")
    assert clock.rings_after(RING_S - 1)
    assert not clock.rings_after(1)


def test_a_timer_rings_also_if_home_assistant_has_gone_meanwhile() -> None:
    clock = Clock()
    clock.tell("started", total_seconds=5)
    clock.tell("started", "b", total_seconds=500)
    assert not clock.rings_after(5)
    assert clock.rings_after(GRACE_S)
    clock.timers.hush()
    assert not clock.rings_after(0)
    assert clock.rings_after(500)


def test_a_timer_that_is_paused_prolonged_or_cancelled_rings_later_or_never() -> None:
    clock = Clock()
    for name in "abc":
        clock.tell("started", name, total_seconds=5)
    clock.tell("cancelled", "a")
    clock.tell("updated", "b", total_seconds=3, is_active=False)
    clock.tell("updated", "c", total_seconds=50, is_active=True)
    assert not clock.rings_after(40)
    assert clock.rings_after(10 + GRACE_S)
    clock.timers.hush()
    clock.tell("updated", "b", total_seconds=3, is_active=True)
    assert clock.rings_after(3 + GRACE_S)


def test_what_is_no_timer_does_nothing() -> None:
    clock = Clock()
    for name, left in (("a", "5"), (None, 5), ({}, 5), ("a", True), ("a", None)):
        clock.tell("started", name, total_seconds=left)
    clock.tell("finished", "unknown")
    assert not clock.rings_after(100)
