"""The corridor: builds the stages, joins them with bounded queues, starts, supervises, stops.

    capture --frames--> segmenter --windows--> transcriber --> store <-- publisher

Only this module and `stage` say Thread and Queue. Started from the end of the path, stopped from
its beginning, so that what was heard is still published.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from queue import Full, Queue
from typing import TypeVar

from appliance import __version__
from appliance.capture.segmenter import Segmenter
from appliance.capture.source import Source, open_source
from appliance.capture.voice import VoiceDetector
from appliance.config import node_name
from appliance.errors import DeviceError
from appliance.health import Health
from appliance.infer.transcriber import open_transcriber
from appliance.publish.events import ApplianceState
from appliance.publish.publisher import MqttPublisher
from appliance.publish.store import Store
from appliance.records import Discarded, Frame, Window
from appliance.scribe import Scribe
from appliance.settings import Settings
from appliance.stage import Stage, next_item

log = logging.getLogger("roomscribe")

FRAMES_WAITING = 1000
"""30 s of sound: longer than any window takes; beyond it frames are dropped and counted."""
WINDOWS_WAITING = 64
"""Ten minutes of speech at most; beyond it windows are discarded as `overload`."""
REOPEN_PAUSE_S = 2.0
STOP_WITHIN_S = 4.0
"""Of the 5 s that systemd is promised."""
JOIN_WITHIN_S = {"capture": 1.0, "segmenter": 1.0}
"""A stalled audio server must not take the time that transcribing needs."""


Item = TypeVar("Item")


class Mark(enum.Enum):
    """What a queue carries besides sound."""

    LOST = "the source was lost in mid-stream"
    END = "nothing follows"


class Pipeline:
    """A running appliance: `start`, wait for `ended`, `stop`; all from one thread."""

    def __init__(self, settings: Settings) -> None:
        """Opens store, model and sound source; raises any RoomscribeError, leaving nothing open."""
        self.health = Health()
        self.ended = threading.Event()
        """Set when the source came to its end, or a stage failed."""
        self._settings = settings
        self._stopping = threading.Event()
        self._frames: Queue[Frame | Mark] = Queue(FRAMES_WAITING)
        self._windows: Queue[tuple[Window, float] | Mark] = Queue(WINDOWS_WAITING)
        self._source_lock = threading.Lock()
        with contextlib.ExitStack() as opened:
            store = opened.enter_context(Store.open(settings.store))
            transcriber = open_transcriber(settings)
            transcriber.warm_up()
            self._segmenter = Segmenter(
                VoiceDetector(settings.voice), settings.segmenter, transcriber.bundle.window_s
            )
            self._publisher = (
                MqttPublisher(settings.mqtt, node_name(settings), store, self.state)
                if settings.mqtt.enabled
                else None
            )
            listeners = (self._publisher,) if self._publisher else ()
            self._scribe = Scribe(settings, transcriber, store, self.health, listeners)
            self._source: Source | None = open_source(settings.capture)
            self._opened = opened.pop_all()
        if self._publisher:
            self.health.on_change = self._publisher.notify
        self._stages: list[Stage] = []

    def start(self) -> None:
        """Starts the stages, the last one of the path first."""
        works = [("transcriber", self._transcribe), ("segmenter", self._segment)]
        for name, work in [*works, ("capture", self._capture)]:
            self._stages.append(Stage(name, work, self.ended.set))
        if publisher := self._publisher:
            follow = Stage("publisher", lambda stage: publisher.run(stage.moved), self.ended.set)
            self._stages.insert(0, follow)
        for stage in self._stages:
            stage.start()

    def stop(self) -> None:
        """Ends the stages, the first one of the path first; what was heard is published."""
        deadline_s = time.monotonic() + STOP_WITHIN_S
        self._stopping.set()
        with self._source_lock:
            if self._source:
                self._source.stop()
        for stage in reversed(self._stages):
            left_s = max(0.2, deadline_s - time.monotonic())
            if stage.name == "publisher" and self._publisher:
                self._publisher.stop(max(0.5, left_s - 0.5))
            stage.join(min(left_s, JOIN_WITHIN_S.get(stage.name, left_s)))
            if stage.is_alive():
                log.error("the %s is still busy and is left behind", stage.name)
            if stage.name == "capture":
                _end(self._frames)
            elif stage.name == "segmenter":
                _end(self._windows)
        left = sum(1 for item in list(self._windows.queue) if not isinstance(item, Mark))
        if left or self._scribe.flush():
            log.error("stopped with %d windows untranscribed or transcripts unstored", left)
        self._opened.close()

    def check(self) -> None:
        """Raises the error of a stage that failed."""
        for stage in self._stages:
            if stage.error:
                raise stage.error

    def still_s(self) -> tuple[float, str]:
        """Seconds since the slowest stage last moved, and its name.

        A recording may keep its reader waiting (a pipe); a microphone may not.
        """
        may_wait = "capture" if self._settings.capture.recording else ""
        watched = (stage for stage in self._stages if stage.name != may_wait)
        return max(((stage.still_s(), stage.name) for stage in watched), default=(0.0, ""))

    def state(self) -> ApplianceState:
        """How the appliance is, for the `state` topic. Any thread; does not wait."""
        source = self._source
        troubles = self.health.troubles()
        return ApplianceState(
            status="degraded" if troubles else "running",
            reasons=tuple(troubles.values()),
            encoder=self._scribe.encoder,
            model=self._scribe.model,
            microphone=source.description if source else "none",
            microphone_online=source is not None and "microphone" not in troubles,
            queue_depth=self._windows.qsize(),
            uptime_s=self.health.uptime_s,
            version=__version__,
        )

    def _capture(self, stage: Stage) -> None:
        """Source -> frames. A microphone that is lost is opened again until it is back."""
        while not self._stopping.is_set():
            try:
                self._read(stage)
                break
            except DeviceError as error:
                if self.health.trouble("microphone", str(error)):
                    log.warning("%s", error)
                with self._source_lock:
                    self._source = None
                self._frames.put(Mark.LOST)
                self._stopping.wait(REOPEN_PAUSE_S)
                stage.moved()
        self._frames.put(Mark.END)

    def _read(self, stage: Stage) -> None:
        """Puts frames until the source ends; raises DeviceError, and then the source is closed."""
        with self._source_lock:
            if self._stopping.is_set():
                return
            if self._source is None:
                self._source = open_source(self._settings.capture)
            source = self._source
        with source:
            for frame in source.frames():
                stage.moved()
                self.health.trouble("microphone", None)
                self._put(frame)

    def _put(self, frame: Frame) -> None:
        """Queues a frame, or drops and counts it; the sound never waits."""
        try:
            self._frames.put_nowait(frame)
        except Full:
            self.health.count("frames_dropped")

    def _segment(self, stage: Stage) -> None:
        """Frames -> windows; tells the publisher when speech begins and ends."""
        speaking = False
        item: Frame | Mark | None = None
        while item is not Mark.END:
            item = next_item(self._frames)
            stage.moved()
            if item is None:
                continue
            if isinstance(item, Frame):
                found = self._segmenter.push(item)
            else:
                found = self._segmenter.flush(interrupted=item is Mark.LOST)
            if self._segmenter.speaking != speaking:
                speaking = not speaking
                if self._publisher:
                    self._publisher.speech(speaking)
            for result in found:
                self._pass_on(result)
        self._windows.put(Mark.END)

    def _pass_on(self, result: Window | Discarded) -> None:
        """Queues a window; discards it when the transcriber is ten minutes behind."""
        if isinstance(result, Window):
            try:
                self._windows.put_nowait((result, time.monotonic()))
                return
            except Full:
                result = Discarded("overload", result.utterance_id, result.duration_s)
        self._scribe.discard(result)

    def _transcribe(self, stage: Stage) -> None:
        """Windows -> stored transcripts, until the end of the path."""
        while True:
            item = next_item(self._windows)
            stage.moved()
            if isinstance(item, Mark):
                break
            if item is None:
                self._scribe.tidy()
            else:
                self._scribe.write(*item)
        self.ended.set()


def _end(followers: Queue[Item | Mark]) -> None:
    """Tells the next stage that nothing follows; for a stage that could not say so itself."""
    with contextlib.suppress(Full):
        followers.put_nowait(Mark.END)
