"""The capture thread's work: reads the source; a microphone that is lost is opened again.

While the appliance is muted no source is open.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from appliance.capture.source import Source, open_source
from appliance.errors import DeviceError
from appliance.health import Health
from appliance.mute import Mute
from appliance.records import Frame
from appliance.settings import CaptureSettings

log = logging.getLogger("roomscribe")

REOPEN_PAUSE_S = 2.0
REST_S = 1.0
"""While muted the thread shows that it lives this often."""


class Ears:
    """Keeps a source open. `listen` is one thread's; all else is any thread's."""

    def __init__(
        self,
        settings: CaptureSettings,
        health: Health,
        mute: Mute,
        hear: Callable[[Frame], None],
        lose: Callable[[], None],
    ) -> None:
        """Opens the source unless muted. A microphone that is not there is a trouble, waited for.

        `hear` is called with each frame, `lose` when the source was lost or muted; both by the
        thread that listens. Raises AudioError for a recording.
        """
        self._settings, self._health, self._mute = settings, health, mute
        self._hear, self._lose = hear, lose
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._source: Source | None = None
        self._muted = mute.on
        self._silenced = False
        if self._muted:
            return
        try:
            self._source = open_source(settings)
        except DeviceError as error:
            self._tell(error)

    @property
    def description(self) -> str | None:
        """The open source's name; None while there is none."""
        source = self._source
        return source.description if source else None

    @property
    def muted(self) -> bool:
        """True while the source is closed, and stays so, because of the mute."""
        return self._muted

    def listen(self, moved: Callable[[], None]) -> None:
        """Hears until the source ends or `stop` is called; calls `moved` at every progress."""
        while not self._stopping.is_set():
            self._woken.clear()
            if self._mute.on:
                self._rest(moved)
                continue
            try:
                if self._read(moved):
                    break
            except DeviceError as error:
                # the trouble is told before the source is forgotten: no state has neither
                self._tell(error)
                self._forget()
                self._woken.wait(REOPEN_PAUSE_S)
                moved()

    def obey(self) -> None:
        """The mute was turned: the source is closed, or opened, in a moment."""
        with self._lock:
            if self._mute.on and self._source:
                self._silenced = True
                self._source.stop()
        self._woken.set()

    def stop(self) -> None:
        """Makes `listen` end soon."""
        self._stopping.set()
        with self._lock:
            if self._source:
                self._source.stop()
        self._woken.set()

    def _rest(self, moved: Callable[[], None]) -> None:
        """Hears nothing until the mute is turned or `stop` is called."""
        with self._lock:
            source, self._source = self._source, None
        if source:  # opened before, and never read
            with source:
                source.stop()
        self._become(muted=True)
        while self._mute.on and not self._stopping.is_set():
            self._woken.wait(REST_S)
            self._woken.clear()
            moved()
        self._become(muted=False)

    def _become(self, *, muted: bool) -> None:
        """Says so to whom it concerns."""
        if self._muted != muted:
            self._muted = muted
            log.info("the microphone is %s", "closed" if muted else "to be opened")
        self._health.trouble("microphone", None)
        self._health.on_change()

    def _read(self, moved: Callable[[], None]) -> bool:
        """Hears until the source is closed; True when it ended by itself, False when muted.

        Raises DeviceError, and then the source is closed, too.
        """
        with self._lock:
            if self._stopping.is_set():
                return True
            if self._mute.on:
                return False
            if self._source is None:
                self._source = open_source(self._settings)
            source, self._silenced = self._source, False
        with self._mute.listening(), source:
            for frame in source.frames():
                if self._silenced:
                    break
                moved()
                self._health.trouble("microphone", None)
                self._hear(frame)
        if not self._silenced:
            return True
        self._become(muted=self._mute.on)
        self._forget()
        return False

    def _forget(self) -> None:
        """The source is closed; whoever was speaking is cut short."""
        with self._lock:
            self._source = None
        self._lose()

    def _tell(self, error: DeviceError) -> None:
        """Logs a trouble once, however often it is met."""
        if self._health.trouble("microphone", str(error)):
            log.warning("%s", error)
