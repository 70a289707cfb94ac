"""The parts of the appliance: built and connected, not started; and what they report."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import Full
from typing import Any

from appliance import __version__, system
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
from appliance.daemon.controls import Controls, MuteCommands
from appliance.daemon.correction_commands import CorrectionCommands
from appliance.daemon.health import Health, report_backend
from appliance.daemon.log_commands import LogCommands
from appliance.daemon.microphone_commands import MicrophoneCommands
from appliance.daemon.model_install import ModelCommands, ModelInstaller
from appliance.daemon.mute import Mute
from appliance.daemon.partials import Partials
from appliance.daemon.phrase_commands import Expectations, PhraseCommands
from appliance.daemon.playback import Playback
from appliance.daemon.setting_commands import ReadConfiguration, SettingCommands
from appliance.daemon.single_instance import lock_instance
from appliance.daemon.stages import Sentinel, StageQueue
from appliance.daemon.transcription import TaskTranscriber, open_transcriber, text_to_act_on
from appliance.errors import StoreError
from appliance.fleet import FleetWorker, Link, OwnRoom, SatelliteTranscriber
from appliance.homeassistant import NAMES_FILE, Callbacks, HomeAssistantClient
from appliance.house import House
from appliance.infer import AnyTranscriber, Transcriber, transcribed_elsewhere
from appliance.mqtt import Announcement, Publisher, Sources, subscriptions
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
from appliance.wyoming import Answer, Hints, Hooks, WyomingServer, advertise

log = logging.getLogger("roomscribe.daemon")

IDLE_S = 1.0
"""A stage that waits for its queue reports progress this often."""
FRAMES_WAITING = 1000
"""30 s of sound: longer than any window takes. Frames beyond it are dropped and counted."""
STATES_WAITING = 1
"""One window is encoded ahead while another is decoded; more would only cost memory."""


read_machine = functools.cache(system.machine)


@dataclass(frozen=True, slots=True)
class Factories:
    """What the parts are made with. Tests give others."""

    source: Opener = open_source
    segmenter: Callable[[VoiceDetector, SegmenterSettings, float], Segmenter] = Segmenter
    transcriber: Callable[[Settings], AnyTranscriber] = open_transcriber
    store: Callable[[Settings, Callable[[str | None], object]], Store] = Store.open_with_fallback
    publisher: Callable[..., Publisher] = Publisher
    idle_s: float = IDLE_S


def build(
    settings: Settings,
    factories: Factories | None = None,
    *,
    read: ReadConfiguration | None = None,
    installer: ModelInstaller | None = None,
) -> Parts:
    """Open store, model and sound source, and connect all parts.

    `read` reads the configuration again; `installer` outlives the appliance. Raises any
    RoomscribeError, leaving nothing open.
    """
    with contextlib.ExitStack() as opened:
        parts = Parts(
            settings,
            factories or Factories(),
            opened,
            read or (lambda _: Reading(settings)),
            installer or ModelInstaller(),
        )
        parts.close = opened.pop_all().close
        return parts


class Parts:
    """The parts of an appliance, connected; None for one that is not configured."""

    close: Callable[[], None]
    """Closes all parts."""

    def __init__(
        self,
        settings: Settings,
        factories: Factories,
        opened: contextlib.ExitStack,
        read: ReadConfiguration,
        installer: ModelInstaller,
    ) -> None:
        """Build the parts in an order in which each finds those that it needs at once. `opened`
        closes them; see `build`."""
        self.settings, self._factories, self._opened = settings, factories, opened
        self.idle_s, self.health = factories.idle_s, Health()
        self.frames = StageQueue[Frame](FRAMES_WAITING)
        self.states = StageQueue[Task](STATES_WAITING)
        self.sounding = threading.Event()
        """Set once sound has come from the source."""
        self.reload = threading.Event()
        """Set when the configuration is to be read again."""
        self.notices = {"announcement": ""}
        """What the state says although it is no problem of the appliance."""
        self._expectations = Expectations()
        self.listeners: tuple[Listener, ...] = ()
        opened.enter_context(lock_instance(store_folder(settings.store)))
        self.node, self.mute = node_name(settings), Mute(store_folder(settings.store))
        report = functools.partial(self.health.trouble, "log")
        self.store = opened.enter_context(factories.store(settings, report))
        self.transcriber = opened.enter_context(factories.transcriber(settings))
        self.transcriber.warm_up()
        report_backend(self.health, self.transcriber)
        self.segmenter = factories.segmenter(
            VoiceDetector(settings.voice), settings.segmenter, self.transcriber.bundle.window_s
        )
        self.house = self._make_house() if settings.mqtt.enabled else None
        self.publisher = self._make_publisher() if settings.mqtt.enabled else None
        self._playback = Playback(
            self.store, enabled=settings.web.playback, is_muted=lambda: self.mute.on
        )
        self.controls = self._make_controls(read, installer)
        opened.callback(self.controls.close)
        self.home = self._make_home()
        # the house hands sentences to Home Assistant once it is decided which room acts
        acting = self.house or self.home
        self.listeners = tuple(filter(None, (self.publisher, self.controls, acting)))
        if self.house:
            self.house.assistant = self.home
        self._make_stages()
        sends = settings.wyoming.enabled or settings.web.api
        self.wyoming = self._make_wyoming() if sends else None
        self.fleet = self._make_fleet() if settings.fleet.role == "worker" else None
        if isinstance(self.transcriber, SatelliteTranscriber):
            self.transcriber.satellite.muted = lambda: self.mute.on
        self.supervisor = CaptureSupervisor(
            settings.capture,
            self.health,
            self.mute,
            self._put,
            functools.partial(self.frames.mark, Sentinel.LOST),
            source=factories.source,
        )
        self.mute.on_change = self._apply_mute
        self._open_control()
        self.health.on_change = self._report_change

    def state(self) -> ApplianceState:
        """Return how the appliance is, for the `state` topic. Any thread; does not wait."""
        mute, home, wyoming = self.mute, self.home, self.wyoming
        microphone = self.supervisor.description
        closed, health = self.supervisor.muted, self.health.snapshot()
        known = mute.is_known
        muted = closed and (True if known and mute.on else None)
        return ApplianceState(
            status="muted" if muted else "degraded" if health.troubles or not known else "running",
            reasons=(
                *health.troubles.values(),
                *filter(None, (mute.unread, mute.unsaved, *self.notices.values())),
                *filter(None, [home.trouble if home else ""]),
            ),
            encoder=health.encoder,
            model=health.model,
            model_title=health.model_title,
            microphone=microphone or "none",
            microphone_online=microphone is not None and "microphone" not in health.troubles,
            queue_depth=len(self.backlog) + self.states.qsize(),
            uptime_s=self.health.uptime_s,
            version=__version__,
            muted=muted,
            muted_until=mute.until if muted else None,
            machine=read_machine(),
            wyoming=wyoming.address or None if wyoming and self.settings.wyoming.enabled else "",
            rooms=self.house.rooms if self.house else (),
            fleet=self._fleet_state(),
            listens=self.supervisor.listens,
            echo=self.supervisor.echo,
        )

    def stats(self) -> ApplianceStats:
        """Return counters and readings, for the `stats` topic. Any thread; does not wait."""
        facts = self.transcriber.backend.facts()
        return ApplianceStats(
            counters={**self.health.counters(), **facts.get("counters", {})},
            uptime_s=self.health.uptime_s,
            npu_temperature_c=facts.get("temperature_c"),
            soc_temperature_c=system.soc_temperature_c(),
            throttling=system.throttling(),
        )

    def _fleet_state(self) -> tuple[str, str] | None:
        """Return the role in the fleet and the connected server; None without a role."""
        satellite = self.transcriber if isinstance(self.transcriber, SatelliteTranscriber) else None
        link = satellite.link if satellite else self.fleet
        return (self.settings.fleet.role, link.server) if link else None

    def _apply_mute(self) -> None:
        """Close or open the microphone, and discard what could be played."""
        self._playback.discard()
        self.supervisor.apply_mute()

    def is_room_busy(self) -> bool:
        """Return True while somebody speaks to the microphone, or that is being transcribed."""
        return self.segmenter.speaking or self.backlog.is_busy

    def _report_change(self) -> None:
        """Tell the listeners that the state has changed."""
        for listener in self.listeners:
            listener.on_change()

    def _report_correction(self, correction: Correction) -> None:
        """Tell the listeners that a transcript was corrected."""
        for listener in self.listeners:
            listener.on_correction(correction)

    def _put(self, frame: Frame) -> None:
        """Queue a frame, or drop and count it: sound never waits."""
        if not self.sounding.is_set():
            self.sounding.set()
        if self.controls.listens:
            self.controls.hear(frame)
        try:
            self.frames.put_nowait(frame)
        except Full:
            self.health.count("frames_dropped")

    def _make_publisher(self) -> Publisher:
        """Return what publishes to the broker."""
        settings = self.settings
        return self._factories.publisher(
            settings.mqtt,
            self.node,
            self.store,
            Sources(self.state, self.stats),
            announcement=Announcement(
                settings.homeassistant,
                page_url(settings.web),
                bool(settings.assist.phrase),
                lambda: self.home.wake() if self.home else None,
            ),
            subscriptions=subscriptions(
                self.node,
                self.mute,
                self._expect,
                lambda answer: self.publisher.send(answer) if self.publisher else None,
            ),
            rooms=self.house,
        )

    def _expect(
        self, request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], object]
    ) -> None:
        """Expect sentences for a client of the broker. Raises ValueError."""
        try:
            self._phrases.expect(request, answer)
        except ControlError as error:
            raise ValueError(str(error)) from None

    def _make_house(self) -> House:
        """Return what decides with other rooms which one acts on a sentence."""
        return House(
            self.node,
            prefix=self.settings.mqtt.prefix,
            report=self._report_rooms,
            muted=lambda: self.mute.on,
            wake=lambda: self.publisher.on_change() if self.publisher else None,
            on_change=self._report_change,
        )

    def _report_rooms(self, heard: HeardIn) -> None:
        """Store which other rooms heard a sentence, and tell the listeners."""
        try:
            self.store.set_rooms(heard)
        except StoreError as error:
            log.warning("%s", error)
        for listener in self.listeners:
            listener.on_heard_in(heard)

    def _make_controls(self, read: ReadConfiguration, installer: ModelInstaller) -> Controls:
        """Return what the control socket serves."""
        setting_commands = SettingCommands(self.settings, read, self.reload.set)
        model = self.transcriber
        self._phrases = PhraseCommands(setting_commands, model, self._expectations)
        return Controls(
            self.node,
            room_name(self.node, self.settings.homeassistant.area),
            store=self.store,
            publisher=self.publisher,
            state=self.state,
            stats=self.stats,
            microphone=MicrophoneCommands(
                self.state,
                lambda task: self.backlog.submit(task),  # noqa: PLW0108 - it is made later
                model.gates,
                model.bundle.window_s,
                self._phrases.make,
            ),
            groups=(
                LogCommands(self.store, self.node, self._playback.poll),
                self._playback,
                CorrectionCommands(
                    self.store,
                    self.node,
                    setting_commands,
                    self._report_correction,
                    model.is_common if isinstance(model, Transcriber) else lambda _: False,
                ),
                MuteCommands(self.mute),
                setting_commands,
                self._phrases,
                BrokerCommands(setting_commands),
                ModelCommands(installer),
            ),
        )

    def _make_home(self) -> HomeAssistantClient | None:
        """Return what talks to Home Assistant, if that is configured."""
        model, state, publisher = (
            self.transcriber,
            store_folder(self.settings.store),
            self.publisher,
        )
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
                on_change=self._report_change,
            ),
        )

    def _make_stages(self) -> None:
        """Make the parts that transcribe, and store the texts."""
        self.tasks = TaskTranscriber(
            self.settings,
            self.transcriber,
            self.store,
            self.health,
            self.listeners,
            on_decision=functools.partial(self.frames.mark, Sentinel.DECIDED),
            on_speculation=self._end_speculation,
            on_stored=self._playback.keep,
            on_idle=self._playback.poll,
            expectations=self._expectations,
            is_room_busy=self.is_room_busy,
            media_plays=self.home.media_plays if self.home else lambda _: False,
        )
        self.backlog = self._opened.enter_context(
            Backlog(
                self.settings,
                self.health,
                self.tasks.discard,
                in_process=self.transcriber.in_process,
                is_stored=self.tasks.is_stored,
            )
        )
        # workers are the whole home's, and a window waits for the answer that they owe us
        here = not transcribed_elsewhere(self.settings)
        submit = self.backlog.submit if here else lambda _: False
        self.partials = Partials(submit, self.tasks.preview, self.listeners)

    def _end_speculation(self, task: Task) -> None:
        """Publish a speculation's text, and let it wait for its utterance to end."""
        self.partials.publish_eager(task)
        self.backlog.end_speculation(task)

    def _make_wyoming(self) -> WyomingServer:
        """Return the server that transcribes for other programs."""

        async def announce(port: int) -> None:
            await advertise(f"roomscribe-{self.node}"[:63], port, self._report_announcement)

        def ask(window: Window, answer: Answer, hints: Hints) -> Task | None:
            task = Task(window, answer, names=hints.names, words=hints.words, search=True)
            task.language = hints.language
            return task if self.backlog.submit(task) else None

        def keep(window: Window, result: Transcription, queue_ms: float) -> None:
            self.tasks.keep(window, result, queue_ms)
            self.states.mark(Sentinel.KEPT)

        wyoming, api = self.settings.wyoming, self.settings.web.api
        return WyomingServer(
            self.settings,
            self.node,
            Hooks(
                lambda: self.transcriber.bundle,
                self.transcriber.gates,
                ask,
                keep=keep if wyoming.log else None,
                count=self.health.count,
                report=functools.partial(self.health.trouble, "wyoming"),
                advertise=announce if wyoming.announced else None,
                is_room_busy=self.is_room_busy,
                languages=lambda: self.transcriber.known_languages,
                text_to_act_on=text_to_act_on,
            ),
            socket_path=runtime_folder(self.settings) / WYOMING_SOCKET if api else None,
        )

    def _report_announcement(self, trouble: str) -> None:
        """Note why the network does not know of the Wyoming server, "" if it does."""
        if trouble != self.notices["announcement"]:
            self.notices["announcement"] = trouble
            log.info("%s", trouble or "the Wyoming server is announced to the network")
            self._report_change()

    def _make_fleet(self) -> Link:
        """Return the connection over which the windows of satellites come."""

        def ask(window: Window, ahead: bool, answer: Answer) -> Task | None:
            task = Task(window, answer, ask_completeness=ahead)
            return task if self.backlog.submit(task) else None

        def report(trouble: str | None) -> None:
            if self.health.trouble("fleet", trouble) and trouble:
                log.warning("%s", trouble)

        link = Link(self.settings.fleet, self.node)
        room = OwnRoom(
            model=lambda: self.transcriber.bundle,
            submit=ask,
            count_waiting=lambda: len(self.backlog),
            count=self.health.count,
            report_trouble=report,
        )
        FleetWorker(link, room, self.transcriber.gates)
        self._opened.callback(link.close)
        return link

    def _open_control(self) -> None:
        """Open the control socket. Without it everything else goes on, and the log says so."""
        folder = runtime_folder(self.settings)
        path = folder / SOCKET_NAME
        try:
            for above in (*reversed(folder.parents), folder):
                if not above.exists():
                    above.mkdir(mode=0o700, exist_ok=True)
            self._opened.callback(remove_empty, folder)
            self.controls.server = self._opened.enter_context(
                ControlServer(path, self.controls, idle_s=self._factories.idle_s)
            )
        except OSError as error:
            reason = error.strerror or str(error)
            log.warning("%s: no control socket: %s: no page, and `log` asks the disk", path, reason)
