"""Builds the parts of the appliance and connects them; starts nothing.

A part gets what it needs in its constructor. What happens it tells the bus, which is made first.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from appliance.capture import PlayedSound, Segmenter, VoiceDetector, open_source
from appliance.config import (
    WYOMING_SOCKET,
    Reading,
    SegmenterSettings,
    Settings,
    node_name,
    room_name,
    store_folder,
)
from appliance.control import SOCKET_NAME, ControlError, ControlServer
from appliance.daemon.backlog import Backlog, Work
from appliance.daemon.broker_trial import BrokerCommands
from appliance.daemon.bus import Bus
from appliance.daemon.capture_supervisor import CaptureSupervisor, Opener
from appliance.daemon.controls import Controls, MuteCommands
from appliance.daemon.core import Core
from appliance.daemon.correction_commands import CorrectionCommands
from appliance.daemon.health import Health, report_backend
from appliance.daemon.last_sound import Playback
from appliance.daemon.log_commands import LogCommands
from appliance.daemon.microphone_commands import MicrophoneCommands, SpeakerCommands
from appliance.daemon.model_install import ModelCommands, ModelInstaller
from appliance.daemon.monitors import ActingMonitor, LevelMonitor
from appliance.daemon.mute import Mute
from appliance.daemon.partials import Partials
from appliance.daemon.phrase_commands import Expectations, PhraseCommands
from appliance.daemon.pipeline import Parts
from appliance.daemon.report import Reporter, note_version
from appliance.daemon.setting_commands import ReadConfiguration, SettingCommands
from appliance.daemon.single_instance import lock_instance
from appliance.daemon.stages import Sentinel, StageQueue
from appliance.daemon.talk import Talk
from appliance.daemon.transcription import WorkTranscriber, open_transcriber
from appliance.daemon.transcripts import Transcripts, text_to_act_on
from appliance.errors import StoreError
from appliance.fleet import FleetWorker, Link, OwnRoom
from appliance.homeassistant import NAMES_FILE, HomeAssistantClient, MediaPlayers
from appliance.house import House
from appliance.infer import AnyTranscriber, transcribed_elsewhere
from appliance.mqtt import Publisher, subscriptions
from appliance.records import Frame, HeardIn, Transcription, Window
from appliance.speaker import Loudspeaker, Spoken
from appliance.store import Store, lost_at_boot, remove_empty, runtime_folder
from appliance.wyoming import (
    TOKEN,
    Hooks,
    KnownTexts,
    WyomingServer,
    advertise,
    offer_to_supervisor,
)

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
    transcriber: Callable[[Settings, Callable[[], bool]], AnyTranscriber] = open_transcriber
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
    factories = factories or Factories()
    with contextlib.ExitStack() as opened:
        core = _open_core(settings, factories, opened)
        expectations, reload = Expectations(), threading.Event()
        partials = Partials(core.transcripts.submit, core.transcripts.preview, core.bus)
        works = WorkTranscriber(core, partials, expectations)
        home_assistant = _make_home_assistant(core)
        speaker, supervisor = _make_sound(core, factories.source, opened)
        changes = SettingCommands(settings, read or (lambda _: Reading(settings)), reload.set)
        phrases = PhraseCommands(changes, core.transcriber, expectations)
        satellite = settings.wyoming.satellite
        talk = Talk(core, home_assistant, speaker, phrases.expect) if satellite else None
        house = _make_house(core, talk or home_assistant) if settings.mqtt.enabled else None
        wyoming = _make_wyoming(core, talk)
        fleet = _make_fleet(core, opened) if settings.fleet.role == "worker" else None
        updated = note_version(store_folder(settings.store))
        report = Reporter(core, supervisor, home_assistant, house, wyoming, fleet, talk, updated)
        publisher = _make_publisher(
            core, factories.publisher, report, phrases, home_assistant=home_assistant, house=house
        )
        playback = Playback(
            core.store, enabled=settings.web.playback, is_muted=lambda: core.mute.on
        )
        model, submit, correct = core.transcriber, core.backlog.submit, core.bus.on_correction
        microphone = MicrophoneCommands(report.state, submit, model, phrases.make)
        groups = (
            LogCommands(core.store, core.node, playback.poll), playback,
            CorrectionCommands(core.store, core.node, changes, correct, model.is_common),
            MuteCommands(core.mute), changes, phrases, BrokerCommands(changes),
            ModelCommands(installer or ModelInstaller()), SpeakerCommands(speaker),
        )  # fmt: skip
        server = _open_control_socket(core, opened)
        controls = opened.enter_context(Controls(
            core.store, report, publisher, server=server, microphone=microphone, groups=groups,
            names=(core.node, room_name(core.node, settings.homeassistant.area)),
        )) if server else None  # fmt: skip
        core.bus.add(
            core.transcripts, LevelMonitor(core.health), ActingMonitor(settings, core.health),
            expectations, playback, core.backlog, supervisor, publisher,
            publisher and publisher.live, controls, speaker,
            # the house hands sentences over once a room is chosen, and talk still hears all
            house or talk or home_assistant, talk if house else None,
        )  # fmt: skip
        return Parts(
            core=core, works=works, partials=partials, supervisor=supervisor, report=report,
            controls=controls, publisher=publisher, home_assistant=home_assistant, wyoming=wyoming,
            fleet=fleet, speaker=speaker, reload=reload, close=opened.pop_all().close,
        )  # fmt: skip


def _open_core(settings: Settings, factories: Factories, opened: contextlib.ExitStack) -> Core:
    """Open what all parts share, the bus first."""
    folder, node, bus = store_folder(settings.store), node_name(settings), Bus()
    opened.enter_context(lock_instance(folder))
    health, mute = Health(bus.on_change), Mute(folder, on_change=bus.on_mute)
    store = opened.enter_context(factories.store(settings, partial(health.trouble, "log")))
    if lost := lost_at_boot(folder):
        health.notice("disk", ": ".join(lost))
        log.warning("%s", ": ".join(lost))
    transcriber = opened.enter_context(factories.transcriber(settings, lambda: mute.on))
    transcriber.warm_up()
    report_backend(health, transcriber)
    detector, window_s = VoiceDetector(settings.voice), transcriber.bundle.window_s
    segmenter = factories.segmenter(detector, settings.segmenter, window_s)
    in_process = transcriber.in_process
    backlog = opened.enter_context(
        Backlog(settings, health, bus, in_process=in_process, is_stored=store.has)
    )
    # the microphone hears what our own loudspeaker plays, unless it has a reference
    hears = settings.speaker.enabled and not settings.capture.reference
    played = PlayedSound() if hears and factories.source is open_source else None
    media, spoken = MediaPlayers(), Spoken(bus.on_saying, played.is_heard if played else None)
    # a joined sentence is not sent again to workers, which are the whole home's
    submit = backlog.submit if not transcribed_elsewhere(settings) else lambda *_: None
    transcripts = Transcripts(
        settings, transcriber, store, health, bus, media=media, spoken=spoken, submit=submit
    )
    frames, states = StageQueue[Frame](FRAMES_WAITING), StageQueue[Work](STATES_WAITING)
    return Core(
        settings=settings, node=node, idle_s=factories.idle_s, bus=bus, health=health, mute=mute,
        media=media, spoken=spoken, played=played, store=store, transcriber=transcriber,
        transcripts=transcripts, segmenter=segmenter, backlog=backlog, frames=frames, states=states,
    )  # fmt: skip


def _make_sound(
    core: Core, source: Opener, opened: contextlib.ExitStack
) -> tuple[Loudspeaker | None, CaptureSupervisor]:
    """Return the loudspeaker, if there is one, and what reads the microphone."""
    settings, speaker = core.settings, None
    if settings.speaker.enabled:
        complain = partial(core.health.trouble, "speaker")
        speaker = Loudspeaker(settings.speaker, complain=complain, played=core.played)
    source = partial(open_source, played=core.played) if core.played else source
    supervisor = CaptureSupervisor(
        settings.capture, core.health, core.mute, core.frames, core.bus, source=source
    )
    opened.callback(supervisor.close)
    return speaker, supervisor


def _make_home_assistant(core: Core) -> HomeAssistantClient | None:
    """Return what talks to Home Assistant, if that is configured."""
    state, model = store_folder(core.settings.store), core.transcriber
    if not core.settings.homeassistant.url:
        with contextlib.suppress(OSError):
            (state / NAMES_FILE).unlink(missing_ok=True)
        return None
    return HomeAssistantClient(
        core.settings,
        core.node,
        state=state,
        runtime=runtime_folder(core.settings),
        media=core.media,
        bus=core.bus,
        on_names=model.set_names,
    )


def _make_house(core: Core, assistant: Talk | HomeAssistantClient | None) -> House:
    """Return what decides with other rooms which one acts on a sentence."""

    def report(heard: HeardIn) -> None:
        try:
            core.store.set_rooms(heard)
        except StoreError as error:
            log.warning("%s", error)
        core.bus.on_heard_in(heard)

    return House(
        core.node,
        prefix=core.settings.mqtt.prefix,
        report=report,
        muted=lambda: core.mute.on,
        complain=partial(core.health.trouble, "rooms"),
        on_change=core.bus.on_change,
        assistant=assistant,
        note=core.spoken.remember,
    )


def _make_publisher(
    core: Core,
    factory: Callable[..., Publisher],
    report: Reporter,
    phrases: PhraseCommands,
    *,
    home_assistant: HomeAssistantClient | None,
    house: House | None,
) -> Publisher | None:
    """Return what publishes to the broker, if that is configured."""
    settings = core.settings

    def expect(request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], object]) -> None:
        try:
            phrases.expect(request, answer)
        except ControlError as error:
            raise ValueError(str(error)) from None

    if not settings.mqtt.enabled:
        return None
    return factory(
        settings,
        core.node,
        core.store,
        report.state,
        report.stats,
        on_birth=home_assistant.wake if home_assistant else lambda: None,
        subscriptions=subscriptions(core.node, core.mute.set, expect, core.bus.on_answer),
        rooms=house,
    )


def _make_wyoming(core: Core, talk: Talk | None) -> WyomingServer | None:
    """Return the server that transcribes for other programs, and serves the satellite, if any is
    wanted."""
    settings, health = core.settings, core.health
    if not (settings.wyoming.enabled or settings.web.api or talk):
        return None

    def report_offer(key: str, trouble: str) -> None:
        if health.notice(f"announcement {key}", trouble):
            log.info("%s", trouble or f"{key} is announced to the network")

    async def announce(key: str, port: int) -> None:
        is_room, report = key != "wyoming.port", partial(report_offer, key)
        if TOKEN not in os.environ:
            await advertise(f"roomscribe-{core.node}{'-satellite' * is_room}"[:63], port, report)
        elif is_room:  # the supervisor keeps one offer of each app
            log.info("satellite: add Wyoming Protocol, host %s, port %d", os.uname().nodename, port)
        else:
            await offer_to_supervisor(port, report)

    def keep(window: Window, result: Transcription, queue_ms: float) -> None:
        core.transcripts.keep(window, result, queue_ms)
        core.states.mark(Sentinel.KEPT)

    hooks = Hooks(
        lambda: core.transcriber.bundle,
        core.transcriber.gates,
        core.backlog.submit,
        keep=keep if settings.wyoming.log else None,
        count=health.count,
        report=health.trouble,
        advertise=announce if settings.wyoming.announced else None,
        is_room_busy=lambda: core.backlog.is_room_busy,
        languages=lambda: core.transcriber.known_languages,
        text_to_act_on=text_to_act_on,
        known=talk.satellite.known if talk else KnownTexts(),
    )
    path = runtime_folder(settings) / WYOMING_SOCKET if settings.web.api else None
    voice = talk.satellite if talk else None
    return WyomingServer(settings, core.node, hooks, socket_path=path, satellite=voice)


def _make_fleet(core: Core, opened: contextlib.ExitStack) -> FleetWorker:
    """Return what transcribes the windows of satellites."""

    def report(trouble: str | None) -> None:
        if core.health.trouble("fleet", trouble) and trouble:
            log.warning("%s", trouble)

    room = OwnRoom(
        model=lambda: core.transcriber.bundle,
        submit=core.backlog.submit,
        count_waiting=lambda: len(core.backlog),
        count=core.health.count,
        report_trouble=report,
    )
    worker = FleetWorker(Link(core.settings.fleet, core.node), room, core.transcriber.gates)
    opened.callback(worker.close)
    return worker


def _open_control_socket(core: Core, opened: contextlib.ExitStack) -> ControlServer | None:
    """Open the control socket. Without it everything else goes on, and the log says so."""
    folder = runtime_folder(core.settings)
    path = folder / SOCKET_NAME
    try:
        for above in (*reversed(folder.parents), folder):
            if not above.exists():
                above.mkdir(mode=0o700, exist_ok=True)
        opened.callback(remove_empty, folder)
        return opened.enter_context(ControlServer(path, idle_s=core.idle_s))
    except OSError as error:
        reason = error.strerror or str(error)
        log.warning("%s: no control socket: %s: no page, and `log` asks the disk", path, reason)
        return None
