"""Show what changes, write it, and have the daemon read it."""

from __future__ import annotations

import difflib
import os
import shutil
import time
import tomllib
from contextlib import suppress
from pathlib import Path

from appliance import config
from appliance.cli.config_file import edited, replace_whole
from appliance.cli.setup.answers import Answers, Changes, Context
from appliance.cli.setup.broker import PASSWORD_FILE
from appliance.config import Settings
from appliance.control import Client
from appliance.errors import DaemonError, StoreError
from appliance.system import write_whole

BACK_S = 30.0
"""Longest wait until the daemon has read its configuration again."""


def save(context: Context, changes: Changes, answers: Answers) -> bool:
    """Show the changes, ask, write them, and reload the daemon. Return False if they are declined.

    Raises ConfigError if they contradict the rest of the file, and StoreError.
    """
    dialog, file = context.dialog, context.file
    if not changes and not answers.password:
        dialog.say("\nNothing to change: your answers are what is configured.")
        return True
    before = file.read_text(encoding="utf-8-sig") if file.exists() else ""
    after = edited(before, changes)
    config.parse(after, str(file))
    dialog.say(f"\n{file}", "bold")
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""):
        if line[:3] not in ("---", "+++") and line[:2] != "@@":
            dialog.say(line, "green" if line[0] == "+" else "red")
    if not dialog.confirm("Write it?"):
        dialog.say("Nothing was changed.")
        return False
    try:
        if answers.password:
            write_password(file.with_name(PASSWORD_FILE), answers.password)
        replace_whole(file, after)
    except OSError as error:
        raise StoreError(
            f"{file}: cannot be written: {error.strerror}; nothing was changed"
        ) from error
    clear_overlay(context.settings, changes)
    reload_daemon(context)
    return True


def write_password(file: Path, password: str) -> None:
    """Write the broker's password for root and the daemon alone. Raises OSError."""
    write_whole(file, f"{password}\n", 0o600)
    with suppress(LookupError, PermissionError):
        shutil.chown(file, group="roomscribe")
        file.chmod(0o640)


def clear_overlay(settings: Settings, changes: Changes) -> None:
    """Remove the changed keys from those set over the control socket, which would override them."""
    file = config.overlay_file(settings)
    with suppress(OSError, ValueError):
        owner, tables = file.stat(), tomllib.loads(file.read_text(encoding="utf-8"))
        for name in changes:
            section, _, key = name.partition(".")
            tables.get(section, {}).pop(key, None)
        left = {section: keys for section, keys in tables.items() if keys}
        if left:
            write_whole(file, config.as_toml(left), 0o600)
            os.chown(file, owner.st_uid, owner.st_gid)
        else:
            file.unlink()


def reload_daemon(context: Context) -> None:
    """Have the daemon read the configuration, and say whether it did."""
    try:
        with Client(context.sockets) as daemon:
            changed = daemon.ask("reload")["changed"]
            with suppress(DaemonError):  # it starts again, and ends every connection
                deadline_s = time.monotonic() + BACK_S
                while changed and time.monotonic() < deadline_s:
                    daemon.next(1.0)
    except DaemonError as error:
        context.dialog.say(f"Written. The daemon has not read it yet: {error}")
    else:
        context.dialog.say("Written, and the daemon has read it.")
