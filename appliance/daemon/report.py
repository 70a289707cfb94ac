"""What the appliance reports of itself: its state, its counters and readings."""

import functools
import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from appliance import build_version, system
from appliance.daemon.capture_supervisor import CaptureSupervisor
from appliance.daemon.core import Core
from appliance.daemon.talk import Talk
from appliance.fleet import FleetWorker, SatelliteTranscriber
from appliance.homeassistant import HomeAssistantClient
from appliance.house import House
from appliance.records import ApplianceState, ApplianceStats
from appliance.wyoming import WyomingServer

log = logging.getLogger("roomscribe.daemon")

read_machine = functools.cache(system.machine)
VERSION_FILE = "version.json"
"""In the folder of the log: the version that ran last, the one before it, and when it changed."""


def note_version(folder: Path) -> tuple[str, datetime] | None:
    """Return the version before this one and when this one first ran; None if there was no other.

    The first start of another version is logged, and noted in `folder` if that can be written.
    """
    file, version = folder / VERSION_FILE, build_version()
    with suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["version"] == version:
            return (known["from"], datetime.fromisoformat(known["at"])) if "from" in known else None
        now = datetime.now(UTC)
        log.info("updated from %s to %s", known["version"], version)
        note = {"version": version, "from": str(known["version"]), "at": now.isoformat()}
        system.write_whole(file, json.dumps(note), 0o600)
        return note["from"], now
    with suppress(OSError):
        system.write_whole(file, json.dumps({"version": version}), 0o600)
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Reporter:
    """Reports how the parts are; None for one that is not configured."""

    core: Core
    supervisor: CaptureSupervisor
    home_assistant: HomeAssistantClient | None
    house: House | None
    wyoming: WyomingServer | None
    fleet: FleetWorker | None
    talk: Talk | None
    updated: tuple[str, datetime] | None = None

    def state(self) -> ApplianceState:
        """Return how the appliance is, for the `state` topic. Any thread; does not wait."""
        mute, home, wyoming = self.core.mute, self.home_assistant, self.wyoming
        microphone = self.supervisor.description
        closed, health = self.supervisor.muted, self.core.health.snapshot()
        known = mute.is_known
        muted = closed and (True if known and mute.on else None)
        return ApplianceState(
            status="muted" if muted else "degraded" if health.troubles or not known else "running",
            reasons=(
                *health.troubles.values(),
                *filter(None, (mute.unread, mute.unsaved)),
                *health.notices,
                *filter(None, [home.trouble if home else ""]),
            ),
            encoder=health.encoder,
            model=health.model,
            model_title=health.model_title,
            microphone=microphone or "none",
            microphone_online=microphone is not None and "microphone" not in health.troubles,
            queue_depth=len(self.core.backlog) + self.core.states.qsize(),
            uptime_s=self.core.health.uptime_s,
            version=build_version(),
            updated=self.updated,
            muted=muted,
            muted_until=mute.until if muted else None,
            machine=read_machine(),
            wyoming=wyoming.address or None
            if wyoming and self.core.settings.wyoming.enabled
            else "",
            assist=self.talk.state if self.talk else {},
            rooms=self.house.rooms if self.house else (),
            fleet=self._fleet_state(),
            listens=self.supervisor.listens,
            echo=self.supervisor.echo,
        )

    def stats(self) -> ApplianceStats:
        """Return counters and readings, for the `stats` topic. Any thread; does not wait."""
        facts = self.core.transcriber.backend.facts()
        return ApplianceStats(
            counters={**self.core.health.counters(), **facts.get("counters", {})},
            uptime_s=self.core.health.uptime_s,
            npu_temperature_c=facts.get("temperature_c"),
            soc_temperature_c=system.soc_temperature_c(),
            throttling=system.throttling(),
        )

    def _fleet_state(self) -> tuple[str, str] | None:
        """Return the role in the fleet and the connected server; None without a role."""
        model = self.core.transcriber
        link = model.link if isinstance(model, SatelliteTranscriber) else self.fleet
        return (self.core.settings.fleet.role, link.server) if link else None
