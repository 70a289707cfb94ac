"""A microphone's level, from the daemon or from a recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.control import ControlClient

if TYPE_CHECKING:
    from appliance.capture import Recorder

FLOOR_DB, QUIET_DB = -60.0, -30.0
"""Left end of the bar; peak below which speech is too quiet, as for the control socket."""
BAR_WIDTH = 24
GOOD = "good"
EVERY_S = 0.1
"""Seconds between two readings."""


class Meter:
    """The level of one microphone."""

    def __init__(self) -> None:
        self.now_db: float | None = None
        self.peak_db: float | None = None
        """Loudest peak so far; None before any sound."""
        self.clipped = False

    def push(self, peak_db: float | None, clipped: bool) -> None:
        """Take in a piece of sound; `peak_db` is None for zeros."""
        self.now_db = peak_db
        self.clipped = self.clipped or clipped
        if peak_db is not None:
            self.peak_db = peak_db if self.peak_db is None else max(peak_db, self.peak_db)

    def bar(self) -> str:
        """Return the level now as a bar, and what is right or wrong with it."""
        db = FLOOR_DB if self.now_db is None else self.now_db
        filled = round(BAR_WIDTH * min(1.0, max(0.0, 1 - db / FLOOR_DB)))
        return f"  {'#' * filled}{'.' * (BAR_WIDTH - filled)} {self.verdict()}"

    def verdict(self) -> str:
        """Return what is right or wrong with the microphone, in a few words."""
        if self.clipped:
            return "distorted: turn its gain down"
        if self.peak_db is None:
            return "silent: is it off, or muted?"
        if self.peak_db < QUIET_DB:
            return "too quiet: speak, or turn its gain up"
        return GOOD


def read_daemon(daemon: ControlClient, meter: Meter) -> list[tuple[str, dict[str, Any]]]:
    """Take in the levels that the daemon has sent; return its other events.

    Raises DaemonError if it has ended.
    """
    others = list[tuple[str, dict[str, Any]]]()
    while event := daemon.next_event(0.0):
        if event[0] == "level":
            meter.push(event[1]["peak_db"], event[1]["clipped"])
        else:
            others.append(event)
    return others


def read_recorder(recorder: Recorder, meter: Meter) -> None:
    """Take in the sound that has arrived. Raises EndError if the microphone is lost."""
    import numpy as np

    from appliance.capture import measure_loudness

    for block in recorder.waiting():
        _, peak_db, clipped_share = measure_loudness(np.frombuffer(block.data, np.int16))
        meter.push(peak_db, clipped_share > 0)
