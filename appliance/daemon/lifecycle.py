"""The life of the daemon: signals, notifications to systemd, a watchdog fed by progress."""

import gc
import logging
import math
import os
import queue
import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from appliance.config import Settings
from appliance.daemon import systemd
from appliance.daemon.mute_end import format_end
from appliance.daemon.pipeline import Pipeline
from appliance.daemon.systemd import notify
from appliance.errors import ConfigError, DeviceError, RoomscribeError
from appliance.infer import lacking_model, transcribed_elsewhere
from appliance.model import chosen_model
from appliance.records import ApplianceState
from appliance.system import memory_ceiling_mb, resident_mb

log = logging.getLogger("roomscribe.daemon")

STUCK_S, OPENINGS = 25.0, 3
"""A stage without a heartbeat for so long is stuck, if it got a processor in this time. With a big
model on a slow machine, it has OPENINGS times what opening took, which transcribes a window."""
POLL_S, CHECK_S = 0.2, 1.0
"""Between two looks at the signals and the mute's file; between two checks of the stages."""


class Signals:
    """Signals received: SIGTERM and SIGINT stop, SIGHUP reads the configuration again, SIGUSR1
    toggles the mute.

    A handler interrupts the main thread, which may hold the very lock that the handler would wait
    for (threading.Event's, the log's). So it only sets a flag, and wakes the main thread through a
    queue whose `put` is safe there.
    """

    def __init__(self) -> None:
        self.stop = self.reload = self.toggle_mute = False
        self._received: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.stop |= number in (signal.SIGTERM, signal.SIGINT)
        self.reload |= number == signal.SIGHUP
        self.toggle_mute |= number == signal.SIGUSR1
        self._received.put(number)

    def wait_for_stop(self, seconds: float) -> bool:
        """Wait for a signal for so long at most; return True if one has requested a stop."""
        with suppress(queue.Empty):
            number = self._received.get(timeout=seconds)
            if number in (signal.SIGTERM, signal.SIGINT):
                log.info("%s: stopping", signal.Signals(number).name)
        return self.stop


class MissedTime:
    """Remembers when this process wanted to run and could not: others had the processors, or it was
    stopped. A stage without a heartbeat for that long is not stuck.
    """

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        """`tasks` has a folder for each thread (proc(5)); without schedstat in it, only what this
        thread sees counts."""
        self._tasks = tasks
        self._delays_s = self._read()
        self._measured_s = time.monotonic()
        self._missed: deque[tuple[float, float]] = deque(maxlen=1000)

    def measure(self, expected_s: float) -> None:
        """Add the time since the last call, which was to come `expected_s` after it."""
        now_s, delays_s = time.monotonic(), self._read()
        passed_s = now_s - self._measured_s
        waited = (delay_s - self._delays_s.get(task, 0.0) for task, delay_s in delays_s.items())
        missed_s = max((passed_s - expected_s, *waited))
        self._missed.append((now_s, min(max(missed_s, 0.0), passed_s)))
        self._measured_s, self._delays_s = now_s, delays_s

    def within_s(self, last_s: float) -> float:
        """Return how many of the last so many seconds were missed."""
        since_s = time.monotonic() - last_s
        return sum(missed_s for at_s, missed_s in self._missed if at_s >= since_s)

    def _read(self) -> dict[str, float]:
        """Return the seconds that each thread has waited for a processor while it could run: the
        second number of schedstat, in ns (Linux, Documentation/scheduler/sched-stats.rst)."""
        found = {}
        with suppress(OSError):
            for task in self._tasks.iterdir():
                with suppress(OSError, ValueError, IndexError):  # it has just ended
                    text = (task / "schedstat").read_text(encoding="ascii")
                    found[task.name] = int(text.split()[1]) / 1e9
        return found


