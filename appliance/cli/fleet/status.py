"""Show how a fleet is, and check what it needs."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import suppress
from typing import Any

from appliance import config
from appliance.config import Settings, node_name
from appliance.errors import ConfigError, DaemonError

OWN = {
    "worker": "here: {done} done for others, {redone} again, {refused} refused",
    "satellite": "from here: {sent} sent, {late} answers too late, {own_cpu} done here, "
    "{round_trip_ms_p50} ms at p50, {round_trip_ms_p95} ms at p95",
}
"""How this machine's counters are shown."""


def show_status(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe fleet status`; return 1 without a worker. Raises RoomscribeError."""
    from appliance.fleet import Probe

    _require_joined(settings)
    with Probe(settings.fleet, node_name(settings)) as probe:
        workers = probe.find_workers()
        queue = probe.read_queue() if probe.may_see_queue else None
        found: dict[str, Any] = {
            "node": node_name(settings),
            "role": settings.fleet.role,
            "server": probe.address,
            "workers": [
                {
                    "node": worker.node,
                    "model": worker.name,
                    "version": worker.version,
                    "busy": worker.busy,
                    "done": worker.done,
                    "queue": worker.queue,
                }
                for worker in workers
            ],
            "waiting": queue.windows if queue else 0 if probe.may_see_queue else None,
            "own": _own_counters(settings),
        }
    if options.json:
        print(json.dumps(found))
        return 0 if workers else 1
    print(f"{found['node']}, {settings.fleet.role}, at {found['server']}")
    for worker in workers:
        state = "busy" if worker.busy else "idle"
        print(f"  {worker.node:20} {worker.name}, {state}, {worker.done} done")
    for line in probe.misfits:
        print(f"  {line}")
    if not workers:
        print("  no worker: is a worker's daemon running? `roomscribe fleet status` there")
    if found["waiting"] is not None:
        print(f"waiting at the server: {found['waiting']} windows")
    if own := found["own"]:
        known = {name: "-" if value is None else value for name, value in own.items()}
        named = {name.removeprefix("fleet_"): value for name, value in known.items()}
        print(OWN[settings.fleet.role].format_map(named))
    return 0 if workers else 1


def _own_counters(settings: Settings) -> dict[str, Any]:
    """Return the fleet's counters of this machine's daemon; empty if it does not answer."""
    from appliance.control import SOCKET_NAME, ControlClient
    from appliance.store import runtime_folders

    sockets = [folder / SOCKET_NAME for folder in runtime_folders(settings)]
    with suppress(DaemonError), ControlClient(sockets, 5.0) as daemon:
        stats = daemon.call("stats")
        if isinstance(stats, dict):
            return {name: value for name, value in stats.items() if name.startswith("fleet_")}
    return {}


def check_fleet(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe fleet check`; return how many checks failed."""
    from appliance.cli.doctor import fleet
    from appliance.cli.doctor.main import run

    if "fleet" not in config.read(options.config).wrong:
        _require_joined(settings)
    return run(options, settings, {"fleet": fleet.CHECKS})


def _require_joined(settings: Settings) -> None:
    """Raise ConfigError without a fleet, and for a user who may not read the credential."""
    from appliance.cli.doctor.fleet import hidden

    if settings.fleet.role == "alone":
        raise ConfigError(
            "fleet.role: this machine is in no fleet. Run `sudo roomscribe fleet join`"
        )
    if hidden(settings, os.geteuid()):
        raise ConfigError("fleet.credential: only the daemon may read it; run this with sudo")
