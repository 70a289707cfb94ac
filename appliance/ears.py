"""The capture thread's work: reads the source; a microphone that is lost is opened again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from appliance.capture.source import Source, open_source
from appliance.errors import DeviceError
from appliance.health import Health
from appliance.records import Frame
from appliance.settings import CaptureSettings

log = logging.getLogger("roomscribe")

REOPEN_PAUSE_S = 2.0


class Ears:
    """Keeps a source open. `listen` is one thread's; `stop` and `description` are any thread's."""

    def __init__(
        self,
        settings: CaptureSettings,
        health: Health,
        hear: Callable[[Frame], None],
        lose: Callable[[], None],
    ) -> None:
        """Opens the source. A microphone that is not there is a trouble, and is waited for.

        `hear` is called with each frame, `lose` when the source was lost; both by the thread that
        listens. Raises AudioError for a recording.
        """
        self._settings, self._health = settings, health
        self._hear, self._lose = hear, lose
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._source: Source | None = None
        try:
            self._source = open_source(settings)
        except DeviceError as error:
            self._tell(error)

    @property
    def description(self) -> str | None:
        """The open source's name; None while there is none."""
        source = self._source
        return source.description if source else None

    def listen(self, moved: Callable[[], None]) -> None:
        """Hears until the source ends or `stop` is called; calls `moved` at every progress."""
        while not self._stopping.is_set():
            try:
                self._read(moved)
                break
            except DeviceError as error:
                # the trouble is told before the source is forgotten: no state has neither
                self._tell(error)
                with self._lock:
                    self._source = None
                self._lose()
                self._stopping.wait(REOPEN_PAUSE_S)
                moved()

    def stop(self) -> None:
        """Makes `listen` end soon."""
        self._stopping.set()
        with self._lock:
            if self._source:
                self._source.stop()

    def _read(self, moved: Callable[[], None]) -> None:
        """Hears until the source ends; raises DeviceError, and then the source is closed."""
        with self._lock:
            if self._stopping.is_set():
                return
            if self._source is None:
                self._source = open_source(self._settings)
            source = self._source
        with source:
            for frame in source.frames():
                moved()
                self._health.trouble("microphone", None)
                self._hear(frame)

    def _tell(self, error: DeviceError) -> None:
        """Logs a trouble once, however often it is met."""
        if self._health.trouble("microphone", str(error)):
            log.warning("%s", error)
