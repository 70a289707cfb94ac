"""The running appliance: builds the stages, joins them with bounded queues, starts, watches, stops.

    capture --frames--> segmenter --windows--> encoder --states--> transcriber --> store
                                                                     publisher <--/

Only this module makes threads and queues. It starts at the end of the path and stops at its
beginning, so that what was said is still published.

Over 500 lines because it is every thread, and what joins them.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

from appliance import __version__, system
from appliance.capture import Segmenter, VoiceDetector, open_source
from appliance.config import Reading, SegmenterSettings, Settings, node_name, page_url, store_folder
from appliance.control import SOCKET_NAME, Server
from appliance.daemon.backlog import Backlog, Kind, Lease, Task
from appliance.daemon.broker_trial import BrokerCommands
from appliance.daemon.capture_supervisor import CaptureSupervisor, Opener
from appliance.daemon.controls import ApplianceCommands, Controls
from appliance.daemon.health import Day, Health
from appliance.daemon.log_commands import LogCommands
from appliance.daemon.microphone_commands import MicrophoneCommands
from appliance.daemon.model_install import ModelCommands, ModelInstaller
from appliance.daemon.mute import Mute
from appliance.daemon.partials import Partials
from appliance.daemon.retry import WITHIN_S as RETRY_WITHIN_S, transcribe_apart
from appliance.daemon.setting_commands import ReadConfiguration, SettingCommands
from appliance.daemon.single_instance import claims
from appliance.daemon.transcription import TaskTranscriber, open_transcriber
from appliance.errors import DeviceError, RefusedError, ServerError
from appliance.fleet import Brain, EarTranscriber, Link
from appliance.homeassistant import NAMES_FILE, Callbacks, HomeAssistantClient
from appliance.infer import AnyTranscriber, Transcriber, transcribed_elsewhere
from appliance.mqtt import ANNOUNCED_FILE, Announcement, Publisher, Sources, subscriptions
from appliance.records import (
    ApplianceState,
    ApplianceStats,
    Discarded,
    Frame,
    Listener,
    Transcription,
    Window,
)
from appliance.store import Store, remove_empty, runtime_folder
from appliance.wyoming import Answer, Hooks, WyomingServer, advertise

log = logging.getLogger("roomscribe.daemon")

IDLE_S = 1.0
"""A stage that waits for its queue shows this often that it is not stuck."""
FRAMES_WAITING = 1000
"""30 s of sound: longer than any window takes; beyond it frames are dropped and counted."""
STATES_WAITING = 1
"""One window is encoded ahead while another is decoded; more would only cost memory."""
LISTEN_FIRST_S = 2.0
"""What was left by the process before waits for sound, at most so long."""
STOP_WITHIN_S = 4.0
"""Of the 5 s that systemd is promised."""
DECODE_WITHIN_S = 1.0
"""Of these, for the windows that are with the encoder and the decoder when time is up."""
SERVER_LOOK_S = 0.2
"""Between two looks at whether a speech-to-text server is back."""
JOIN_WITHIN_S = {"wyoming": 1.0, "capture": 1.0, "segmenter": 1.0, "home": 0.5}
"""A stalled audio server must not take the time that transcribing needs."""

Item = TypeVar("Item")


class Sentinel(enum.Enum):
    """A mark in a queue, between the items that came before it and those that come after."""

    LOST = "the source was lost in mid-stream"
    KEPT = "a text of others waits to be stored"
    DECIDED = "it is known how long the utterance waits"
    END = "nothing follows"


class StageQueue(Queue[Item | Sentinel], Generic[Item]):
    """What waits between two stages: at most `maxsize` items, and the marks among them.

    A full queue takes no item (`put_nowait` raises Full). It always takes a mark, and nobody waits
    for that: one that follows its like says nothing new and is left out, so that at most one of
    each kind stands behind the last item.
    """

    def mark(self, mark: Sentinel) -> None:
        """Puts a mark, full or not. Any thread."""
        with self.mutex:
            if not self.queue or self.queue[-1] is not mark:
                self._put(mark)
                self.not_empty.notify()

    def next(self, idle_s: float) -> Item | Sentinel | None:
        """The oldest item or mark; None when nothing came for a while."""
        try:
            return self.get(timeout=idle_s)
        except Empty:
            return None


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


class Pipeline:
    """A running appliance: `start`, wait for `ended`, `stop`; all from one thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        source: Opener = open_source,
        segmenter: Callable[[VoiceDetector, SegmenterSettings, float], Segmenter] = Segmenter,
        transcriber: Callable[[Settings], AnyTranscriber] = open_transcriber,
        store: Callable[
            [Settings, Callable[[str | None], object]], Store
        ] = Store.open_with_fallback,
        publisher: Callable[..., Publisher] = Publisher,
        idle_s: float = IDLE_S,
        retry_within_s: float = RETRY_WITHIN_S,
        read: ReadConfiguration | None = None,
        installer: ModelInstaller | None = None,
        day: Day | None = None,
    ) -> None:
        """Opens store, model and sound source; raises any RoomscribeError, leaving nothing open.

        The keywords are what the stages are made with; tests give others. `read` reads the
        configuration again; `installer` and `day` go on from one appliance to the next.
        """
        self.day = day or Day()
        self.health = Health()
        self.ended = threading.Event()
        """Set when the source came to its end, or a stage failed."""
        self.reload = threading.Event()
        """Set when somebody asks for the configuration to be read again."""
        self.sounding = threading.Event()
        """Set once sound has come from the source."""
        self._settings, self._machine = settings, system.machine()
        self._unannounced = ""
        self._home: HomeAssistantClient | None = None
        self._listeners: tuple[Listener, ...] = ()
        self._idle_s = idle_s
        self._transcribe_apart = functools.partial(
            transcribe_apart, within_s=retry_within_s, transcriber=transcriber
        )
        self._stopping = False
        self._frames: StageQueue[Frame] = StageQueue(FRAMES_WAITING)
        self._states: StageQueue[Task] = StageQueue(STATES_WAITING)
        with contextlib.ExitStack() as opened:
            opened.enter_context(claims(settings))
            tell = functools.partial(self.health.trouble, "log")
            self._store = opened.enter_context(store(settings, tell))
            node = node_name(settings)
            self.mute = Mute(store_folder(settings.store))
            model = opened.enter_context(transcriber(settings))
            model.warm_up()
            self._transcriber = model
            self.health.trouble("arithmetic", model.trouble or None)
            self._encoder = model.encoder
            self._tell_encoder()
            self._segmenter = segmenter(
                VoiceDetector(settings.voice), settings.segmenter, model.bundle.window_s
            )
            self._publisher = (
                publisher(
                    settings.mqtt,
                    node,
                    self._store,
                    Sources(self.state, self.stats),
                    announcement=Announcement(
                        settings.homeassistant,
                        page_url(settings.web),
                        store_folder(settings.store) / ANNOUNCED_FILE,
                        self._wake_home,
                    ),
                    subscriptions=subscriptions(settings.history, node, self._store, self.mute),
                )
                if settings.mqtt.enabled
                else None
            )
            self._controls = self._make_controls(
                model, read or (lambda _: Reading(settings)), installer or ModelInstaller()
            )
            opened.callback(self._controls.close)
            self._home = self._open_home(model, node)
            self._listeners = tuple(filter(None, (self._publisher, self._controls, self._home)))
            self._tasks = TaskTranscriber(
                settings,
                model,
                self._store,
                self.health,
                self._listeners,
                on_decision=functools.partial(self._frames.mark, Sentinel.DECIDED),
                on_speculation=self._end_speculation,
            )
            self._backlog = opened.enter_context(
                Backlog(settings, self.health, self._tasks.discard, in_process=model.in_process)
            )
            # a server is the whole house's, and a window waits for the answer that it owes us
            here = not transcribed_elsewhere(settings)
            submit = self._backlog.submit if here else lambda _: False
            self._partials = Partials(submit, self._tasks.preview, self._listeners)
            self._wyoming = self._house_server(model, node)
            self._fleet = self._open_fleet(model, node, opened)
            lose = functools.partial(self._frames.mark, Sentinel.LOST)
            self._supervisor = CaptureSupervisor(
                settings.capture, self.health, self.mute, self._put, lose, source=source
            )
            self.mute.on_change = self._supervisor.obey
            self._open_control(opened)
            self._opened = opened.pop_all()
        self.health.on_change = self._tell_change
        self._stages: list[Stage] = []

    def start(self) -> None:
        """Starts the stages, the last one of the path first."""
        works = {
            "publisher": self._publish,
            "home": self._ask_home,
            "control": self._serve,
            "transcriber": self._transcribe,
            "encoder": self._encode,
            "segmenter": self._segment,
            "capture": self._capture,
            "wyoming": self._serve_house,
        }
        if not self._publisher:
            del works["publisher"]
        if not self._home:
            del works["home"]
        if not self._controls.server:
            del works["control"]
        if not self._wyoming:
            del works["wyoming"]
        self._stages = [Stage(name, work, self.ended.set) for name, work in works.items()]
        for stage in self._stages:
            stage.start()
        if self._fleet:
            self._fleet.start()

    def stop(self) -> None:
        """Ends the stages, the first one of the path first; what was said is published."""
        deadline_s = time.monotonic() + STOP_WITHIN_S
        self._stopping = True
        self._supervisor.stop()
        if self._fleet:
            self._fleet.close()  # what is under way for others is another brain's then
        if self._wyoming:
            self._wyoming.stop()
        for stage in reversed(self._stages):
            left_s = max(0.2, deadline_s - time.monotonic())
            if stage.name == "publisher" and self._publisher:
                self._publisher.stop(max(0.5, left_s - 0.5))
            elif stage.name == "home" and self._home:
                self._home.stop()
            elif stage.name == "control" and self._controls.server:
                self._controls.server.stop()
            stage.leave(min(left_s, JOIN_WITHIN_S.get(stage.name, left_s)))
            # a stage that was left behind cannot say itself that nothing follows
            if stage.name == "capture":
                self._frames.mark(Sentinel.END)
            elif stage.name == "segmenter":
                self._backlog.complete(deadline_s - time.monotonic() - DECODE_WITHIN_S)
            elif stage.name == "encoder":
                self._states.mark(Sentinel.END)
        self._tasks.flush()
        self._opened.close()

    def check(self) -> None:
        """Raises the error of a stage that failed."""
        for stage in self._stages:
            if stage.error:
                raise stage.error

    def still_s(self) -> tuple[float, str]:
        """Seconds since the stage moved that moved longest ago, and its name.

        A recording may keep its reader waiting (a pipe); a microphone may not. Home Assistant's
        name may keep the resolver, and nothing waits for that.
        """
        may_wait = ("home", "capture" if self._settings.capture.recording else "")
        watched = [stage for stage in self._stages if stage.name not in may_wait]
        return max(((stage.still_s(), stage.name) for stage in watched), default=(0.0, ""))

    def state(self) -> ApplianceState:
        """How the appliance is, for the `state` topic. Any thread; does not wait."""
        microphone = self._supervisor.description
        closed, health = self._supervisor.muted, self.health.snapshot()
        known = self.mute.known
        muted = closed and (True if known and self.mute.on else None)
        return ApplianceState(
            status="muted" if muted else "degraded" if health.troubles or not known else "running",
            reasons=(
                *health.troubles.values(),
                *filter(None, [self.mute.unread, self.mute.unsaved, self._unannounced]),
                *filter(None, [self._home.trouble if self._home else ""]),
            ),
            encoder=health.encoder,
            model=health.model,
            microphone=microphone or "none",
            microphone_online=microphone is not None and "microphone" not in health.troubles,
            queue_depth=len(self._backlog) + self._states.qsize(),
            uptime_s=self.health.uptime_s,
            version=__version__,
            muted=muted,
            machine=self._machine,
            wyoming=self._wyoming.address or None if self._wyoming else "",
            fleet=self._fleet_state(),
            listens=self._supervisor.listens,
        )

    def stats(self) -> ApplianceStats:
        """Counters and readings, for the `stats` topic. Any thread; does not wait."""
        facts = self._encoder.facts()
        return ApplianceStats(
            counters={**self.health.counters(), **facts.get("counters", {})},
            uptime_s=self.health.uptime_s,
            npu_temperature_c=facts.get("temperature_c"),
            soc_temperature_c=system.soc_temperature_c(),
            throttling=system.throttling(),
            round_trips_ms=facts.get("round_trips_ms", ()),
        )

    def submit(self, task: Task) -> bool:
        """Queue a request. Return False if too many wait. Any thread; does not wait."""
        return self._backlog.submit(task)

    def broker_reasons(self) -> tuple[str, ...]:
        """What is wrong between the store and the broker, in plain words."""
        return self._publisher.reasons() if self._publisher else ()

    def _publish(self, stage: Stage) -> bool:
        """Store -> broker, until `stop`."""
        if self._publisher:
            self._publisher.run(stage.moved)
        return self._stopping

    def _make_controls(
        self, model: AnyTranscriber, read: ReadConfiguration, installer: ModelInstaller
    ) -> Controls:
        """Return what the control socket serves."""
        node = node_name(self._settings)
        setting_commands = SettingCommands(self._settings, read, self.reload.set)
        return Controls(
            node,
            store=self._store,
            publisher=self._publisher,
            state=self.state,
            stats=self.stats,
            microphone=MicrophoneCommands(
                self.state, self.submit, model.gates, model.bundle.window_s
            ),
            groups=(
                LogCommands(self._store, node),
                ApplianceCommands(self.mute, self.day),
                setting_commands,
                BrokerCommands(setting_commands),
                ModelCommands(installer),
            ),
        )

    def _open_control(self, opened: contextlib.ExitStack) -> None:
        """Opens the control socket; a line in the log where it cannot be, and all goes on."""
        folder = runtime_folder(self._settings)
        path = folder / SOCKET_NAME
        try:
            for above in (*reversed(folder.parents), folder):
                if not above.exists():
                    above.mkdir(mode=0o700, exist_ok=True)
            opened.callback(remove_empty, folder)
            self._controls.server = opened.enter_context(
                Server(path, self._controls, idle_s=self._idle_s)
            )
        except OSError as error:
            reason = error.strerror or str(error)
            log.warning("%s: no control socket: %s: no page, and `log` asks the disk", path, reason)

    def _serve(self, stage: Stage) -> bool:
        """The control socket, until `stop`."""
        if self._controls.server:
            self._controls.server.run(stage.moved)
        return self._stopping

    def _open_home(self, model: AnyTranscriber, node: str) -> HomeAssistantClient | None:
        """What asks Home Assistant, if that is wanted."""
        state = store_folder(self._settings.store)
        if not self._settings.homeassistant.url:
            with contextlib.suppress(OSError):
                (state / NAMES_FILE).unlink(missing_ok=True)
            return None
        return HomeAssistantClient(
            self._settings,
            node,
            state=state,
            runtime=runtime_folder(self._settings),
            callbacks=Callbacks(
                on_names=model.set_names if isinstance(model, Transcriber) else lambda _: None,
                on_reply=self._publisher.assist if self._publisher else lambda _: None,
                on_change=self._tell_change,
            ),
        )

    def _wake_home(self) -> None:
        """Home Assistant has started, as its birth message says."""
        if self._home:
            self._home.wake()

    def _ask_home(self, _stage: Stage) -> bool:
        """Home Assistant's names, and sentences for its Assist, until `stop`."""
        if self._home:
            self._home.run()
        return self._stopping

    def _house_server(self, model: AnyTranscriber, node: str) -> WyomingServer | None:
        """What transcribes the speech of others, if that is wanted."""
        if not self._settings.wyoming.enabled:
            return None

        async def announce(port: int) -> None:
            await advertise(f"roomscribe-{node}"[:63], port, self._tell_announced)

        def ask(window: Window, answer: Answer, names: tuple[str, ...]) -> Task | None:
            task = Task(window, answer, names=names)
            return task if self.submit(task) else None

        def keep(window: Window, result: Transcription, queue_ms: float) -> None:
            self._tasks.keep(window, result, queue_ms)
            self._states.mark(Sentinel.KEPT)

        return WyomingServer(
            self._settings,
            node,
            Hooks(
                lambda: model.bundle,
                model.gates,
                ask,
                keep=keep if self._settings.wyoming.log else None,
                count=self.health.count,
                report=functools.partial(self.health.trouble, "wyoming"),
                advertise=announce if self._settings.wyoming.announced else None,
                is_room_busy=self._is_room_busy,
            ),
        )

    def _open_fleet(
        self, model: AnyTranscriber, node: str, opened: contextlib.ExitStack
    ) -> Link | None:
        """The connection over which the windows of others come, if they are to. An ear is told when
        not to send."""
        if isinstance(model, EarTranscriber):
            model.ear.muted = lambda: self.mute.on
        if not self._settings.fleet.serves:
            return None

        def ask(window: Window, ahead: bool, answer: Answer) -> Task | None:
            task = Task(window, answer, ask_completeness=ahead)
            return task if self.submit(task) else None

        def tell(trouble: str | None) -> None:
            if self.health.trouble("fleet", trouble) and trouble:
                log.warning("%s", trouble)

        link = Link(self._settings.fleet, node)
        Brain(
            link,
            model=lambda: model.bundle,
            gates=model.gates,
            ask=ask,
            waiting=lambda: len(self._backlog),
            count=self.health.count,
            trouble=tell,
            clustered=len(self._settings.fleet.server) > 1,
        )
        opened.callback(link.close)
        return link

    def _fleet_state(self) -> tuple[str, str] | None:
        """Role in the fleet, and the server that is connected to; None without a role."""
        ear = self._transcriber if isinstance(self._transcriber, EarTranscriber) else None
        link = ear.link if ear else self._fleet
        return (self._settings.fleet.role, link.server) if link else None

    def _serve_house(self, stage: Stage) -> bool:
        """Speech of others -> text, until `stop`."""
        if self._wyoming:
            self._wyoming.run(stage.moved)
        return self._stopping

    def _tell_announced(self, trouble: str) -> None:
        """Why the house is not told of the server, or ""; no trouble of the appliance's."""
        if trouble != self._unannounced:
            self._unannounced = trouble
            log.info("%s", trouble or "the Wyoming server is announced to the network")
            self._tell_change()

    def _tell_change(self) -> None:
        """The state has changed."""
        for listener in self._listeners:
            listener.on_change()

    def _capture(self, stage: Stage) -> bool:
        """Source -> frames, until a recording's end or `stop`; a microphone has no end."""
        self._supervisor.listen(stage.moved)
        asked = self._stopping or bool(self._settings.capture.recording)
        if asked:
            self._frames.mark(Sentinel.END)
        return asked

    def _put(self, frame: Frame) -> None:
        """Queues a frame, or drops and counts it; the sound never waits."""
        self.sounding.set()
        if self._controls.listens:
            self._controls.hear(frame)
        try:
            self._frames.put_nowait(frame)
        except Full:
            self.health.count("frames_dropped")

    def _segment(self, stage: Stage) -> bool:
        """Frames -> windows; tells the publisher when speech begins and ends."""
        speaking = False
        item: Frame | Sentinel | None = None
        while item is not Sentinel.END:
            item = self._frames.next(self._idle_s)
            stage.moved()
            if item is None:
                continue
            found = self._decided(item)
            if self._segmenter.speaking != speaking:
                speaking = not speaking
                for listener in self._listeners:
                    listener.on_speech(speaking)
            for result in found:
                self._backlog.withdraw_speculation(result.id if isinstance(result, Window) else "")
                self._partials.close()
                if isinstance(result, Window):
                    self._backlog.push(result)
                else:
                    self._tasks.discard(result)
            if self._settings.segmenter.speculate:
                self._backlog.speculate(self._segmenter.speculative_window, self._tasks.speculation)
            if isinstance(item, Frame):
                self._partials.follow(self._segmenter, item.end_s)
        self._backlog.complete()
        return True

    def _decided(self, item: Frame | Sentinel) -> list[Window | Discarded]:
        """What a frame decides, what was decided of a guess meanwhile, or the end of the sound."""
        if expected := self._backlog.end_silence():
            self._segmenter.expect(*expected)
        if isinstance(item, Frame):
            found = self._segmenter.push(item)
        elif item is Sentinel.DECIDED:
            found = self._segmenter.close_if_due()
        else:
            return self._segmenter.flush(interrupted=item is Sentinel.LOST)
        if found and self._segmenter.closed_early:
            self.health.count("closed_early")
        return found

    def _encode(self, stage: Stage) -> bool:
        """Windows -> encoder states, one window ahead of the transcriber."""

        def should_continue() -> bool:
            stage.moved()
            return not self._backlog.is_out_of_time

        self._transcriber.should_continue = should_continue
        if self._supervisor.listens:
            self.sounding.wait(LISTEN_FIRST_S)
        while not self._backlog.is_over:
            lease = self._backlog.take_window(self._idle_s)
            stage.moved()
            task = self._encode_window(lease) if lease else self._encode_other()
            self._tell_encoder()
            if task:
                self._pass_on(task, stage)
            if not self._backlog:
                self._encoder.poll(time.monotonic())
                self._tell_encoder()
        self._states.mark(Sentinel.END)
        return True

    def _encode_other(self) -> Task | None:
        """Encode the speculation, else a request; None without one, and for a partial if the
        decoder is busy."""
        task = self._backlog.take_speculation() or self._backlog.take_request(
            room_first=self._is_room_busy()
        )
        if task and task.kind is Kind.PARTIAL and not self._states.empty():
            task.wanted = False
        if not task or not task.wanted:
            return None
        self._tasks.encode(task)
        return task

    def _end_speculation(self, task: Task) -> None:
        """A speculation was transcribed, or its transcription failed."""
        self._partials.publish_eager(task)
        self._backlog.end_speculation(task)

    def _is_room_busy(self) -> bool:
        """True while somebody speaks to the microphone, or what was said is being transcribed."""
        return self._segmenter.speaking or self._backlog.is_busy

    def _tell_encoder(self) -> None:
        """Note what transcribes and its trouble; log the trouble, and its end. The encoder's
        thread."""
        encoder, trouble = self._encoder, self._encoder.trouble
        if self.health.set_encoder(encoder.name, self._transcriber.bundle.name, trouble):
            if trouble:
                log.warning("%s", trouble)
            else:
                log.info("the encoder runs on %s", encoder.name)

    def _encode_window(self, lease: Lease) -> Task | None:
        """Encode a leased window here, or transcribe it apart if it was there when too many
        processes died; None when the lease has ended or the window is left to the next start.

        While nobody can transcribe, it waits here, and the windows behind it in the spool.
        """
        task, should_continue = self._tasks.leased_task(lease), self._transcriber.should_continue
        if not lease.in_process:
            task.encoded = self._transcribe_apart(lease, self._settings, should_continue)
            if not lease.in_process:
                return task if task.encoded else None
        while True:
            self._tasks.encode(task)
            if isinstance(task.encoded, RefusedError):
                log.error("a window of %.1f s: %s", lease.window.duration_s, task.encoded)
                lease.discard("failed")
                return None
            if not isinstance(task.encoded, ServerError):
                return task
            self._tell_encoder()
            if self._stopping or not should_continue():
                lease.leave()
                return None
            time.sleep(SERVER_LOOK_S)

    def _pass_on(self, task: Task, stage: Stage) -> None:
        """Wait for room and queue an encoded task: the backlog drops what is too much, and the
        transcriber is watched by itself, so that waiting for it is no standing still.
        """
        while True:
            try:
                self._states.put(task, timeout=self._idle_s)
                break
            except Full:
                stage.moved()
        stage.moved()

    def _transcribe(self, stage: Stage) -> bool:
        """Encoder states -> stored transcripts, until the end of the path."""
        while (item := self._states.next(self._idle_s)) is not Sentinel.END:
            stage.moved()
            self._store.poll()
            if item is None or isinstance(item, Sentinel):
                self._tasks.tidy()
            else:
                self._tasks.decode(item)
        self.ended.set()
        return True
