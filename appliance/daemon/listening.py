"""The capture thread's work: reads the source; a microphone that is lost is opened again.

While the appliance is muted no source is open.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from appliance.capture import Recorder, Source, open_source
from appliance.config import CaptureSettings
from appliance.daemon.health import Health
from appliance.daemon.mute import Mute
from appliance.errors import DeviceError
from appliance.records import Frame

log = logging.getLogger("roomscribe.daemon")

REOPEN_PAUSE_S = 1.0
"""Between two attempts to open a microphone that is not there; one costs some 10 ms of CPU."""
REOPEN_AT_ONCE_S = 0.1
"""After sound has come: what was lost for a moment is heard again after a moment."""
REST_S = 1.0
"""While muted the thread shows that it lives this often."""


class CaptureSupervisor:
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
        self._recorder = Recorder()
        self._source: Source | None = None
        self._muted = mute.on
        self._silenced = False
        self._told: set[str] = set()
        """What was said of the microphone since sound last came."""
        if self._muted:
            return
        try:
            self._source = open_source(settings, self._recorder)
        except DeviceError as error:
            self._tell(str(error))

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
        try:
            while True:
                self._woken.clear()
                self._recorder.resume()
                if self._stopping.is_set():
                    break
                if self._mute.on:
                    self._rest(moved)
                elif self._read(moved):
                    break
        finally:
            self._recorder.kill()

    def obey(self) -> None:
        """The mute was turned: the source is closed, or opened, in a moment."""
        with self._lock:
            if self._mute.on:
                self._silenced = True
                self._interrupt()
        self._woken.set()

    def stop(self) -> None:
        """Makes `listen` end soon."""
        self._stopping.set()
        with self._lock:
            self._interrupt()
        self._woken.set()

    def _interrupt(self) -> None:
        """Ends the reading, or the opening. Under the lock."""
        if self._source:
            self._source.stop()
        self._recorder.interrupt()

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
        """Hears until the source is closed, and waits if it was lost; True when it has ended."""
        with self._lock:
            self._silenced = self._mute.on
        heard = False
        try:
            with self._mute.listening(), self._opened() as source:
                for frame in source.frames():
                    if self._silenced:
                        break
                    moved()
                    self._judge(source)
                    self._hear(frame)
                    heard = True
        except DeviceError as error:
            if not (self._silenced or self._stopping.is_set()):
                # the trouble is told before the source is forgotten: no state has neither
                self._tell(str(error))
                self._forget()
                self._woken.wait(REOPEN_AT_ONCE_S if heard else REOPEN_PAUSE_S)
                moved()
                return False
        if not self._silenced:
            return True
        self._become(muted=self._mute.on)
        self._forget()
        return False

    def _opened(self) -> Source:
        """The source, opened unless it is. Raises DeviceError."""
        source = self._source or open_source(self._settings, self._recorder)
        with self._lock:
            self._source = source
            if self._silenced or self._stopping.is_set():
                source.stop()
        return source

    def _judge(self, source: Source) -> None:
        """Says what is wrong with the sound that comes."""
        if self._told and not source.silence:
            log.info("listening to %s", source.description)
            self._told.clear()
        if source.silence:
            self._tell(source.silence)
        else:
            self._health.trouble("microphone", None)
        if self._health.trouble("sound", source.trouble or None) and source.trouble:
            log.warning("%s", source.trouble)

    def _forget(self) -> None:
        """The source is closed; whoever was speaking is cut short."""
        with self._lock:
            self._source = None
        self._health.trouble("sound", None)
        self._lose()

    def _tell(self, trouble: str) -> None:
        """Sets what is wrong, and logs it once, however often it is met."""
        self._health.trouble("microphone", trouble)
        if trouble not in self._told:
            self._told.add(trouble)
            log.warning("%s", trouble)
