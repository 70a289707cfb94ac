"""The running appliance: starts the stages, watches them, stops them.

    capture --frames--> segmenter --windows--> encoder --states--> transcriber --> store
                                                                     publisher <--/

It starts the threads of this path from its end, and stops them from its beginning, so that finished
speech is still published.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Full

from appliance.daemon.backlog import Lease, Work
from appliance.daemon.capture_supervisor import CaptureSupervisor
from appliance.daemon.controls import Controls
from appliance.daemon.core import Core
from appliance.daemon.health import report_backend
from appliance.daemon.partials import Partials
from appliance.daemon.report import Reporter
from appliance.daemon.stages import Sentinel, Stage
from appliance.daemon.transcription import WorkTranscriber
from appliance.errors import ServerError
from appliance.fleet import FleetWorker
from appliance.homeassistant import HomeAssistantClient
from appliance.mqtt import Publisher
from appliance.records import ApplianceState, Discarded, Frame, Window
from appliance.speaker import Loudspeaker
from appliance.wyoming import WyomingServer

log = logging.getLogger("roomscribe.daemon")

SOUND_FIRST_S = 2.0
"""Windows that the process before left wait this long for the microphone to start."""
STOP_WITHIN_S = 4.0
"""Of the 5 s that systemd is promised."""
DECODE_WITHIN_S = 1.0
"""Of these, for the windows that are with the encoder and the decoder when time is up."""
SERVER_POLL_S = 0.2
"""Between two checks whether a worker is back."""
LEAST_JOIN_S = 0.2
"""Each stage has this long to end, even if the time is up."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a pipeline runs; None for a part that is not configured."""

    core: Core
    works: WorkTranscriber
    partials: Partials
    supervisor: CaptureSupervisor
    report: Reporter
    controls: Controls | None
    publisher: Publisher | None
    home_assistant: HomeAssistantClient | None
    wyoming: WyomingServer | None
    fleet: FleetWorker | None
    speaker: Loudspeaker | None
    reload: threading.Event
    """Set when the configuration is to be read again."""
    close: Callable[[], None]
    """Closes all parts."""


