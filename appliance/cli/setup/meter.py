"""A microphone's level, from the daemon if it uses that microphone, else from a recorder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from appliance.control import ControlClient
from appliance.errors import DeviceError
from appliance.system import shorten

if TYPE_CHECKING:
    from appliance.capture import Recorder

FLOOR_DB, QUIET_DB = -60.0, -30.0
"""Left end of the bar; peak below which speech is too quiet, as for the control socket."""
BAR_WIDTH = 24
ZEROS_S = 1.0
"""A microphone that delivers only zeros for this long is off."""
EVERY_S = 0.1
"""Seconds between two readings, and between two levels from the daemon."""


@dataclass
class Meter:
    """One microphone's level."""

    name: str
    recorder: Recorder | None = None
    daemon: ControlClient | None = None
    in_use: bool = False
    """True for the configured microphone."""
    problem: str = ""
    now_db: float | None = None
    peak_db: float | None = None
    """Loudest peak so far; None before any sound."""
    clipped: bool = False
    zeros_s: float = 0.0
    heard: bool = False
    _channels: int = field(default=1, repr=False)
    _rate_hz: float = field(default=16_000.0, repr=False)

    def open(self) -> None:
        """Open the microphone; if that fails, `problem` says why."""
        if self.recorder:
            try:
                opened = self.recorder.open(self.name)
                self._channels, self._rate_hz = opened.channels, opened.rate_hz
            except DeviceError as error:
                self.problem = shorten(str(error), 60)

    def listen(self) -> list[tuple[str, dict[str, Any]]]:
        """Take in the sound since the last call; return the daemon's other events."""
        from appliance.capture import EndError

        others = list[tuple[str, dict[str, Any]]]()
        if self.daemon:
            while event := self.daemon.next_event(0.0):
                if event[0] == "level":
                    self.push(event[1]["peak_db"], event[1]["clipped"], EVERY_S)
                else:
                    others.append(event)
        elif self.recorder and not self.problem:
            try:
                for block in self.recorder.waiting():
                    peak_db, clipped = loudest(block.data)
                    length_s = len(block.data) / 2 / self._channels / self._rate_hz
                    self.push(peak_db, clipped, length_s)
            except EndError as error:
                self.problem = shorten(str(error), 60)
        return others

    def push(self, peak_db: float | None, clipped: bool, length_s: float) -> None:
        """Take in a piece of sound; `peak_db` is None for zeros."""
        self.heard, self.now_db = True, peak_db
        self.clipped = self.clipped or clipped
        self.zeros_s = self.zeros_s + length_s if peak_db is None else 0.0
        if peak_db is not None:
            self.peak_db = peak_db if self.peak_db is None else max(peak_db, self.peak_db)

    def bar(self) -> str:
        """Return the level now as a bar."""
        db = FLOOR_DB if self.now_db is None else self.now_db
        filled = round(BAR_WIDTH * min(1.0, max(0.0, 1 - db / FLOOR_DB)))
        return "#" * filled + "." * (BAR_WIDTH - filled)

    def verdict(self) -> str:
        """Return what is right or wrong with the microphone, in a few words."""
        if self.problem:
            return self.problem
        if not self.heard:
            return "no sound yet"
        if self.zeros_s >= ZEROS_S:
            return "silent: off, or muted"
        if self.clipped:
            return "distorted: turn its gain down"
        if self.peak_db is None or self.peak_db < QUIET_DB:
            return "too quiet: speak, or turn its gain up"
        return "good"


def loudest(data: bytes) -> tuple[float | None, bool]:
    """Return the peak of int16 samples in dB of full scale (None: zeros), and whether it clips."""
    import numpy as np

    from appliance.capture import measure_loudness

    _, peak_db, clipped_share = measure_loudness(np.frombuffer(data, np.int16))
    return peak_db, clipped_share > 0
