"""The command line of `roomscribe fleet`, and how a fleet is."""

import argparse

from appliance.cli.commands import Commands
from appliance.cli.fleet.invite import invite_nodes
from appliance.cli.fleet.join import join_fleet
from appliance.config import Settings, node_name
from appliance.errors import ConfigError


def add_fleet(commands: Commands) -> None:
    """Add `roomscribe fleet invite`, `join` and `status` to the command line."""
    fleet = commands.group("fleet", help="several rooms: share the machines that transcribe")
    invite = fleet.add(
        "invite",
        invite_nodes,
        help="let machines join, and print the command for each",
        description="Run it on the machine that is the server of all rooms. It gives each node its "
        "own password, and prints the command to run on the node's machine; for a node that was "
        "invited before, the same command again. The first time it also sets up this machine's "
        "nats-server (`apt install nats-server openssl`) for this, and this machine joins. "
        "Needs root.",
    )
    invite.add_argument(
        "nodes", nargs="*", metavar="NODE", help="name of the room, as in [appliance]"
    )
    invite.add_argument(
        "--name",
        action="append",
        metavar="HOST",
        help="name or address under which the other machines reach this one; may be repeated "
        "(default: HOSTNAME.local and the address)",
    )
    invite.add_argument("--port", type=int, metavar="N", help="TCP port (default: 4222)")
    invite.add_argument("--yes", action="store_true", help="write the changes without asking")
    what = invite.add_mutually_exclusive_group()
    what.add_argument(
        "--role",
        choices=("satellite", "worker"),
        help="role of the nodes (default: satellite)",
    )
    what.add_argument(
        "--remove", action="store_true", help="revoke the access of these nodes at once"
    )
    join = fleet.add(
        "join",
        join_fleet,
        help="join a fleet",
        description="Tries the code that `roomscribe fleet invite` printed on the server's "
        "machine, writes it into the configuration, whose comments stay, and has the daemon read "
        "it. Needs root.",
    )
    join.add_argument(
        "code", nargs="?", metavar="CODE",
        help="the code that `fleet invite` printed for this machine (default: standard input)",
    )  # fmt: skip
    join.add_argument("--yes", action="store_true", help="write the changes without asking")
    fleet.add(
        "status",
        show_status,
        help="show the workers",
        description="Shows the workers that are connected to the server. The exit status is 1 if "
        "there is none. `roomscribe doctor` finds what is wrong.",
    )


def show_status(_options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe fleet status`; return 1 without a worker. Raises RoomscribeError."""
    from appliance.fleet import find_workers

    if settings.fleet.role == "alone":
        raise ConfigError(
            "fleet.role: this machine is in no fleet. Run `sudo roomscribe fleet join`"
        )
    node = node_name(settings)
    workers, misfits = find_workers(settings.fleet, node)
    print(f"{node}, {settings.fleet.role}, at {settings.fleet.server}")
    for worker in workers:
        print(f"  {worker.node:20} {worker.model.name}, {worker.version}")
    for line in misfits:
        print(f"  {line}")
    if not workers:
        print("  no worker: is a worker's daemon running? `roomscribe fleet status` there")
    return 0 if workers else 1
