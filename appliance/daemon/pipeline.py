"""The corridor: builds the stages, joins them with bounded queues, starts, supervises, stops.

    capture --frames--> segmenter --windows--> encoder --states--> transcriber --> store
                                                                     publisher <--/

Only this module and `stage` say Thread and Queue. Started from the end of the path, stopped from
its beginning, so that what was heard is still published.

One thread of the pipeline, and how it waits for its queue.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, Full, Queue
from typing import TypeVar

from appliance import __version__, system
from appliance.capture import Segmenter, VoiceDetector
from appliance.config import Settings, node_name
from appliance.daemon import health as vitals
from appliance.daemon.backlog import Backlog
from appliance.daemon.health import Health
from appliance.daemon.listening import CaptureSupervisor
from appliance.daemon.mute import Mute
from appliance.daemon.retry import Retry
from appliance.daemon.scribe import EncodedWindow, Scribe
from appliance.daemon.spool import Spool
from appliance.errors import DeviceError
from appliance.infer import open_transcriber
from appliance.mqtt import Publisher, subscriptions
from appliance.records import ApplianceState, ApplianceStats, Frame, Window
from appliance.store import FILE_NAME, LastingDatabase, MemoryFolder, Store, store_folder

log = logging.getLogger("roomscribe")

IDLE_S = 1.0

Item = TypeVar("Item")


class Sentinel(enum.Enum):
    """What a queue carries besides sound."""

    LOST = "the source was lost in mid-stream"
    END = "nothing follows"


class Stage(threading.Thread):
    """A named thread that shows that it moves and keeps its error for the main thread."""

    def __init__(self, name: str, work: Callable[[Stage], bool], on_error: Callable[[], None]):
        """`work` is true when it was asked to end, or has nothing left to do."""
        super().__init__(name=name, daemon=True)
        self.error: Exception | None = None
        self._moved_s = time.monotonic()
        self._work, self._on_error = work, on_error

    def run(self) -> None:
        """Thread's body. An end that nobody asked for is an error, too."""
        try:
            if not self._work(self):
                self.error = DeviceError(f"the {self.name} ended by itself; restarting")
        except Exception as error:
            self.error = error
        except BaseException as error:
            kind = type(error).__name__
            self.error = DeviceError(f"the {self.name} was ended by {kind}: {error}; restarting")
        if self.error:
            self._on_error()

    def leave(self, within_s: float) -> None:
        """Waits for its end, and goes on without it when it takes longer."""
        self.join(within_s)
        if self.is_alive():
            log.error("the %s is still busy and is left behind", self.name)

    def moved(self) -> None:
        """Says that the stage made progress; the watchdog is fed by it."""
        self._moved_s = time.monotonic()

    def still_s(self) -> float:
        """Seconds since the stage last moved; 0 when it has ended."""
        return time.monotonic() - self._moved_s if self.is_alive() else 0.0


def slowest(stages: Iterable[Stage]) -> tuple[float, str]:
    """Seconds since the one that moved longest ago did, and its name."""
    return max(((stage.still_s(), stage.name) for stage in stages), default=(0.0, ""))


def next_item(queue: Queue[Item]) -> Item | None:
    """The queue's next item; None when nothing came for a while."""
    try:
        return queue.get(timeout=IDLE_S)
    except Empty:
        return None


def put(queue: Queue[Item], item: Item, stage: Stage) -> None:
    """Waits for room and queues the item. The next stage is watched by itself: waiting for it is
    no standing still.
    """
    while True:
        try:
            queue.put(item, timeout=IDLE_S)
            break
        except Full:
            stage.moved()
    stage.moved()


def end(followers: Queue[Item | Sentinel]) -> None:
    """Tells the next stage that nothing follows; for a stage that could not say so itself."""
    with contextlib.suppress(Full):
        followers.put_nowait(Sentinel.END)


def lasting_log(settings: Settings, health: Health) -> LastingDatabase:
    """The daemon's log, in memory while its disk refuses. Raises PublishError."""
    tell = functools.partial(health.trouble, "log")
    return LastingDatabase(store_folder(settings.store) / FILE_NAME, MemoryFolder(settings), tell)


