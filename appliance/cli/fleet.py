"""`roomscribe fleet`: several rooms share their workers: set the server up, join, show the state.

`join` first tries what it changes, then shows it, then writes it: certificate and credential first,
the configuration that names them last. So an interrupted join has changed nothing.

Over 500 lines because setting the server up ends in joining it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance import config
from appliance.cli.config_file import (
    confirm_change,
    read_text,
    reload_daemon,
    set_keys,
    systemctl,
    write_config,
)
from appliance.cli.dialog import Dialog, open_console
from appliance.config import DEFAULT_PATH, Settings, node_name
from appliance.errors import ConfigError, DaemonError, ServerError, StoreError
from appliance.system import lock, require_writable, shorten, write_whole

if TYPE_CHECKING:
    from appliance.fleet import Code, FleetServer

FOLDER = "fleet"
"""Folder beside the configuration with the files of the server, and of a node."""
CREDENTIAL, TRUSTED = "credential", "trusted.crt"
SERVER_UNIT, UNIT = "nats-server.service", "roomscribe.service"
DROP_IN = Path("/etc/systemd/system/nats-server.service.d/roomscribe.conf")
DEBIAN_CONFIG = Path("/etc/nats-server.conf")
"""The configuration that Debian's unit reads without the drop-in."""
STORE_NAME = "roomscribe-nats"
"""nats-server's folder: below /run, in memory; in a cluster below /var/lib, since a server that has
lost the names of the queues makes the others lose them (tried with nats-server 2.9.10)."""
USER = "roomscribe"
START_S = 10.0
"""Seconds that nats-server may take until it accepts us."""
RECONNECT_S = 20.0
"""Seconds that the daemon may take until it is connected."""
DEFAULT_LINE = re.compile(r"(host|port|listen)\s*[:=]?\s*\S+")
UNIT_TEXT = """\
# Written by `roomscribe fleet join --serve`.
[Service]
ExecStart=
ExecStart={program} -c {config}
# Debian's ask /bin/kill, which a small system has not
ExecStop=
ExecReload=
ExecReload={program} --signal reload=${{MAINPID}}
Restart=always
RestartSec=2
{folder}Directory={name}
# what was said waits in memory: no core file has it, and it is never swapped out
LimitCORE=0
MemoryMax={most}M
MemorySwapMax=0
Environment=GOMEMLIMIT={soft}MiB
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateDevices=yes
"""


