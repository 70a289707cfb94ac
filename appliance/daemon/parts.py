"""The parts of an appliance, and what they report: its state and its statistics."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from appliance import __version__, system
from appliance.capture import Segmenter
from appliance.config import Settings
from appliance.daemon.backlog import Backlog, Lease, Task
from appliance.daemon.capture_supervisor import CaptureSupervisor
from appliance.daemon.controls import Controls
from appliance.daemon.health import Day, Health
from appliance.daemon.mute import Mute
from appliance.daemon.partials import Partials
from appliance.daemon.stages import StageQueue
from appliance.daemon.transcription import TaskTranscriber
from appliance.fleet import Link, SatelliteTranscriber
from appliance.homeassistant import HomeAssistantClient
from appliance.house import House
from appliance.infer import AnyTranscriber
from appliance.mqtt import Publisher
from appliance.records import ApplianceState, ApplianceStats, Frame, Listener, Transcription
from appliance.store import Store
from appliance.wyoming import WyomingServer

log = logging.getLogger("roomscribe.daemon")

read_machine = functools.cache(system.machine)


def report_backend(health: Health, transcriber: AnyTranscriber) -> None:
    """Note what transcribes and its trouble; log the trouble, and its end. The encoder's thread."""
    backend, trouble = transcriber.backend, transcriber.backend.trouble
    model = transcriber.bundle
    if health.set_encoder(backend.name, model.name, model.title, trouble):
        if trouble:
            log.warning("%s", trouble)
        else:
            log.info("%s: the encoder runs on %s", model.title, backend.name)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an appliance, connected; None for one that is not configured."""

    settings: Settings
    idle_s: float
    health: Health
    mute: Mute
    day: Day
    store: Store
    transcriber: AnyTranscriber
    supervisor: CaptureSupervisor
    segmenter: Segmenter
    backlog: Backlog
    tasks: TaskTranscriber
    partials: Partials
    publisher: Publisher | None
    controls: Controls
    home: HomeAssistantClient | None
    house: House | None
    wyoming: WyomingServer | None
    fleet: Link | None
    listeners: tuple[Listener, ...]
    frames: StageQueue[Frame]
    states: StageQueue[Task]
    sounding: threading.Event
    """Set once sound has come from the source."""
    reload: threading.Event
    """Set when the configuration is to be read again."""
    notices: dict[str, str]
    """What the state says although it is no problem of the appliance."""
    is_room_busy: Callable[[], bool]
    """True while somebody speaks to the microphone, or that speech is being transcribed."""
    transcribe_apart: Callable[[Lease, Callable[[], bool]], Transcription | None]
    """Transcribes a window in a process of its own."""
    close: Callable[[], None]
    """Closes all parts."""

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
            stream=self.supervisor.stream,
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
            round_trips_ms=facts.get("round_trips_ms", ()),
        )

    def _fleet_state(self) -> tuple[str, str] | None:
        """Return the role in the fleet and the connected server; None without a role."""
        satellite = self.transcriber if isinstance(self.transcriber, SatelliteTranscriber) else None
        link = satellite.link if satellite else self.fleet
        return (self.settings.fleet.role, link.server) if link else None