class Announcer:
    """Notifies systemd: READY once, STATUS whenever it changes, and WATCHDOG while every stage of
    the pipeline makes progress.
    """

    def __init__(
        self, pipeline: Pipeline, begun_s: float, stuck_s: float = STUCK_S, before: int = 0
    ) -> None:
        """`begun_s` is when opening it began, on time.monotonic()'s clock; `before` the number of
        transcripts of earlier pipelines."""
        self._pipeline, self._begun_s, self._before = pipeline, begun_s, before
        self._stuck_s = max(stuck_s, OPENINGS * (time.monotonic() - begun_s))
        self.trouble = ""
        """A further problem, put in front of STATUS."""
        self.ready = False
        """True once READY was sent."""
        self._status = ""
        self._period_s = min(10.0, int(os.environ.get("WATCHDOG_USEC", "0")) / 3e6 or 10.0)
        self._missed = MissedTime()
        self._fed_s = -math.inf
        """When it was last fed; at first it is due at once, since pipelines may follow quickly."""

    def announce(self) -> None:
        """Send STATUS if it has changed. Send READY once sound has come, or once it is known that
        the appliance has to wait for a microphone."""
        state = self._pipeline.state()
        if not self.ready:
            if state.microphone_online and not self._pipeline.sounding.is_set():
                return
            self.ready = True
            log.info(
                "%s with model %s on %s, ready after %.2f s",
                f"listening to {state.microphone}" if state.microphone_online else _doing(state),
                state.model,
                state.encoder,
                time.monotonic() - self._begun_s,
            )
            notify("READY=1")
        text = "; ".join(filter(None, (self.trouble, status(self._pipeline, self._before))))
        if text != self._status:
            self._status = text
            notify(f"STATUS={text}")

    def feed(self) -> None:
        """Feed the watchdog if it is due; raises DeviceError if a stage is stuck."""
        self._missed.measure(CHECK_S)
        idle_s, stage = self._pipeline.idle_s()
        if idle_s - self._missed.within_s(idle_s) > self._stuck_s:
            raise DeviceError(f"the {stage} has been stuck for {idle_s:.0f} s; restarting")
        if time.monotonic() - self._fed_s >= self._period_s:
            self._fed_s = time.monotonic()
            notify("WATCHDOG=1")


Factory = Callable[[Settings], Pipeline]


def run(
    settings: Settings,
    reread: Callable[[], Settings],
    pipeline: Factory,
    stuck_s: float = STUCK_S,
    lacking: Callable[[Settings], str] = lacking_model,
) -> None:
    """Run the appliance until SIGTERM, SIGINT or the end of a recording.

    SIGHUP uses the settings of `reread` from then on, if they are valid. Raises whatever else ended
    it, after finished speech was published. `pipeline` makes a pipeline for settings. A stage
    without a heartbeat for `stuck_s` is stuck. If `lacking` says why no model can be used, and no
    other machine transcribes, it waits for a configuration that changes this.
    """
    process = Process(Signals(), reread, pipeline, stuck_s)
    former = wanted = process.await_transcriber(settings, lacking)
    while former and wanted:
        former, wanted = process.run_once(wanted, former)
        # a pipeline's parts refer to each other: reference counts alone do not free its model
        gc.collect()


