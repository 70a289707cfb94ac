"""Builds the parts of the appliance and connects them, without starting anything."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import Full
from typing import Any

from appliance.capture import Segmenter, VoiceDetector, open_source
from appliance.config import (
    WYOMING_SOCKET,
    Reading,
    SegmenterSettings,
    Settings,
    node_name,
    page_url,
    room_name,
    store_folder,
)
from appliance.control import SOCKET_NAME, ControlError, ControlServer
from appliance.daemon.backlog import Backlog, Task
from appliance.daemon.broker_trial import BrokerCommands
from appliance.daemon.capture_supervisor import CaptureSupervisor, Opener
from appliance.daemon.controls import ApplianceCommands, Controls
from appliance.daemon.correction_commands import CorrectionCommands
from appliance.daemon.health import Day, Health
from appliance.daemon.log_commands import LogCommands
from appliance.daemon.microphone_commands import MicrophoneCommands
from appliance.daemon.model_install import ModelCommands, ModelInstaller
from appliance.daemon.mute import Mute
from appliance.daemon.partials import Partials
from appliance.daemon.parts import Parts, report_backend
from appliance.daemon.phrase_commands import Expectations, PhraseCommands
from appliance.daemon.playback import Playback
from appliance.daemon.retry import WITHIN_S as RETRY_WITHIN_S, transcribe_apart
from appliance.daemon.setting_commands import ReadConfiguration, SettingCommands
from appliance.daemon.single_instance import lock_instance
from appliance.daemon.stages import Sentinel, StageQueue
from appliance.daemon.transcription import TaskTranscriber, open_transcriber
from appliance.errors import StoreError
from appliance.fleet import FleetWorker, Link, OwnRoom, SatelliteTranscriber
from appliance.homeassistant import NAMES_FILE, Callbacks, HomeAssistantClient
from appliance.house import House
from appliance.infer import AnyTranscriber, Transcriber, transcribed_elsewhere
from appliance.mqtt import (
    Announcement,
    OutgoingMessage,
    Publisher,
    Sources,
    subscriptions,
)
from appliance.records import (
    ApplianceState,
    ApplianceStats,
    Correction,
    Frame,
    HeardIn,
    Listener,
    Transcription,
    Window,
)
from appliance.store import Store, remove_empty, runtime_folder
from appliance.wyoming import Answer, Hooks, WyomingServer, advertise

log = logging.getLogger("roomscribe.daemon")

IDLE_S = 1.0
"""A stage that waits for its queue reports progress this often."""
FRAMES_WAITING = 1000
"""30 s of sound: longer than any window takes. Frames beyond it are dropped and counted."""
STATES_WAITING = 1
"""One window is encoded ahead while another is decoded; more would only cost memory."""


@dataclass(frozen=True, slots=True)
class Factories:
    """What the parts are made with. Tests give others."""

    source: Opener = open_source
    segmenter: Callable[[VoiceDetector, SegmenterSettings, float], Segmenter] = Segmenter
    transcriber: Callable[[Settings], AnyTranscriber] = open_transcriber
    store: Callable[[Settings, Callable[[str | None], object]], Store] = Store.open_with_fallback
    publisher: Callable[..., Publisher] = Publisher
    idle_s: float = IDLE_S
    retry_within_s: float = RETRY_WITHIN_S


def build(
    settings: Settings,
    factories: Factories | None = None,
    *,
    read: ReadConfiguration | None = None,
    installer: ModelInstaller | None = None,
    day: Day | None = None,
) -> Parts:
    """Open store, model and sound source, and connect all parts.

    `read` reads the configuration again; `installer` and `day` outlive the appliance. Raises any
    RoomscribeError, leaving nothing open.
    """
    with contextlib.ExitStack() as opened:
        assembly = _Assembly(settings, factories or Factories(), opened)
        return assembly.build(
            read or (lambda _: Reading(settings)), installer or ModelInstaller(), day or Day()
        )


@dataclass(eq=False)
class _Assembly:
    """The parts while they are being built; its methods connect them."""

    settings: Settings
    factories: Factories
    opened: contextlib.ExitStack
    health: Health = field(default_factory=Health)
    frames: StageQueue[Frame] = field(default_factory=lambda: StageQueue(FRAMES_WAITING))
    states: StageQueue[Task] = field(default_factory=lambda: StageQueue(STATES_WAITING))
    sounding: threading.Event = field(default_factory=threading.Event)
    reload: threading.Event = field(default_factory=threading.Event)
    notices: dict[str, str] = field(default_factory=lambda: {"announcement": ""})
    expectations: Expectations = field(default_factory=Expectations)
    listeners: tuple[Listener, ...] = ()

    def build(self, read: ReadConfiguration, installer: ModelInstaller, day: Day) -> Parts:
        """Build the parts in an order in which each finds those that it needs at once."""
        settings, factories, opened = self.settings, self.factories, self.opened
        opened.enter_context(lock_instance(settings))
        self.node, self.mute, self.day = (
            node_name(settings),
            Mute(store_folder(settings.store)),
            day,
        )
        report = functools.partial(self.health.trouble, "log")
        self.store = opened.enter_context(factories.store(settings, report))
        self.model = opened.enter_context(factories.transcriber(settings))
        self.model.warm_up()
        report_backend(self.health, self.model)
        self.segmenter = factories.segmenter(
            VoiceDetector(settings.voice), settings.segmenter, self.model.bundle.window_s
        )
        self.house = self.make_house() if settings.mqtt.enabled else None
        self.publisher = self.make_publisher() if settings.mqtt.enabled else None
        self.controls = self.make_controls(read, installer)
        opened.callback(self.controls.close)
        self.home = self.make_home()
        # the house hands sentences to Home Assistant once it is decided which room acts
        acting = self.house or self.home
        self.listeners = tuple(filter(None, (self.publisher, self.controls, acting)))
        if self.house:
            self.house.assistant = self.home
        self.make_stages()
        sends = settings.wyoming.enabled or settings.web.api
        self.wyoming = self.make_wyoming() if sends else None
        self.fleet = self.make_fleet() if settings.fleet.role == "worker" else None
        if isinstance(self.model, SatelliteTranscriber):
            self.model.satellite.muted = lambda: self.mute.on
        lose = functools.partial(self.frames.mark, Sentinel.LOST)
        self.supervisor = CaptureSupervisor(
            settings.capture, self.health, self.mute, self.put, lose, source=factories.source
        )
        self.mute.on_change = self.apply_mute
        self.open_control()
        self.health.on_change = self.report_change
        self.parts = self.finish()
        return self.parts

    def apply_mute(self) -> None:
        """Close or open the microphone, and discard what could be played."""
        self.playback.discard()
        self.supervisor.apply_mute()

    def finish(self) -> Parts:
        """Return the parts, which then have to be closed."""
        apart = functools.partial(
            transcribe_apart,
            settings=self.settings,
            within_s=self.factories.retry_within_s,
            transcriber=self.factories.transcriber,
        )
        return Parts(
            settings=self.settings,
            idle_s=self.factories.idle_s,
            health=self.health,
            mute=self.mute,
            day=self.day,
            store=self.store,
            transcriber=self.model,
            supervisor=self.supervisor,
            segmenter=self.segmenter,
            backlog=self.backlog,
            tasks=self.tasks,
            partials=self.partials,
            publisher=self.publisher,
            controls=self.controls,
            home=self.home,
            house=self.house,
            wyoming=self.wyoming,
            fleet=self.fleet,
            listeners=self.listeners,
            frames=self.frames,
            states=self.states,
            sounding=self.sounding,
            reload=self.reload,
            notices=self.notices,
            is_room_busy=self.is_room_busy,
            transcribe_apart=apart,
            close=self.opened.pop_all().close,
        )

    def state(self) -> ApplianceState:
        """Return the appliance's state. Any thread, once the parts are built."""
        return self.parts.state()

    def stats(self) -> ApplianceStats:
        """Return the appliance's statistics. Any thread, once the parts are built."""
        return self.parts.stats()

    def submit(self, task: Task) -> bool:
        """Queue a request. Return False if too many wait. Any thread; does not wait."""
        return self.backlog.submit(task)

    def is_room_busy(self) -> bool:
        """Return True while somebody speaks to the microphone, or that is being transcribed."""
        return self.segmenter.speaking or self.backlog.is_busy

    def report_change(self) -> None:
        """Tell the listeners that the state has changed."""
        for listener in self.listeners:
            listener.on_change()

    def report_correction(self, correction: Correction) -> None:
        """Tell the listeners that a transcript was corrected."""
        for listener in self.listeners:
            listener.on_correction(correction)

    def put(self, frame: Frame) -> None:
        """Queue a frame, or drop and count it: sound never waits."""
        self.sounding.set()
        if self.controls.listens:
            self.controls.hear(frame)
        try:
            self.frames.put_nowait(frame)
        except Full:
            self.health.count("frames_dropped")

    def make_publisher(self) -> Publisher:
        """Return what publishes to the broker."""
        settings = self.settings
        return self.factories.publisher(
            settings.mqtt,
            self.node,
            self.store,
            Sources(self.state, self.stats),
            announcement=Announcement(
                settings.homeassistant,
                page_url(settings.web),
                lambda: self.home.wake() if self.home else None,
            ),
            subscriptions=subscriptions(
                settings.history,
                self.node,
                self.store,
                self.mute,
                expect=self.expect,
                send=self.send_answer,
            ),
            rooms=self.house,
        )

    def expect(
        self, request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], object]
    ) -> None:
        """Expect sentences for a client of the broker. Raises ValueError."""
        try:
            self.phrases.expect(request, answer)
        except ControlError as error:
            raise ValueError(str(error)) from None

    def send_answer(self, message: OutgoingMessage) -> None:
        """Publish a late answer to a command. Any thread."""
        if self.publisher:
            self.publisher.send(message)

    def make_house(self) -> House:
        """Return what decides with other rooms which one acts on a sentence."""

        def wake() -> None:
            if self.publisher:
                self.publisher.notify()

        return House(
            self.node,
            folder=store_folder(self.settings.store),
            prefix=self.settings.mqtt.prefix,
            report=self.report_rooms,
            muted=lambda: self.mute.on,
            wake=wake,
            on_change=self.report_change,
        )

    def report_rooms(self, heard: HeardIn) -> None:
        """Store which other rooms heard a sentence, and tell the listeners."""
        try:
            self.store.set_rooms(heard)
        except StoreError as error:
            log.warning("%s", error)
        for listener in self.listeners:
            listener.on_heard_in(heard)

    def make_controls(self, read: ReadConfiguration, installer: ModelInstaller) -> Controls:
        """Return what the control socket serves."""
        setting_commands = SettingCommands(self.settings, read, self.reload.set)
        model = self.model
        self.playback = Playback(
            self.store, enabled=self.settings.web.playback, is_muted=lambda: self.mute.on
        )
        self.phrases = PhraseCommands(setting_commands, model, self.expectations)
        return Controls(
            self.node,
            room_name(self.node, self.settings.homeassistant.area),
            store=self.store,
            publisher=self.publisher,
            state=self.state,
            stats=self.stats,
            microphone=MicrophoneCommands(
                self.state, self.submit, model.gates, model.bundle.window_s, self.phrases.make
            ),
            groups=(
                LogCommands(self.store, self.node, self.playback.poll),
                self.playback,
                CorrectionCommands(
                    self.store,
                    self.node,
                    setting_commands,
                    self.report_correction,
                    model.is_common if isinstance(model, Transcriber) else lambda _: False,
                ),
                ApplianceCommands(self.mute, self.day),
                setting_commands,
                self.phrases,
                BrokerCommands(setting_commands),
                ModelCommands(installer),
            ),
        )

    def make_home(self) -> HomeAssistantClient | None:
        """Return what talks to Home Assistant, if that is configured."""
        state, model, publisher = store_folder(self.settings.store), self.model, self.publisher
        if not self.settings.homeassistant.url:
            with contextlib.suppress(OSError):
                (state / NAMES_FILE).unlink(missing_ok=True)
            return None
        return HomeAssistantClient(
            self.settings,
            self.node,
            state=state,
            runtime=runtime_folder(self.settings),
            callbacks=Callbacks(
                on_names=model.set_names if isinstance(model, Transcriber) else lambda _: None,
                on_reply=publisher.assist if publisher else lambda _: None,
                on_change=self.report_change,
            ),
        )

    def make_stages(self) -> None:
        """Make the parts that transcribe."""
        self.tasks = TaskTranscriber(
            self.settings,
            self.model,
            self.store,
            self.health,
            self.listeners,
            on_decision=functools.partial(self.frames.mark, Sentinel.DECIDED),
            on_speculation=self.end_speculation,
            expectations=self.expectations,
            is_room_busy=self.is_room_busy,
        )
        self.tasks.on_stored, self.tasks.on_idle = self.playback.keep, self.playback.poll
        in_process = self.model.in_process
        self.backlog = self.opened.enter_context(
            Backlog(
                self.settings,
                self.health,
                self.tasks.discard,
                in_process=in_process,
                is_stored=self.tasks.is_stored,
            )
        )
        # a server is the whole home's, and a window waits for the answer that it owes us
        here = not transcribed_elsewhere(self.settings)
        submit = self.backlog.submit if here else lambda _: False
        self.partials = Partials(submit, self.tasks.preview, self.listeners)

    def end_speculation(self, task: Task) -> None:
        """Publish a speculation's text, and let it wait for its utterance to end."""
        self.partials.publish_eager(task)
        self.backlog.end_speculation(task)

    def make_wyoming(self) -> WyomingServer:
        """Return the server that transcribes for other programs."""

        async def announce(port: int) -> None:
            await advertise(f"roomscribe-{self.node}"[:63], port, self.report_announcement)

        def ask(window: Window, answer: Answer, names: tuple[str, ...]) -> Task | None:
            task = Task(window, answer, names=names, search=True)
            return task if self.submit(task) else None

        def keep(window: Window, result: Transcription, queue_ms: float) -> None:
            self.tasks.keep(window, result, queue_ms)
            self.states.mark(Sentinel.KEPT)

        wyoming, api = self.settings.wyoming, self.settings.web.api
        return WyomingServer(
            self.settings,
            self.node,
            Hooks(
                lambda: self.model.bundle,
                self.model.gates,
                ask,
                keep=keep if wyoming.log else None,
                count=self.health.count,
                report=functools.partial(self.health.trouble, "wyoming"),
                advertise=announce if wyoming.announced else None,
                is_room_busy=self.is_room_busy,
            ),
            socket_path=runtime_folder(self.settings) / WYOMING_SOCKET if api else None,
        )

    def report_announcement(self, trouble: str) -> None:
        """Note why the network does not know of the Wyoming server, "" if it does."""
        if trouble != self.notices["announcement"]:
            self.notices["announcement"] = trouble
            log.info("%s", trouble or "the Wyoming server is announced to the network")
            self.report_change()

    def make_fleet(self) -> Link:
        """Return the connection over which the windows of satellites come."""

        def ask(window: Window, ahead: bool, answer: Answer) -> Task | None:
            task = Task(window, answer, ask_completeness=ahead)
            return task if self.submit(task) else None

        def report(trouble: str | None) -> None:
            if self.health.trouble("fleet", trouble) and trouble:
                log.warning("%s", trouble)

        link = Link(self.settings.fleet, self.node)
        room = OwnRoom(
            model=lambda: self.model.bundle,
            submit=ask,
            count_waiting=lambda: len(self.backlog),
            count=self.health.count,
            report_trouble=report,
        )
        FleetWorker(link, room, self.model.gates)
        self.opened.callback(link.close)
        return link

    def open_control(self) -> None:
        """Open the control socket. Without it everything else goes on, and the log says so."""
        folder = runtime_folder(self.settings)
        path = folder / SOCKET_NAME
        try:
            for above in (*reversed(folder.parents), folder):
                if not above.exists():
                    above.mkdir(mode=0o700, exist_ok=True)
            self.opened.callback(remove_empty, folder)
            self.controls.server = self.opened.enter_context(
                ControlServer(path, self.controls, idle_s=self.factories.idle_s)
            )
        except OSError as error:
            reason = error.strerror or str(error)
            log.warning("%s: no control socket: %s: no page, and `log` asks the disk", path, reason)
