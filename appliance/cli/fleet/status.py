"""Show how a fleet is."""

import argparse

from appliance.config import Settings, node_name
from appliance.errors import ConfigError


def show_status(_options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe fleet status`; return 1 without a worker. Raises RoomscribeError."""
    from appliance.fleet import Probe

    if settings.fleet.role == "alone":
        raise ConfigError(
            "fleet.role: this machine is in no fleet. Run `sudo roomscribe fleet join`"
        )
    node = node_name(settings)
    with Probe(settings.fleet, node) as probe:
        workers = probe.find_workers()
    print(f"{node}, {settings.fleet.role}, at {probe.address}")
    for worker in workers:
        print(f"  {worker.node:20} {worker.name}, {worker.version}")
    for line in probe.misfits:
        print(f"  {line}")
    if not workers:
        print("  no worker: is a worker's daemon running? `roomscribe fleet status` there")
    return 0 if workers else 1
