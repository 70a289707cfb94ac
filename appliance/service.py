"""The daemon's life: signals, systemd's notifications, a watchdog fed by progress."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from types import FrameType

from appliance.errors import DeviceError
from appliance.pipeline import Pipeline
from appliance.publish.journal import notify
from appliance.settings import Settings

log = logging.getLogger("roomscribe")

STILL_S = 25.0
"""A stage that has not moved for so long is stuck; the slowest window takes a few seconds."""


def run(settings: Settings) -> None:
    """Runs the appliance until SIGTERM, SIGINT or the end of a recording.

    Raises whatever ended it otherwise; what was heard until then has been published.
    """
    begun_s = time.monotonic()
    stop = threading.Event()
    _on_signals(stop)
    pipeline = Pipeline(settings)
    pipeline.start()
    try:
        _announce(pipeline, time.monotonic() - begun_s)
        _supervise(pipeline, stop)
    finally:
        notify("STOPPING=1\nSTATUS=publishing what was heard")
        pipeline.stop()
    pipeline.check()


def _on_signals(stop: threading.Event) -> None:
    def ask(number: int, _frame: FrameType | None) -> None:
        log.info("%s: stopping", signal.Signals(number).name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)


def _announce(pipeline: Pipeline, took_s: float) -> None:
    state = pipeline.state()
    log.info(
        "listening to %s with model %s on %s, ready after %.2f s",
        state.microphone,
        state.model,
        state.encoder,
        took_s,
    )
    notify(f"READY=1\nSTATUS=listening to {state.microphone}")


def _supervise(pipeline: Pipeline, stop: threading.Event) -> None:
    """Feeds the watchdog while every stage moves; returns when the appliance is to end."""
    period_s = min(10.0, int(os.environ.get("WATCHDOG_USEC", "0")) / 3e6 or 10.0)
    fed_s = time.monotonic()
    while not stop.wait(0.5):
        if pipeline.ended.is_set():
            return
        still_s, stage = pipeline.still_s()
        if still_s > STILL_S:
            raise DeviceError(f"the {stage} has been stuck for {still_s:.0f} s; restarting")
        if time.monotonic() - fed_s >= period_s:
            fed_s = time.monotonic()
            notify("WATCHDOG=1")