def add_fleet(
    names: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """`roomscribe fleet status`, `join`, `invite` and `check`"""
    fleet = names.add_parser("fleet", help="several rooms: share the machines that transcribe")
    words = fleet.add_subparsers(metavar="WHAT", required=True)
    add = functools.partial(words.add_parser, parents=[common])
    _add_join(add)
    invite = add(
        "invite",
        help="let machines join, and print the command for each",
        description="Run it on the server's machine. It gives each node its own password, and "
        "prints the command to run on the node's machine. For a node that was invited before, "
        "it prints a new command with the same password. Needs root.",
    )
    invite.add_argument(
        "nodes", nargs="+", metavar="NODE", help="name of the room, as in [appliance]"
    )
    what = invite.add_mutually_exclusive_group()
    what.add_argument(
        "--role",
        choices=("satellite", "worker", "both"),
        help="role of the nodes (default: satellite)",
    )
    invite.add_argument(
        "--valid-days",
        type=_days,
        default=1.0,
        metavar="DAYS",
        help="how long `join` accepts the code; 0: for ever (default: 1)",
    )
    what.add_argument(
        "--remove", action="store_true", help="revoke the access of these nodes at once"
    )
    invite.set_defaults(command=invite_nodes)
    status = add(
        "status",
        help="show the workers, and how many windows wait",
        description="Shows the workers, their activity, how many windows wait at the server, "
        "and this machine's counters. The exit status is 1 if there is no worker.",
    )
    status.add_argument("--json", action="store_true", help="one JSON object, for programs")
    status.set_defaults(command=show_status)
    check = add(
        "check",
        help="check everything that the fleet needs, and name the fix for each problem",
        description="Checks the server, encryption, permissions, the queue and the clocks, and "
        "has a sentence transcribed. `roomscribe doctor` includes it. The exit status is the "
        "number of checks that failed.",
    )
    check.add_argument("--json", action="store_true", help="one JSON object, for programs")
    check.set_defaults(command=check_fleet, lenient=True, recordings=None)


def _days(text: str) -> float:
    """Return a number of days. Raises ValueError."""
    days = float(text)
    if not 0 <= days <= 3650:
        raise ValueError(text)
    return days


def _add_join(add: Any) -> None:
    join = add(
        "join",
        help="join a fleet; --serve: set one up",
        description="Tries the code that `roomscribe fleet invite` printed on the server's "
        "machine, writes it into the configuration, whose comments stay, and has the daemon read "
        "it. With --serve it sets up this machine's nats-server (`apt install nats-server`) for "
        "the fleet, and this machine joins; run it again to change something. Needs root.",
    )
    join.add_argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="the code that `fleet invite` printed for this machine (default: standard input)",
    )
    join.add_argument("--yes", action="store_true", help="write the changes without asking")
    join.add_argument("--serve", action="store_true", help="set up nats-server on this machine")
    serve = join.add_argument_group("with --serve")
    serve.add_argument(
        "--name",
        action="append",
        metavar="HOST",
        help="name or address under which the other machines reach this one; may be repeated",
    )
    serve.add_argument(
        "--role",
        choices=("satellite", "worker", "both", "none"),
        help="role of this machine besides that (default: worker, if it has a model)",
    )
    serve.add_argument("--port", type=int, metavar="N", help="TCP port (default: 4222)")
    serve.add_argument(
        "--memory",
        type=int,
        metavar="MB",
        help="memory of the server for waiting speech (default: 64)",
    )
    serve.add_argument(
        "--cluster",
        metavar="HOST,HOST,HOST",
        help="use three servers, any of which may fail; names or addresses of all",
    )
    serve.add_argument(
        "--certificate", type=Path, metavar="FILE", help="your own certificate (PEM)"
    )
    serve.add_argument("--key", type=Path, metavar="FILE", help="its private key (PEM)")
    serve.add_argument(
        "--authority",
        type=Path,
        metavar="FILE",
        help="the authority that signed it (PEM), if the other machines do not know it",
    )
    join.set_defaults(command=join_fleet, usage_error=join.error)


# join