class Pipeline:
    """A running appliance: `start`, wait for `ended`, `stop`; all from one thread."""

    def __init__(self, parts: Parts) -> None:
        """`parts` belong to the pipeline from now on: `stop` closes them."""
        self.parts, self.core = parts, parts.core
        self.health, self.mute = parts.core.health, parts.core.mute
        self.sounding, self.reload = parts.supervisor.sounding, parts.reload
        self.ended = threading.Event()
        """Set when the source came to its end, or a stage failed."""
        self._stopping = False
        self._stages: list[Stage] = []

    def start(self) -> None:
        """Start the stages, the last one of the path first."""
        self._stages = list(self._make_stages())
        for stage in self._stages:
            stage.start()
        if self.parts.fleet:
            self.parts.fleet.start()

    def stop(self) -> None:
        """Stop the stages, the first one of the path first; finished speech is published."""
        deadline_s = time.monotonic() + STOP_WITHIN_S
        self._stopping = True
        self.parts.supervisor.stop()
        if self.parts.fleet:
            self.parts.fleet.close()  # its windows are another worker's then
        if self.parts.wyoming:
            self.parts.wyoming.stop()
        for stage in reversed(self._stages):
            left_s = max(LEAST_JOIN_S, deadline_s - time.monotonic())
            stage.tell_to_stop(left_s)
            stage.leave(min(left_s, stage.timeout_s))
        try:
            self.core.transcripts.flush()
        finally:
            self.parts.close()

    def _make_stages(self) -> Iterator[Stage]:
        """Yield the stages in the order in which they start.

        A stalled audio server must not take the time that transcribing needs, so some have less
        time to end. A stage that was left behind cannot mark the end of its queue itself, so the
        next one's `stop` does that.
        """
        parts, make = self.parts, functools.partial(Stage, on_error=self.ended.set)
        if publisher := parts.publisher:
            run = self._until_stop(publisher.run)
            yield make("publisher", run, stop=lambda left_s: publisher.stop(max(0.5, left_s - 0.5)))
        if home := parts.home_assistant:
            run = self._until_stop(lambda _: home.run())
            yield make("home", run, stop=lambda _: home.stop(), timeout_s=0.5)
        if controls := parts.controls:
            run = self._until_stop(functools.partial(controls.server.run, controls))
            yield make("control", run, stop=lambda _: controls.server.stop())
        end_states = functools.partial(self.core.states.mark, Sentinel.END)
        yield make("transcriber", self._transcribe, stop=lambda _: end_states())
        yield make(
            "encoder",
            self._encode,
            stop=lambda left_s: self.core.backlog.complete(left_s - DECODE_WITHIN_S),
        )
        end_frames = functools.partial(self.core.frames.mark, Sentinel.END)
        yield make("segmenter", self._segment, stop=lambda _: end_frames(), timeout_s=1.0)
        yield make("capture", self._capture, timeout_s=1.0)
        if speaker := parts.speaker:
            run = self._until_stop(speaker.run)
            yield make("loudspeaker", run, stop=lambda _: speaker.stop(), timeout_s=0.5)
        if wyoming := parts.wyoming:
            yield make("wyoming", self._until_stop(wyoming.run), timeout_s=1.0)

    def _until_stop(self, run: Callable[[Callable[[], None]], object]) -> Callable[[Stage], bool]:
        """Return the work of a stage that runs until `stop`; `run` gets its heartbeat."""

        def work(stage: Stage) -> bool:
            run(stage.heartbeat)
            return self._stopping

        return work

    def check(self) -> None:
        """Raise the error of a stage that failed."""
        for stage in self._stages:
            if stage.error:
                raise stage.error

    def idle_s(self) -> tuple[float, str]:
        """Return the seconds since the oldest heartbeat, and the name of its stage.

        A recording may keep its reader waiting (a pipe); a microphone may not. Home Assistant's
        name may keep the resolver, and nothing waits for that. Nor is a stage stuck that waits for
        the log while that is rewritten.
        """
        if self.core.store.is_rewriting:
            return 0.0, ""
        may_wait = ("home", "capture" if self.core.settings.capture.recording else "")
        watched = [stage for stage in self._stages if stage.name not in may_wait]
        return max(((stage.idle_s(), stage.name) for stage in watched), default=(0.0, ""))

    def state(self) -> ApplianceState:
        """Return the appliance's state. Any thread; does not wait."""
        return self.parts.report.state()

    def broker_reasons(self) -> tuple[str, ...]:
        """Return what is wrong between the store and the broker, in plain words."""
        return self.parts.publisher.reasons() if self.parts.publisher else ()

    def _capture(self, stage: Stage) -> bool:
        """Source -> frames, until a recording's end or `stop`; a microphone has no end."""
        self.parts.supervisor.listen(stage.heartbeat)
        is_end = self._stopping or bool(self.core.settings.capture.recording)
        if is_end:
            self.core.frames.mark(Sentinel.END)
        return is_end

    def _segment(self, stage: Stage) -> bool:
        """Frames -> windows; reports when speech begins and ends."""
        core, partials, bus = self.core, self.parts.partials, self.core.bus
        segmenter, backlog = core.segmenter, core.backlog
        speaking, uttered = False, ""
        item: Frame | Sentinel | None = None
        while item is not Sentinel.END:
            item = core.frames.next(core.idle_s)
            stage.heartbeat()
            if item is None:
                continue
            results = self._push(item)
            self.parts.supervisor.attend(alert=segmenter.alert)
            if segmenter.speaking != speaking:
                speaking = not speaking
                bus.on_speech(speaking)
            if speaking and segmenter.utterance_id != uttered:
                uttered = segmenter.utterance_id
                bus.on_begin(uttered)
            for result in results:
                backlog.withdraw_speculation(result.id if isinstance(result, Window) else "")
                partials.close()
                if isinstance(result, Window):
                    bus.on_window(result)  # its text may be known as soon as it is in the backlog
                    backlog.push(result)
                else:
                    bus.on_discarded(result)
            if core.settings.segmenter.speculate:
                backlog.speculate(segmenter.speculative_window, self.parts.works.speculation)
            if isinstance(item, Frame):
                partials.follow(segmenter, item.end_s)
        backlog.complete()
        return True

    def _push(self, item: Frame | Sentinel) -> list[Window | Discarded]:
        """Return what the segmenter decides with a frame, with a speculation's silence that is
        known now, or at the end of the sound."""
        segmenter = self.core.segmenter
        if silence := self.core.backlog.end_silence():
            segmenter.end_after(*silence)
        if isinstance(item, Frame):
            results = segmenter.push(item)
        elif item is Sentinel.DECIDED:
            results = segmenter.close_if_due()
        else:
            return segmenter.flush(interrupted=item is Sentinel.LOST)
        if results and segmenter.closed_early:
            self.health.count("closed_early")
        return results

    def _encode(self, stage: Stage) -> bool:
        """Windows -> encoder states, one window ahead of the transcriber."""
        core, backlog = self.core, self.core.backlog

        def should_continue() -> bool:
            stage.heartbeat()
            return not backlog.is_out_of_time

        if self.parts.supervisor.listens:
            self.sounding.wait(SOUND_FIRST_S)
        while not backlog.is_over:
            lease = backlog.take_window(core.idle_s)
            stage.heartbeat()
            work = (
                self._encode_window(lease, should_continue)
                if lease
                else self._encode_other(should_continue)
            )
            report_backend(self.health, core.transcriber)
            if work:
                self._pass_on(work, stage)
            if not backlog:
                core.transcriber.backend.poll(time.monotonic())
                report_backend(self.health, core.transcriber)
        core.states.mark(Sentinel.END)
        return True

    def _encode_window(self, lease: Lease, should_continue: Callable[[], bool]) -> Work | None:
        """Encode a leased window; None when the lease has ended or the window is left to the next
        start.

        While nobody can transcribe, it waits here, and the windows behind it in the spool.
        """
        work = self.parts.works.leased(lease)
        while True:
            self.parts.works.encode(work, should_continue)
            if not isinstance(work.encoded, ServerError):
                return work
            report_backend(self.health, self.core.transcriber)
            if self._stopping or not should_continue():
                lease.keep_for_next_start()
                return None
            time.sleep(SERVER_POLL_S)

    def _encode_other(self, should_continue: Callable[[], bool] = lambda: True) -> Work | None:
        """Encode the speculation, else a request; None without one, if encoding failed, and for a
        partial if the decoder is busy."""
        works, backlog = self.parts.works, self.core.backlog
        work = backlog.take_speculation() or backlog.take_request()
        if work and work.request.partial and not self.core.states.empty():
            work.cancel()
        if not work or not work.wanted:
            return None
        works.encode(work, should_continue)
        if isinstance(work.encoded, Exception):
            # At once: a request need not wait for the decoder, and once a speculation has come
            # true, marking its window as survived would hide the death of this process.
            works.deliver(work, work.encoded)
            return None
        return work

    def _pass_on(self, work: Work, stage: Stage) -> None:
        """Queue encoded work, and wait for room. That is no lack of progress: the backlog drops
        what is too much, and the transcriber is watched by itself."""
        while True:
            try:
                self.core.states.put(work, timeout=self.core.idle_s)
                break
            except Full:
                stage.heartbeat()
        stage.heartbeat()

    def _transcribe(self, stage: Stage) -> bool:
        """Encoder states -> stored transcripts, until the end of the path."""
        while (item := self.core.states.next(self.core.idle_s)) is not Sentinel.END:
            stage.heartbeat()
            self.core.store.poll()
            if item is None or isinstance(item, Sentinel):
                self.core.bus.on_idle()
            else:
                self.parts.works.decode(item)
        self.ended.set()
        return True
