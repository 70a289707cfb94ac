"""The capture supervisor: reads the source, and opens it again after a loss.

No source is open while the appliance is muted.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Full

from appliance.capture import Recorder, Source, open_source
from appliance.config import NO_DEVICE, CaptureSettings
from appliance.daemon.health import Health
from appliance.daemon.mute import Mute
from appliance.daemon.stages import Sentinel, StageQueue
from appliance.errors import DeviceError
from appliance.records import EchoState, Frame, Listener

log = logging.getLogger("roomscribe.daemon")

REOPEN_PAUSE_S = 1.0
"""Seconds between two attempts to open a missing microphone; one costs about 10 ms of CPU."""
REOPEN_AT_ONCE_S = 0.1
"""The same after a microphone that worked was lost, because it may be back at once."""
UNSTEADY, UNSTEADY_S = 5, 120.0
"""A microphone that was lost so often within so many seconds is unsteady until it holds for the
rest of them: its sound is used, but one trouble and one line of the log stand for all losses."""
REST_S = 1.0
"""The thread reports progress this often while muted."""

Opener = Callable[[CaptureSettings, Recorder], Source]
"""Opens the configured source. Raises DeviceError, and AudioError for a recording."""


class CaptureSupervisor(Listener):
    """Keeps a source open. One thread calls `listen`; any thread calls the rest."""

    def __init__(
        self,
        settings: CaptureSettings,
        health: Health,
        mute: Mute,
        frames: StageQueue[Frame],
        bus: Listener,
        *,
        source: Opener = open_source,
        reopen_pause_s: float = REOPEN_PAUSE_S,
    ) -> None:
        """Open the source unless muted. A missing microphone is a trouble, and is waited for.

        The thread that listens queues each frame in `frames`, and a mark when the source was lost
        or muted. Raises AudioError for a recording.
        """
        self._settings, self._health, self._mute = settings, health, mute
        self._frames, self._bus = frames, bus
        self.sounding = threading.Event()
        """Set once sound has come from the source."""
        self._open, self._reopen_pause_s = source, reopen_pause_s
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._recorder = Recorder()
        self._source: Source | None = None
        self.listens = settings.device != NO_DEVICE or bool(settings.recording)
        """False if the configuration says that there is no microphone."""
        self._muted = mute.on
        self._begun = self._silenced = self._ended = False
        self._logged: set[str] = set()
        """Troubles that were logged since the last sound."""
        self._losses: deque[float] = deque(maxlen=UNSTEADY)
        self._is_silent = self._muted
        """True after a time without sound: the next sound is logged."""
        if self._muted or not self.listens:
            return
        try:
            self._source = source(settings, self._recorder)
        except DeviceError as error:
            self._trouble(str(error))

    @property
    def description(self) -> str | None:
        """The name of the open source; None without one."""
        source = self._source
        return source.description if source and not self._muted else None

    @property
    def echo(self) -> EchoState | None:
        """What the echo canceller does; None without a reference or an open source."""
        source = self._source
        return source.echo if source and not self._muted else None

    @property
    def muted(self) -> bool:
        """True while the mute keeps the source closed."""
        return self._mute.on if self._ended else self._muted

    def listen(self, heartbeat: Callable[[], None]) -> None:
        """Read until the source ends or `stop` is called; call `heartbeat` at every progress."""
        self._begun = True
        try:
            while True:
                self._woken.clear()
                self._recorder.resume()
                if self._stopping.is_set():
                    break
                if self._mute.on or not self.listens:
                    self._rest(heartbeat)
                elif self._read(heartbeat):
                    break
        finally:
            self._recorder.kill()
            self._ended = True

    def attend(self, *, alert: bool) -> None:
        """Take each block as soon as it comes if `alert`, else several at once; also with a
        reference, which must not wait."""
        if alert or self._settings.reference.get("device"):
            self._recorder.alert.set()
        else:
            self._recorder.alert.clear()

    def on_mute(self) -> None:
        """Close or open the source soon, because the mute has changed."""
        with self._lock:
            if self._mute.on:
                self._silenced = True
                self._interrupt()
        self._woken.set()
        self._bus.on_change()

    def stop(self) -> None:
        """Make `listen` end soon."""
        self._stopping.set()
        with self._lock:
            self._interrupt()
        self._woken.set()

    def close(self) -> None:
        """Close a source that was opened and never read."""
        if self._source and not self._begun:
            with self._source:
                self._source.stop()

    def _interrupt(self) -> None:
        """End the reading or the opening. Holds the lock."""
        if self._source:
            self._source.stop()
        self._recorder.interrupt()

    def _rest(self, heartbeat: Callable[[], None]) -> None:
        """Keep the source closed until it is unmuted or `stop` is called."""
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
            heartbeat()
        if not self._stopping.is_set():
            self._become(muted=False)

    def _become(self, *, muted: bool) -> None:
        """Set and log whether it is muted. A closed microphone has no trouble."""
        if self._muted != muted:
            self._muted = muted
            position = "closed" if muted else "to be opened" if self.listens else "not there"
            log.info("the microphone is %s", position)
        self._health.trouble("microphone", None)
        self._bus.on_change()

    def _read(self, heartbeat: Callable[[], None]) -> bool:
        """Read until the source is closed, and wait if it was lost; return True if it has ended."""
        with self._lock:
            self._silenced = self._mute.on
        sound = False
        try:
            with self._mute.listening(), self._opened() as source:
                for frame in source.frames():
                    if self._silenced:
                        break
                    heartbeat()
                    self._judge(source)
                    self._put(frame)
                    sound = True
        except DeviceError as error:
            if not (self._silenced or self._stopping.is_set()):
                if sound:
                    self._losses.append(time.monotonic())
                # the trouble is set before the source is forgotten: no state has neither
                self._trouble(str(error))
                self._forget()
                self._woken.wait(REOPEN_AT_ONCE_S if sound else self._reopen_pause_s)
                heartbeat()
                return False
        if not self._silenced:
            return True
        self._become(muted=self._mute.on)
        self._forget()
        return False

    def _put(self, frame: Frame) -> None:
        """Queue a frame, or drop and count it: sound never waits."""
        self.sounding.set()
        self._bus.on_frame(frame)
        try:
            self._frames.put_nowait(frame)
        except Full:
            self._health.count("frames_dropped")

    def _opened(self) -> Source:
        """Return the source, and open it if it is not. Raises DeviceError."""
        source = self._source or self._open(self._settings, self._recorder)
        with self._lock:
            self._source = source
            if self._silenced or self._stopping.is_set():
                source.stop()
        return source

    def _judge(self, source: Source) -> None:
        """Set what is wrong with the sound, if anything."""
        if source.silence:
            self._trouble(source.silence)
        elif not self._is_unsteady():
            cleared = self._health.trouble("microphone", None)
            if self._is_silent:
                self._is_silent = False
                self._logged.clear()
                log.info("listening to %s", source.description)
                if not cleared:
                    self._bus.on_change()
        echo = source.echo
        for kind, text in (("reference", echo.problem if echo else ""), ("sound", source.trouble)):
            if self._health.trouble(kind, text or None) and text:
                log.warning("%s", text)

    def _forget(self) -> None:
        """Forget the closed source, which ends an utterance at once."""
        with self._lock:
            self._source = None
        self._is_silent = True
        for kind in ("sound", "level", "reference"):
            self._health.trouble(kind, None)
        self._frames.mark(Sentinel.LOST)

    def _is_unsteady(self) -> bool:
        """True for a microphone that was lost too often lately."""
        many = len(self._losses) == UNSTEADY
        return many and time.monotonic() - self._losses[0] < UNSTEADY_S

    def _trouble(self, trouble: str) -> None:
        """Set the microphone's trouble, and log it once, however often it occurs."""
        if self._is_unsteady():
            trouble += (
                f"; it was lost {UNSTEADY} times within {UNSTEADY_S / 60:.0f} minutes, "
                "which is told once: check its cable, hub and power supply"
            )
        self._is_silent = True
        self._health.trouble("microphone", trouble)
        if trouble not in self._logged:
            self._logged.add(trouble)
            log.warning("%s", trouble)