class Process:
    """What stays the same from one pipeline to the next: see `run`."""

    def __init__(
        self, signals: Signals, reread: Callable[[], Settings], pipeline: Factory, stuck_s: float
    ) -> None:
        self._signals, self._pipeline, self._stuck_s = signals, pipeline, stuck_s
        self._reread = reread
        self._limits_mb: dict[str, float] = {}
        self.counted: Counter[str] = Counter()
        """Counters of the pipelines that have ended."""

    def limit_mb(self, model: str) -> float:
        """Return the memory limit that was found when a model first ran. A reload must not raise
        it: what each reload leaks would never reach it."""
        limit_mb = self._limits_mb[model] = self._limits_mb.get(model) or memory_ceiling_mb()
        return limit_mb

    def await_transcriber(
        self, settings: Settings, lacking: Callable[[Settings], str]
    ) -> Settings | None:
        """Return settings with which something can transcribe, at once or after a SIGHUP; None if
        it is to stop before. To exit instead would make systemd report a failed installation."""
        while (line := lacking(settings)) and not transcribed_elsewhere(settings):
            log.warning("%s", line)
            notify(f"READY=1\nSTATUS=waiting, nothing is heard; {line}")
            while not self._signals.reload:
                notify("WATCHDOG=1")
                if self._signals.wait_for_stop(POLL_S):
                    return None
            try:
                settings = self._read()
            except ConfigError as error:
                for message in error.messages:
                    log.error("%s", message)
        return settings

    def run_once(self, wanted: Settings, former: Settings) -> tuple[Settings, Settings | None]:
        """Run one pipeline from start to stop: for `wanted`, or for `former` if `wanted` fails.

        Returns the settings that it ran with, and those to run with next, None to end. Only this
        frame refers to the pipeline, so that its model can be freed before the next one is loaded.
        """
        begun_s, chosen = time.monotonic(), chosen_model()
        settings, running = _open(wanted, former, self._pipeline)
        announcer = Announcer(running, begun_s, self._stuck_s, self.counted["transcripts"])
        renewed = None
        running.start()
        try:
            renewed = self._supervise(running, settings, announcer, chosen)
        finally:
            if renewed is None:
                notify("STOPPING=1\nSTATUS=publishing what was heard")
            running.stop()
            self.counted.update(running.health.counters())
        # requested after the configuration was read, and already acknowledged
        self._signals.reload |= running.reload.is_set()
        running.check()
        return settings, renewed

    def _supervise(
        self, pipeline: Pipeline, settings: Settings, announcer: Announcer, chosen: str
    ) -> Settings | None:
        """Feed the watchdog while every stage makes progress, until this pipeline is to end.

        `chosen` is the model that was chosen when it began. Return the settings to go on with, None
        to end. Raises DeviceError if a stage is stuck, or if the process uses too much memory.
        """
        signals, ceiling_mb, check_s = self._signals, self.limit_mb(pipeline.state().model), 0.0
        while not signals.wait_for_stop(POLL_S if announcer.ready else POLL_S / 4):
            if pipeline.ended.is_set():
                return None
            pipeline.mute.poll()
            if signals.toggle_mute:
                signals.toggle_mute = False
                pipeline.mute.toggle("SIGUSR1")
            if signals.reload or pipeline.reload.is_set():
                pipeline.reload.clear()
                if renewed := self._read_again(settings, announcer, chosen):
                    return renewed
            if announcer.ready and time.monotonic() < check_s:
                continue
            check_s = time.monotonic() + CHECK_S
            announcer.feed()
            if (memory_mb := resident_mb()) > ceiling_mb:
                raise DeviceError(
                    f"memory: expected at most {ceiling_mb:.0f} MB, found {memory_mb:.0f} MB; "
                    "restarting, what waits to be transcribed is kept"
                )
            announcer.announce()
        return None

    def _read(self) -> Settings:
        """Read the configuration again, as requested. Raises ConfigError."""
        self._signals.reload = False
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
        return self._reread()

    def _read_again(self, settings: Settings, announcer: Announcer, chosen: str) -> Settings | None:
        """Return the configuration as it is now; None if it is invalid, or if it is the same as
        before and so is the chosen model."""
        announcer.trouble = ""
        try:
            renewed = self._read()
            if phrases := renewed.phrases.own_file:
                from appliance.infer import check_files

                check_files(renewed)  # one that is wrong now would end the old configuration, too
        except ConfigError as error:
            *others, last = error.messages
            for message in others:
                log.error("%s", message)
            log.error("%s; going on with the configuration that was read before", last)
            announcer.trouble = "the configuration on the disk is wrong, see the journal"
        else:
            if renewed != settings:
                why = "the configuration has changed: starting again with it"
            elif not renewed.model.bundle and chosen_model() != chosen:
                why = "another model was chosen: starting again with it"
            else:
                why = phrases and f"starting again with the sentences of {phrases}"
            log.info("%s", why or "the configuration is the one in use")
            if why:
                return renewed
        notify("READY=1")
        return None


def status(pipeline: Pipeline, before: int = 0) -> str:
    """Return in one line what the appliance does, and its problems: `listening, 128 transcripts,
    CPU` (or NPU, or server). `before`: transcripts of earlier pipelines."""
    state = pipeline.state()
    transcripts = before + pipeline.health.counters().get("transcripts", 0)
    unit = {"cpu": "CPU", "fleet": "fleet"}.get(state.encoder, "NPU")
    troubles = (*state.reasons, *pipeline.broker_reasons())
    return "; ".join((f"{_doing(state)}, {transcripts} transcripts, {unit}", *troubles))


def _doing(state: ApplianceState) -> str:
    if state.muted:
        return f"muted{format_end(state.muted_until, datetime.now(UTC))}"
    if state.muted is None:
        return "not listening"
    if not state.listens:
        return "serving, without a microphone"
    return "listening" if state.microphone_online else "waiting for a microphone"


def _open(wanted: Settings, former: Settings, pipeline: Factory) -> tuple[Settings, Pipeline]:
    """Return the settings used, and a pipeline for them: for `wanted`, or for `former` if `wanted`
    differs and cannot be run. Raises RoomscribeError."""
    if wanted is not former:  # at the start the command line decides what is logged
        systemd.set_up(wanted.journal)
    try:
        return wanted, pipeline(wanted)
    except RoomscribeError as error:
        if wanted is former:
            raise
        log.error("%s; going on with the configuration that was read before", error)
    gc.collect()
    systemd.set_up(former.journal)
    return former, pipeline(former)