FRAMES_WAITING = 1000
"""30 s of sound: longer than any window takes; beyond it frames are dropped and counted."""
LISTEN_FIRST_S = 2.0
"""What was left by the process before waits for sound, at most so long."""
STATES_WAITING = 1
"""One window is encoded ahead while another is decoded; more would only cost memory."""
STOP_WITHIN_S = 4.0
"""Of the 5 s that systemd is promised."""
DECODE_WITHIN_S = 1.0
"""Of these, for the windows that are with the encoder and the decoder when time is up."""
JOIN_WITHIN_S = {"capture": 1.0, "segmenter": 1.0}
"""A stalled audio server must not take the time that transcribing needs."""


class Pipeline:
    """A running appliance: `start`, wait for `ended`, `stop`; all from one thread."""

    def __init__(self, settings: Settings) -> None:
        """Opens store, model and sound source; raises any RoomscribeError, leaving nothing open."""
        self.health = Health()
        self.ended = threading.Event()
        """Set when the source came to its end, or a stage failed."""
        self.sounding = threading.Event()
        """Set once sound has come from the source."""
        self._settings, self._machine = settings, system.machine()
        self._stopping = False
        self._frames: Queue[Frame | Sentinel] = Queue(FRAMES_WAITING)
        self._heard: Queue[EncodedWindow | Sentinel] = Queue(STATES_WAITING)
        with contextlib.ExitStack() as opened:
            self._log = lasting_log(settings, self.health)
            store = opened.enter_context(Store(self._log, settings.store))
            node = node_name(settings)
            self.mute = Mute(store_folder(settings.store))
            transcriber = opened.enter_context(open_transcriber(settings))
            transcriber.warm_up()
            self.health.trouble("arithmetic", transcriber.trouble or None)
            self._segmenter = Segmenter(
                VoiceDetector(settings.voice), settings.segmenter, transcriber.bundle.window_s
            )
            self._publisher = (
                Publisher(
                    settings.mqtt,
                    node,
                    store,
                    self.state,
                    home_assistant=settings.homeassistant,
                    stats_source=self.stats,
                    subscriptions=subscriptions(settings.history, node, store, self.mute),
                )
                if settings.mqtt.enabled
                else None
            )
            listeners = (self._publisher,) if self._publisher else ()
            self._encoder = transcriber.encoder
            spool = opened.enter_context(Spool.open(settings, self.health))
            self._scribe = Scribe(settings, transcriber, store, self.health, listeners, spool=spool)
            self._backlog = Backlog(spool, settings.spool, self.health, self._scribe.discard)
            self._second_try = Retry(settings, spool, self._backlog, self._scribe)
            lose = functools.partial(self._frames.put, Sentinel.LOST)
            self._ears = CaptureSupervisor(
                settings.capture, self.health, self.mute, self._put, lose
            )
            self.mute.on_change = self._ears.obey
            self._opened = opened.pop_all()
        if self._publisher:
            self.health.on_change = self._publisher.notify
        self._stages: list[Stage] = []

    def start(self) -> None:
        """Starts the stages, the last one of the path first."""
        works = {
            "publisher": self._publish,
            "transcriber": self._transcribe,
            "encoder": self._encode,
            "segmenter": self._segment,
            "capture": self._capture,
        }
        if not self._publisher:
            del works["publisher"]
        self._stages = [Stage(name, work, self.ended.set) for name, work in works.items()]
        for stage in self._stages:
            stage.start()

    def stop(self) -> None:
        """Ends the stages, the first one of the path first; what was heard is published."""
        deadline_s = time.monotonic() + STOP_WITHIN_S
        self._stopping = True
        self._ears.stop()
        for stage in reversed(self._stages):
            left_s = max(0.2, deadline_s - time.monotonic())
            if stage.name == "publisher" and self._publisher:
                self._publisher.stop(max(0.5, left_s - 0.5))
            stage.leave(min(left_s, JOIN_WITHIN_S.get(stage.name, left_s)))
            if stage.name == "capture":
                end(self._frames)
            elif stage.name == "segmenter":
                self._backlog.complete(deadline_s - time.monotonic() - DECODE_WITHIN_S)
            elif stage.name == "encoder":
                end(self._heard)
        self._scribe.take_leave(self._backlog.lost())
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
        return slowest(stage for stage in self._stages if stage.name != may_wait)

    def state(self) -> ApplianceState:
        """How the appliance is, for the `state` topic. Any thread; does not wait."""
        microphone = self._ears.description
        muted, troubles = self._ears.muted, self.health.troubles()
        return ApplianceState(
            status="muted" if muted else "degraded" if troubles else "running",
            reasons=(*troubles.values(), *filter(None, [self.mute.unsaved])),
            encoder=self._scribe.encoder,
            model=self._scribe.model,
            microphone=microphone or "none",
            microphone_online=microphone is not None and "microphone" not in troubles,
            queue_depth=len(self._backlog) + self._heard.qsize(),
            uptime_s=self.health.uptime_s,
            version=__version__,
            muted=muted,
            machine=self._machine,
        )

    def stats(self) -> ApplianceStats:
        """Counters and readings, for the `stats` topic. Any thread; does not wait."""
        return vitals.stats(self.health, self._encoder.facts().get("temperature_c"))

    def broker_reasons(self) -> tuple[str, ...]:
        """What is wrong between the store and the broker, in plain words."""
        return self._publisher.reasons() if self._publisher else ()

    def _publish(self, stage: Stage) -> bool:
        """Store -> broker, until `stop`."""
        if self._publisher:
            self._publisher.run(stage.moved)
        return self._stopping

    def _capture(self, stage: Stage) -> bool:
        """Source -> frames, until a recording's end or `stop`; a microphone has no end."""
        self._ears.listen(stage.moved)
        asked = self._stopping or bool(self._settings.capture.recording)
        if asked:
            self._frames.put(Sentinel.END)
        return asked

    def _put(self, frame: Frame) -> None:
        """Queues a frame, or drops and counts it; the sound never waits."""
        self.sounding.set()
        try:
            self._frames.put_nowait(frame)
        except Full:
            self.health.count("frames_dropped")

    def _segment(self, stage: Stage) -> bool:
        """Frames -> windows; tells the publisher when speech begins and ends."""
        speaking = False
        item: Frame | Sentinel | None = None
        while item is not Sentinel.END:
            item = next_item(self._frames)
            stage.moved()
            if item is None:
                continue
            if isinstance(item, Frame):
                found = self._segmenter.push(item)
            else:
                found = self._segmenter.flush(interrupted=item is Sentinel.LOST)
            if self._segmenter.speaking != speaking:
                speaking = not speaking
                if self._publisher:
                    self._publisher.speech(speaking)
            for result in found:
                if isinstance(result, Window):
                    self._backlog.push(result)
                else:
                    self._scribe.discard(result)
        self._backlog.complete()
        return True

    def _encode(self, stage: Stage) -> bool:
        """Windows -> encoder states, one window ahead of the transcriber."""
        self.sounding.wait(LISTEN_FIRST_S)
        while not self._backlog.over:
            taken = self._backlog.next(IDLE_S)
            stage.moved()
            if taken and (heard := self._second_try.encode(taken, stage.moved)):
                put(self._heard, heard, stage)
            if not self._backlog:
                self._encoder.look_after(time.monotonic())
                self.health.trouble("encoder", self._encoder.trouble)
        put(self._heard, Sentinel.END, stage)
        return True

    def _transcribe(self, stage: Stage) -> bool:
        """Encoder states -> stored transcripts, until the end of the path."""
        while not isinstance(item := next_item(self._heard), Sentinel):
            stage.moved()
            self._log.look_after()
            if item is None:
                self._scribe.tidy()
            else:
                self._scribe.write(item)
        self.ended.set()
        return True
