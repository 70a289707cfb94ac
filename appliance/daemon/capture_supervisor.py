"""The capture supervisor: reads the source and opens it again when it is lost.

While the appliance is muted no source is open.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from appliance.capture import Recorder, Source, open_source
from appliance.config import NO_DEVICE, CaptureSettings
from appliance.daemon.health import Health
from appliance.daemon.mute import Mute
from appliance.errors import DeviceError
from appliance.records import Frame

log = logging.getLogger("roomscribe.daemon")

REOPEN_PAUSE_S = 1.0
"""Between two attempts to open a microphone that is not there; one costs some 10 ms of CPU."""
REOPEN_AT_ONCE_S = 0.1
"""The same after sound has come: what was lost for a moment is back after a moment."""
REST_S = 1.0
"""While muted the thread shows this often that it is not stuck."""

Opener = Callable[[CaptureSettings, Recorder], Source]
"""Opens the configured source; raises DeviceError, and AudioError for a recording."""


class CaptureSupervisor:
    """Keeps a source open. `listen` is one thread's; all else is any thread's."""

    def __init__(
        self,
        settings: CaptureSettings,
        health: Health,
        mute: Mute,
        put: Callable[[Frame], None],
        lose: Callable[[], None],
        *,
        source: Opener = open_source,
        reopen_pause_s: float = REOPEN_PAUSE_S,
    ) -> None:
        """Opens the source unless muted. A microphone that is not there is a trouble, waited for.

        `put` is called with each frame, `lose` when the source was lost or muted; both by the
        thread that listens. Raises AudioError for a recording.
        """
        self._settings, self._health, self._mute = settings, health, mute
        self._put, self._lose = put, lose
        self._open, self._reopen_pause_s = source, reopen_pause_s
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._recorder = Recorder()
        self._source: Source | None = None
        self.listens = settings.device != NO_DEVICE or bool(settings.recording)
        """False where there is no microphone and is to be none."""
        self._muted = mute.on
        self._silenced = self._ended = False
        self._logged: set[str] = set()
        """Troubles of the microphone since sound last came."""
        self._untold = self._muted
        """Sound that comes is news: it did not for a while."""
        if self._muted or not self.listens:
            return
        try:
            self._source = source(settings, self._recorder)
        except DeviceError as error:
            self._trouble(str(error))

    @property
    def description(self) -> str | None:
        """The open source's name; None while there is none."""
        source = self._source
        return source.description if source and not self._muted else None

    @property
    def muted(self) -> bool:
        """True while the source is closed, and stays so, because of the mute."""
        return self._mute.on if self._ended else self._muted

    def listen(self, moved: Callable[[], None]) -> None:
        """Reads until the source ends or `stop` is called; calls `moved` at every progress."""
        try:
            while True:
                self._woken.clear()
                self._recorder.resume()
                if self._stopping.is_set():
                    break
                if self._mute.on or not self.listens:
                    self._rest(moved)
                elif self._read(moved):
                    break
        finally:
            self._recorder.kill()
            self._ended = True

    def obey(self) -> None:
        """The mute was turned: the source is closed, or opened, in a moment."""
        with self._lock:
            if self._mute.on:
                self._silenced = True
                self._interrupt()
        self._woken.set()
        self._health.on_change()

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
        """Keeps the source closed until the mute is turned or `stop` is called."""
        with self._lock:
            source, self._source = self._source, None
        if source:  # opened before, and never read
            with source:
                source.stop()
        self._become(muted=self._mute.on)
        while (self._mute.on or not self.listens) and not self._stopping.is_set():
            self._woken.wait(REST_S)
            self._woken.clear()
            if self._muted != self._mute.on and not self.listens:
                self._become(muted=self._mute.on)
            moved()
        if not self._stopping.is_set():
            self._become(muted=False)

    def _become(self, *, muted: bool) -> None:
        """Notes and logs the change; a microphone that is not wanted has no trouble."""
        if self._muted != muted:
            self._muted = muted
            position = "closed" if muted else "to be opened" if self.listens else "not there"
            log.info("the microphone is %s", position)
        self._health.trouble("microphone", None)
        self._health.on_change()

    def _read(self, moved: Callable[[], None]) -> bool:
        """Reads until the source is closed, and waits if it was lost; True when it has ended."""
        with self._lock:
            self._silenced = self._mute.on
        sound = False
        try:
            with self._mute.listening(), self._opened() as source:
                for frame in source.frames():
                    if self._silenced:
                        break
                    moved()
                    self._judge(source)
                    self._put(frame)
                    sound = True
        except DeviceError as error:
            if not (self._silenced or self._stopping.is_set()):
                # the trouble is set before the source is forgotten: no state has neither
                self._trouble(str(error))
                self._forget()
                self._woken.wait(REOPEN_AT_ONCE_S if sound else self._reopen_pause_s)
                moved()
                return False
        if not self._silenced:
            return True
        self._become(muted=self._mute.on)
        self._forget()
        return False

    def _opened(self) -> Source:
        """The source, opened unless it is. Raises DeviceError."""
        source = self._source or self._open(self._settings, self._recorder)
        with self._lock:
            self._source = source
            if self._silenced or self._stopping.is_set():
                source.stop()
        return source

    def _judge(self, source: Source) -> None:
        """Sets what is wrong with the sound that comes."""
        if source.silence:
            self._trouble(source.silence)
        else:
            told = self._health.trouble("microphone", None)
            if self._untold:
                self._untold = False
                self._logged.clear()
                log.info("listening to %s", source.description)
                if not told:
                    self._health.on_change()
        if self._health.trouble("sound", source.trouble or None) and source.trouble:
            log.warning("%s", source.trouble)

    def _forget(self) -> None:
        """The source is closed; whoever was speaking is cut short."""
        with self._lock:
            self._source = None
        self._untold = True
        self._health.trouble("sound", None)
        self._lose()

    def _trouble(self, trouble: str) -> None:
        """Sets what is wrong, and logs it once, however often it is met."""
        self._untold = True
        self._health.trouble("microphone", trouble)
        if trouble not in self._logged:
            self._logged.add(trouble)
            log.warning("%s", trouble)