def join_fleet(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe fleet join`; return 0, or 1 if the user declined."""
    _check_options(options)
    file = options.config or DEFAULT_PATH
    if not options.yes and not sys.stdin.isatty():
        options.usage_error("join asks before it writes, and there is no terminal: add --yes")
    if options.serve:
        return _serve(options, settings, file)
    require_writable(file, "run this with sudo")
    return _join(_read_code(options), options, settings, file)


def _read_code(options: argparse.Namespace) -> Code:
    """Return the code of the command line or standard input; from a terminal, once it is whole.

    Raises ConfigError.
    """
    from appliance.fleet import Code

    if options.code is not None:
        return Code.read(options.code)
    if not sys.stdin.isatty():
        return Code.read(sys.stdin.read())
    print("The code that the server printed: ", end="", flush=True)
    text = ""
    while True:  # a messenger may have broken it into lines
        line = sys.stdin.readline()
        text += line
        try:
            return Code.read(text)
        except ConfigError:
            if not line.strip():
                raise


def _check_options(options: argparse.Namespace) -> None:
    """End with a usage error if options contradict each other."""
    of_serve = ("name", "role", "port", "memory", "cluster", "certificate", "key", "authority")
    given = [name for name in of_serve if getattr(options, name) is not None]
    if given and not options.serve:
        options.usage_error(f"--{given[0]} needs --serve")
    if given and options.code:
        options.usage_error(f"the code contains all that: leave --{given[0]} out")
    if (options.certificate is None) != (options.key is None):
        options.usage_error("--certificate and --key need each other")
    if options.authority and not options.certificate:
        options.usage_error("--authority needs --certificate")
    if options.certificate and options.cluster:
        options.usage_error("a cluster makes its certificates itself: leave --certificate out")


def _join(
    code: Code, options: argparse.Namespace, settings: Settings, file: Path, within_s: float = 0.0
) -> int:
    """Try the code, for `within_s`, show the changes, write them; return the exit status.

    Raises RoomscribeError.
    """
    from appliance.fleet import make_folder, unwritable

    folder = file.absolute().parent / FOLDER
    changes = _plan_changes(code, settings, folder)
    secret = f"user = {json.dumps(code.node)}\npassword = {json.dumps(code.password)}\n"
    before = read_text(file)
    after = set_keys(before, changes)
    with tempfile.TemporaryDirectory(prefix="roomscribe-") as draft_dir:
        tried = Path(draft_dir)
        write_whole(tried / CREDENTIAL, secret, 0o600)
        write_whole(tried / TRUSTED, code.authority, 0o600)
        draft = after.replace(f"{folder}/", f"{tried}/")
        print(_try_code(config.parse(draft, str(file)), code.node, within_s))
    dialog = Dialog(open_console(), interactive=not options.yes)
    if before != after and not confirm_change(dialog, file, before, after):
        print("nothing was changed")
        return 1
    try:
        make_folder(folder)
        if code.authority:
            write_whole(folder / TRUSTED, code.authority, 0o644)
        write_whole(folder / CREDENTIAL, secret, 0o600)
        with suppress(LookupError, PermissionError):
            if file == DEFAULT_PATH:
                shutil.chown(folder / CREDENTIAL, USER, USER)
        if before != after:
            write_config(file, after)
    except OSError as error:
        raise unwritable(file.parent, error) from error
    print(_reload_daemon(config.parse(after, str(file)), file))
    return 0


def _plan_changes(code: Code, settings: Settings, folder: Path) -> dict[str, Any]:
    """Return the configuration keys that joining sets. Raises ConfigError for an unusable code."""
    from appliance.infer import lacking_model

    if code.role != "satellite" and (lacking := lacking_model(settings)):
        role = _describe_role(code.role)
        raise ConfigError(
            f"code: this code is for {role}, but this machine can only be a satellite: {lacking}"
        )
    if code.expires_s and time.time() > code.expires_s:
        raise ConfigError(
            "code: this invitation has expired. Run `sudo roomscribe fleet invite "
            f"{code.node}` where the server runs, and use the new line"
        )
    _require_same_node(code, settings)
    changes: dict[str, Any] = {
        "fleet.role": code.role,
        "fleet.server": list(code.servers) if code.servers[1:] else code.servers[0],
        "fleet.credential": str(folder / CREDENTIAL),
        "fleet.ca": str(folder / TRUSTED) if code.authority else "",
    }
    node = node_name(settings)
    if code.node == node:
        return changes
    if settings.appliance.node:
        raise ConfigError(
            f"code: this machine is named {node}, and the code is for {code.node}. Run `sudo "
            f"roomscribe fleet invite {node}` where the server runs, or give this machine that "
            "name ([appliance] node)"
        )
    return {**changes, "appliance.node": code.node}


def _require_same_node(code: Code, settings: Settings) -> None:
    """Raises ConfigError if joining would silently change the name of a machine that has joined."""
    from appliance.fleet import read_credential

    if settings.appliance.node:
        return  # the name was chosen: the code has to fit it
    try:
        joined = read_credential(settings.fleet)
    except ConfigError:
        return  # it is unusable, and the code brings another
    if joined and joined.user != code.node:
        node = joined.user
        raise ConfigError(
            f"code: this machine has joined as {node}, and the code is for {code.node}. Run `sudo "
            f"roomscribe fleet invite {node}` where the server runs and use that code; to rename "
            f'this machine, first set node = "{code.node}" in [appliance]'
        )


def _try_code(settings: Settings, node: str, within_s: float) -> str:
    """Return which server accepts the node, trying for `within_s`.

    Raises ServerError, and ConfigError.
    """
    from appliance.fleet import Probe

    until_s = time.monotonic() + within_s
    while True:
        try:
            with Probe(settings.fleet, node) as probe:
                if probe.count_rivals():
                    raise ConfigError(
                        f"code: another machine is connected as {node}: an invitation is for one "
                        "machine. Run `sudo roomscribe fleet invite OTHER-NAME` where the server "
                        "runs, and use that code"
                    )
                there = probe.find_workers()
                who = (
                    ", ".join(f"{worker.node} ({worker.name})" for worker in there) or "nobody yet"
                )
                return f"{probe.address} lets {node} in; transcribing there: {who}"
        except ServerError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.2)


