"""Let machines join the fleet, whose server is set up on this machine when the first one is
invited."""

from __future__ import annotations

import argparse
import re
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.config_file import must_write, read_text, systemctl
from appliance.cli.fleet.join import FOLDER, has_systemd, join, require_answer
from appliance.config import DEFAULT_PATH, Settings, is_loopback, node_name
from appliance.errors import ConfigError, StoreError
from appliance.system import require_writable, shorten, write_whole

if TYPE_CHECKING:
    from appliance.cli.fleet.provisioning import FleetServer

SERVER_UNIT = "nats-server.service"
DROP_IN = Path("/etc/systemd/system/nats-server.service.d/roomscribe.conf")
DEBIAN_CONFIG = Path("/etc/nats-server.conf")
"""The configuration that Debian's unit reads without the drop-in."""
STORE_NAME = "roomscribe-nats"
"""nats-server's folder, in memory."""
START_S = 10.0
"""Seconds that nats-server may take until it accepts us."""
DEFAULT_LINE = re.compile(r"(host|port|listen)\s*[:=]?\s*\S+")
UNIT_TEXT = Path(__file__).with_name("unit.conf")


def invite_nodes(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe fleet invite`. Raises RoomscribeError."""
    from appliance.cli.fleet.provisioning import FleetServer, find_nats_server
    from appliance.infer import lacking_model

    file = options.config or DEFAULT_PATH
    require_writable(file, "run this with sudo")
    folder, node = file.absolute().parent / FOLDER, node_name(settings)
    before = FleetServer.load(folder)
    if before is None:
        if settings.fleet.role != "alone":
            raise ConfigError(
                f"fleet.role: this machine is a {settings.fleet.role} of {settings.fleet.server} "
                "already. Run this command on the server's machine"
            )
        require_answer(options)
        find_nats_server()
        _require_unused_server(file)
    server = _change_server(options, before).with_certificate()
    if before is None:
        server = server.invite(node, "satellite" if lacking_model(settings) else "worker")
    for name in options.nodes:
        known = server.nodes.get(name)
        role = options.role or (known.role if known else "satellite")
        server = server.remove(name) if options.remove else server.invite(name, role)
    store = f"/run/{STORE_NAME}" if has_systemd(file) else f"/dev/shm/{STORE_NAME}-{server.port}"
    anew = server.write(folder, Path(store))
    started = _start_server(server, folder, file, anew=anew)
    if before is None:
        print(f"the server: {', '.join(server.names)}, port {server.port}; its files: {folder}")
    if before is None or not has_systemd(file):
        print(started)
    status = _join_itself(server, options, settings, file) if before is None else 0
    for name in options.nodes:
        if options.remove:
            print(f"{name} has no access any more")
        else:
            print(f"on {name}, which becomes a {server.nodes[name].role} (keep this line secret):")
            print(f"  sudo roomscribe fleet join --yes {server.code(name).text()}")
    return status


def _join_itself(
    server: FleetServer, options: argparse.Namespace, settings: Settings, file: Path
) -> int:
    """Have this machine join its own server. Raises RoomscribeError."""
    # does not depend on names in the network
    code = replace(server.code(node_name(settings)), servers=(f"tls://127.0.0.1:{server.port}",))
    if has_systemd(file):
        return join(code, options, settings, file, START_S)
    print(f"once it runs, run this here: sudo roomscribe fleet join --yes {code.text()}")
    return 0


def _change_server(options: argparse.Namespace, before: FleetServer | None) -> FleetServer:
    """Return the server with the changes of the command line. Raises ConfigError."""
    from appliance.cli.fleet.provisioning import FleetServer

    names = _read_hosts(options.name) if options.name else before.names if before else _own_names()
    if not names:
        raise ConfigError("--name: expected a name of this machine, found none; give one")
    if options.port is not None and not 0 < options.port < 1 << 16:
        raise ConfigError(f"--port: expected 1 to 65535, found {options.port}")
    server = before or FleetServer(names)
    if server.names != names:  # the certificate is for other names
        server = replace(server, names=names, certificate="", key="")
    return replace(server, port=options.port or server.port)


def _read_hosts(texts: Iterable[str]) -> tuple[str, ...]:
    """Return host names and addresses, each once. Raises ConfigError."""
    from appliance.cli.fleet.provisioning import is_host

    hosts = tuple(dict.fromkeys(host.strip() for host in texts))
    for host in hosts:
        if not is_host(host):
            raise ConfigError(
                "--name: expected a host name or an address such as kitchen.local, found "
                f"{shorten(host) or 'nothing'}"
            )
    return hosts


def _own_names() -> tuple[str, ...]:
    """Return name and address under which other machines may reach this one."""
    from appliance.cli.fleet.provisioning import is_host
    from appliance.wyoming import own_address

    host = socket.gethostname().partition(".")[0]
    return tuple(host for host in dict.fromkeys((f"{host}.local", own_address())) if is_host(host))


def _start_server(server: FleetServer, folder: Path, file: Path, *, anew: bool) -> str:
    """Have nats-server run with its files; return what was done. Raises StoreError."""
    from appliance.cli.fleet.provisioning import (
        CONFIG,
        MEMORY_MB,
        find_nats_server,
        make_folder,
    )

    if not has_systemd(file):
        if anew:
            return f"start nats-server, or restart it, with `nats-server -c {folder / CONFIG}`"
        return "send nats-server a SIGHUP, so that it reads its nodes again"
    text = UNIT_TEXT.read_text("utf-8").format(
        program=find_nats_server(),
        config=folder / CONFIG,
        name=STORE_NAME,
        most=2 * MEMORY_MB + 192,
        soft=MEMORY_MB + 96,
    )
    if read_text(DROP_IN) != text:
        with must_write(DROP_IN):
            make_folder(DROP_IN.parent)
            write_whole(DROP_IN, text, 0o644)
        anew = True
    if anew:
        systemctl("daemon-reload")
        systemctl("enable", SERVER_UNIT)
    systemctl("restart" if anew else "reload-or-restart", SERVER_UNIT)
    until_s = time.monotonic() + START_S
    while not _is_listening(server):
        if time.monotonic() > until_s:
            raise StoreError(
                f"nats-server does not listen on port {server.port}; `journalctl -u {SERVER_UNIT} "
                "-n 20` says why"
            )
        time.sleep(0.1)
    return "nats-server runs"


def _is_listening(server: FleetServer) -> bool:
    """Return True if the server on this machine greets a client."""
    host = server.names[0] if is_loopback(server.names[0]) else "127.0.0.1"
    with suppress(OSError), socket.create_connection((host, server.port), 1.0) as probe:
        return probe.recv(5) == b"INFO "
    return False


def _require_unused_server(file: Path) -> None:
    """Raise ConfigError if nats-server already serves something else."""
    if not has_systemd(file) or DROP_IN.exists():
        return
    lines = [line.partition("#")[0].strip() for line in read_text(DEBIAN_CONFIG).splitlines()]
    if any(line and not DEFAULT_LINE.fullmatch(line) for line in lines):
        raise ConfigError(
            f"{DEBIAN_CONFIG}: this file is not as Debian ships it, so this machine's nats-server "
            "seems to serve something else. Use another machine, or move that file away"
        )
