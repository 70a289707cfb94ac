"""Join a fleet with a code.

`join` first tries what it changes, then shows it, then writes it: certificate and credential first,
the configuration that names them last. So an interrupted join has changed nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance import config
from appliance.cli.commands import control_sockets
from appliance.cli.config_file import (
    confirm_change,
    must_write,
    read_text,
    reload_daemon,
    set_keys,
    systemctl,
    write_config,
)
from appliance.cli.dialog import Dialog
from appliance.config import DEFAULT_PATH, Settings, node_name
from appliance.errors import ConfigError, DaemonError, ServerError
from appliance.system import require_writable, write_whole

if TYPE_CHECKING:
    from appliance.cli.fleet.provisioning import Code

FOLDER = "fleet"
"""Folder beside the configuration with the files of the server, and of a node."""
CREDENTIAL, TRUSTED = "credential", "trusted.crt"
UNIT, USER = "roomscribe.service", "roomscribe"


def join_fleet(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe fleet join`; return 0, or 1 if the user declined."""
    file = options.config or DEFAULT_PATH
    require_answer(options)
    require_writable(file, "run this with sudo")
    return join(_read_code(options), options, settings, file)


def require_answer(options: argparse.Namespace) -> None:
    """End with a usage error if nobody can be asked."""
    if not options.yes and not sys.stdin.isatty():
        options.usage_error("it asks before it writes, and there is no terminal: add --yes")


def has_systemd(file: Path) -> bool:
    """Return True if the package's systemd units run the daemon and nats-server."""
    return file == DEFAULT_PATH and Path("/run/systemd/system").exists()


def _read_code(options: argparse.Namespace) -> Code:
    """Return the code of the command line or standard input; which may be several lines.

    Raises ConfigError.
    """
    from appliance.cli.fleet.provisioning import Code

    if options.code is not None:
        return Code.read(options.code)
    if sys.stdin.isatty():
        print("Paste the code that the server printed, then press Enter and Ctrl-D:", flush=True)
    return Code.read(sys.stdin.read())


def join(
    code: Code, options: argparse.Namespace, settings: Settings, file: Path, within_s: float = 0.0
) -> int:
    """Try the code, for `within_s`, show the changes, write them; return the exit status.

    Raises RoomscribeError.
    """
    from appliance.cli.fleet.provisioning import make_folder

    folder = file.absolute().parent / FOLDER
    secret = f"user = {json.dumps(code.node)}\npassword = {json.dumps(code.password)}\n"
    before = read_text(file)

    def planned(server: str) -> str:
        return set_keys(before, _plan_changes(code, settings, folder, server))

    with tempfile.TemporaryDirectory(prefix="roomscribe-") as draft_dir:
        tried = Path(draft_dir)
        write_whole(tried / CREDENTIAL, secret, 0o600)
        write_whole(tried / TRUSTED, code.certificate, 0o600)
        drafts = {
            server: config.parse(planned(server).replace(f"{folder}/", f"{tried}/"), str(file))
            for server in code.servers
        }
        after = planned(_find_server(drafts, code.node, within_s))
    dialog = Dialog(interactive=not options.yes)
    if before != after and not confirm_change(dialog, file, before, after):
        print("nothing was changed")
        return 1
    with must_write(file.parent):
        make_folder(folder)
        write_whole(folder / TRUSTED, code.certificate, 0o644)
        write_whole(folder / CREDENTIAL, secret, 0o600)
        with suppress(LookupError, PermissionError):
            if file == DEFAULT_PATH:
                shutil.chown(folder / CREDENTIAL, USER, USER)
        if before != after:
            write_config(file, after)
    print(_reload_daemon(config.parse(after, str(file)), file))
    return 0


def _plan_changes(code: Code, settings: Settings, folder: Path, server: str) -> dict[str, Any]:
    """Return the configuration keys that joining sets. Raises ConfigError for an unusable code."""
    from appliance.infer import lacking_model

    if code.role == "worker" and (lacking := lacking_model(settings)):
        raise ConfigError(
            f"code: this code is for a worker, but this machine can only be a satellite: {lacking}"
        )
    changes: dict[str, Any] = {
        "fleet.role": code.role,
        "fleet.server": server,
        "fleet.credential": str(folder / CREDENTIAL),
        "fleet.ca": str(folder / TRUSTED),
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


def _find_server(drafts: Mapping[str, Settings], node: str, within_s: float) -> str:
    """Return the first of the server's addresses at which it accepts the node, trying for
    `within_s`, and print who transcribes there. Raises ServerError."""
    from appliance.fleet import find_workers

    until_s = time.monotonic() + within_s
    while True:
        for server, settings in drafts.items():
            try:
                workers, _ = find_workers(settings.fleet, node)
            except ServerError as error:
                refusal = error
            else:
                there = [f"{worker.node} ({worker.model.name})" for worker in workers]
                who = ", ".join(there) or "nobody yet"
                print(f"{server} lets {node} in; transcribing there: {who}")
                return server
        if time.monotonic() > until_s:
            raise refusal
        time.sleep(0.2)


def _reload_daemon(settings: Settings, file: Path) -> str:
    """Have the daemon read the configuration; return the outcome."""
    try:
        reload_daemon(control_sockets(settings))
    except DaemonError as error:
        if not has_systemd(file):
            return f"written; {error}"
        systemctl("restart", UNIT)
    return "written, and the daemon reads it; see `roomscribe fleet status`"