def _reload_daemon(settings: Settings, file: Path) -> str:
    """Have the daemon read the configuration, and wait for it; return the outcome."""
    from appliance.control import SOCKET_NAME, ControlClient
    from appliance.store import runtime_folders

    sockets = [folder / SOCKET_NAME for folder in runtime_folders(settings)]
    try:
        reload_daemon(sockets)
    except DaemonError as error:
        if not _has_systemd(file):
            return f"written; {error}"
        systemctl("restart", UNIT)
    until_s = time.monotonic() + RECONNECT_S
    state: dict[str, Any] = {}
    while time.monotonic() < until_s:  # it starts again, and ends every connection
        with suppress(DaemonError), ControlClient(sockets) as daemon:
            state = daemon.call("state")
            fleet = state.get("fleet") or {}
            if fleet.get("role") == settings.fleet.role and fleet.get("server"):
                return f"written, and the daemon has read it: {_describe_state(state)}"
        time.sleep(0.1)
    if (state.get("fleet") or {}).get("role") == settings.fleet.role:
        return (
            f"written, and the daemon has read it, but is not connected after {RECONNECT_S:.0f} s: "
            f"{_describe_state(state)}. Run `roomscribe fleet check`"
        )
    if state:
        return (
            f"written, but the daemon that runs has not taken the role {settings.fleet.role}. If "
            f"it uses another configuration than {file}, start the one that uses it"
        )
    return f"written, but no daemon answers. Start it with `roomscribe run --config {file}`"


def _describe_state(state: dict[str, Any]) -> str:
    return "; ".join((str(state.get("status", "")), *state.get("reasons", ())))


# the server


def _serve(options: argparse.Namespace, settings: Settings, file: Path) -> int:
    """Run `roomscribe fleet join --serve`. Raises RoomscribeError."""
    from appliance.fleet import FleetServer, find_nats_server, nats_server_version, read_server_code
    from appliance.infer import lacking_model

    require_writable(file, "run this with sudo")
    find_nats_server()
    _require_unused_server(file)
    folder, node = file.absolute().parent / FOLDER, node_name(settings)
    with _lock_server(folder):
        before = FleetServer.load(folder)
        server = read_server_code(options.code) if options.code else _change_server(options, before)
        _require_recent_server(server, nats_server_version())
        usual = "satellite" if lacking_model(settings) else "worker"
        role = options.role or (server.nodes[node].role if node in server.nodes else usual)
        if not options.code and role != "none" and not _is_sibling(server):
            server = server.invite(node, role)
        server = server.with_certificate()
        anew = server.write(folder, _store_dir(file, server))
        started = _start_server(server, folder, file, anew=anew)
    where = server.cluster or server.names
    print(f"the server: {', '.join(where)}, port {server.port}; its files are in {folder}")
    print(started)
    status = _join_itself(server, options, settings, file) if node in server.nodes else 0
    _print_siblings(server)
    if not _is_sibling(server):
        print(
            "to let another machine join, run `sudo roomscribe fleet invite NODE` on this machine"
        )
    return status


def _join_itself(
    server: FleetServer, options: argparse.Namespace, settings: Settings, file: Path
) -> int:
    """Have this machine join its own server. Raises RoomscribeError."""
    node = node_name(settings)
    code = server.code(node)
    if server.authority_key and not server.cluster:  # does not depend on names in the network
        code = replace(code, servers=(f"tls://127.0.0.1:{server.port}",))
    try:
        return _join(code, options, settings, file, START_S if _has_systemd(file) else 0.0)
    except ServerError:
        if not _has_systemd(file):
            role = server.nodes[node].role
            print(
                "once it runs, let this machine join: run the command that `roomscribe fleet "
                f"invite {node} --role {role}` prints"
            )
            return 0
    systemctl("restart", SERVER_UNIT)  # an interrupted run may not have done that
    return _join(code, options, settings, file, START_S)


def _change_server(options: argparse.Namespace, before: FleetServer | None) -> FleetServer:
    """Return the server with the changes of the command line. Raises ConfigError."""
    from appliance.fleet import FleetServer, read_certificate

    if before and _is_sibling(before) and (options.cluster or options.name):
        raise ConfigError(
            "--serve: only the first server of the cluster can be changed. Change it there, and "
            "run the line that it prints here"
        )
    cluster = _read_hosts("--cluster", options.cluster.split(",")) if options.cluster else None
    if cluster is not None and len(cluster) != 3:
        raise ConfigError(
            f"--cluster: expected three servers, so that each may fail, found {len(cluster)}"
        )
    names = _read_hosts("--name", options.name) if options.name else before.names if before else ()
    hosts = cluster if cluster is not None else before.cluster if before else ()
    ours = (*_own_names(), socket.gethostname())
    names = names or tuple(host for host in hosts if host in ours) or _own_names()
    if not names or (hosts and not set(names) & set(hosts)):
        raise ConfigError(
            "--name: expected which of "
            f"{', '.join(hosts) or 'the names in the house'} this machine is, found none that it "
            "knows of itself; name it"
        )
    server = replace(before or FleetServer(names), names=names, cluster=hosts)
    for key, name, low, high in (("port", "port", 1, 65535), ("memory_mb", "memory", 8, 4096)):
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"--{name}: expected {low} to {high}, found {value}")
        if value is not None:
            server = replace(server, **{key: value})
    if options.certificate:
        certificate, key = read_certificate(options.certificate, options.key, names)
        authority = _read_authority(options.authority) if options.authority else ""
        server = replace(
            server, certificate=certificate, key=key, authority=authority, authority_key=""
        )
    return server


def _read_hosts(option: str, texts: Iterable[str]) -> tuple[str, ...]:
    """Return host names and addresses, each once. Raises ConfigError."""
    from appliance.fleet import is_host

    hosts = tuple(dict.fromkeys(host.strip() for host in texts))
    for host in hosts:
        if not is_host(host):
            raise ConfigError(
                f"{option}: expected a host name or an address such as kitchen.local, found "
                f"{shorten(host) or 'nothing'}"
            )
    return hosts


def _own_names() -> tuple[str, ...]:
    """Return name and address under which other machines may reach this one."""
    from appliance.fleet import is_host
    from appliance.wyoming import own_address

    host = socket.gethostname().partition(".")[0]
    return tuple(host for host in dict.fromkeys((f"{host}.local", own_address())) if is_host(host))


def _read_authority(file: Path) -> str:
    """Return an authority's certificates. Raises ConfigError."""
    import ssl

    try:
        ssl.create_default_context(cafile=str(file))
        return file.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ConfigError(
            f"--authority: expected certificates (PEM), found {file}: {why}"
        ) from error


def _is_sibling(server: FleetServer) -> bool:
    """Return True for a server of a cluster that is not the first one."""
    return bool(server.cluster and not server.authority_key)


def _print_siblings(server: FleetServer) -> None:
    """Print the commands for the other servers of the cluster."""
    if server.cluster and server.authority_key:
        for host in server.cluster:
            if host != server.host:
                print(f"on {host}, which becomes a server of the cluster (keep this line secret):")
                print(f"  sudo roomscribe fleet join --serve --yes {server.sibling(host).text()}")


def invite_nodes(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe fleet invite`. Raises RoomscribeError."""
    from appliance.fleet import FleetServer

    file = options.config or DEFAULT_PATH
    require_writable(file, "run this with sudo")
    folder = file.absolute().parent / FOLDER
    with _lock_server(folder):
        server = FleetServer.load(folder)
        if server is None:
            raise ConfigError(
                f"{folder}: no fleet's server is set up on this machine. Run `sudo roomscribe "
                "fleet join --serve`, or this command on the server's machine"
            )
        if _is_sibling(server):
            raise ConfigError("invite: run this on the first server of the cluster")
        for node in options.nodes:
            role = options.role or (
                server.nodes[node].role if node in server.nodes else "satellite"
            )
            server = server.remove(node) if options.remove else server.invite(node, role)
        anew = server.write(folder, _store_dir(file, server))
        started = _start_server(server, folder, file, anew=anew)
    if not _has_systemd(file):
        print(started)
    for node in options.nodes:
        if options.remove:
            print(f"{node} has no access any more")
        else:
            code, until = server.code(node, options.valid_days), ""
            if code.expires_s:
                moment = datetime.fromtimestamp(code.expires_s).astimezone()
                until = f"; valid until {moment:%Y-%m-%d %H:%M}"
            role = _describe_role(server.nodes[node].role)
            print(f"on {node}, which becomes {role} (keep this line secret{until}):")
            print(f"  sudo roomscribe fleet join --yes {code.text()}")
    _print_siblings(server)
    return 0


def _describe_role(role: str) -> str:
    return {"satellite": "a satellite", "worker": "a worker", "both": "a satellite and a worker"}[
        role
    ]


def _start_server(server: FleetServer, folder: Path, file: Path, *, anew: bool) -> str:
    """Have nats-server run with its files; return what was done. Raises StoreError."""
    from appliance.fleet import CONFIG, find_nats_server, make_folder, unwritable

    if not _has_systemd(file):
        if anew:
            return f"start nats-server, or restart it, with `nats-server -c {folder / CONFIG}`"
        return "send nats-server a SIGHUP, so that it reads its nodes again"
    text = UNIT_TEXT.format(
        program=find_nats_server(),
        config=folder / CONFIG,
        folder="State" if server.cluster else "Runtime",
        name=STORE_NAME,
        most=2 * server.memory_mb + 192,
        soft=server.memory_mb + 96,
    )
    try:
        if read_text(DROP_IN) != text:
            make_folder(DROP_IN.parent)
            write_whole(DROP_IN, text, 0o644)
            anew = True
    except OSError as error:
        raise unwritable(DROP_IN, error) from error
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
    from appliance.config import is_loopback

    host = server.host if is_loopback(server.host) else "127.0.0.1"
    with suppress(OSError), socket.create_connection((host, server.port), 1.0) as probe:
        return probe.recv(5) == b"INFO "
    return False


def _require_recent_server(server: FleetServer, found: tuple[int, ...]) -> None:
    """Raise ConfigError for a cluster with an old nats-server.

    In 2.9.10 a server that was offline does not get what it missed of a queue in memory, so that a
    second failure loses windows; in 2.10.27 it does (both tried). 2.10.20 to 2.10.22 lose whole
    streams when their process crashes.
    """
    from appliance.fleet import CLUSTER_VERSION

    if server.cluster and found < CLUSTER_VERSION:
        raise ConfigError(
            f"--cluster: expected nats-server {'.'.join(map(str, CLUSTER_VERSION))} or newer "
            f"(Debian 13 has it), found {'.'.join(map(str, found))}, in which a failure may "
            "lose the queue; leave --cluster out"
        )


def _require_unused_server(file: Path) -> None:
    """Raise ConfigError if nats-server already serves something else."""
    if not _has_systemd(file) or DROP_IN.exists():
        return
    lines = [line.partition("#")[0].strip() for line in read_text(DEBIAN_CONFIG).splitlines()]
    if any(line and not DEFAULT_LINE.fullmatch(line) for line in lines):
        raise ConfigError(
            f"{DEBIAN_CONFIG}: this file is not as Debian ships it, so this machine's nats-server "
            "seems to serve something else. Use another machine, or move that file away"
        )


def _store_dir(file: Path, server: FleetServer) -> Path:
    """Return the folder in which nats-server makes its own."""
    if _has_systemd(file):
        return Path("/var/lib" if server.cluster else "/run") / STORE_NAME
    if server.cluster:
        return file.absolute().parent / FOLDER / "queues"
    name = f"{STORE_NAME}-{server.port}"
    if server.store_dir and Path(server.store_dir).name == name:
        return Path(server.store_dir)  # a server that runs refuses another one
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/dev/shm") / name


@contextmanager
def _lock_server(folder: Path) -> Iterator[None]:
    """Let only one run at a time change the server. Raises StoreError."""
    from appliance.fleet import make_folder, unwritable

    try:
        make_folder(folder)
        held = lock(folder / ".lock")
    except BlockingIOError:
        raise StoreError(
            f"{folder}: another `roomscribe fleet` changes it now; wait for it"
        ) from None
    except OSError as error:
        raise unwritable(folder, error) from error
    with held:
        yield


# how it is


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
    for wanted, line in (
        (settings.fleet.serves, "here: {done} done for others, {redone} again, {refused} refused"),
        (
            settings.fleet.sends,
            "from here: {sent} sent, {late} answers too late, {own_cpu} done here, "
            "{round_trip_ms_p50} ms at p50, {round_trip_ms_p95} ms at p95",
        ),
    ):
        own = {name.removeprefix("fleet_"): value for name, value in found["own"].items()}
        if wanted and own:
            known = {name: "-" if value is None else value for name, value in own.items()}
            print(line.format_map(known))
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


# files and units


def _has_systemd(file: Path) -> bool:
    """Return True if the package's systemd units run the daemon and nats-server."""
    return file == DEFAULT_PATH and Path("/run/systemd/system").exists()
