"""Show the changes, write them, and have the daemon read them."""

from __future__ import annotations

import os
import shutil
import tomllib
from contextlib import suppress
from pathlib import Path

from appliance import config
from appliance.cli.config_file import (
    confirm_change,
    read_text,
    reload_daemon,
    set_keys,
    write_config,
)
from appliance.cli.setup.answers import Answers, Changes, Context
from appliance.cli.setup.broker import PASSWORD_FILE
from appliance.config import Settings
from appliance.errors import DaemonError, StoreError
from appliance.system import write_whole


def save(context: Context, changes: Changes, answers: Answers) -> bool:
    """Show the changes, ask, write them, and reload the daemon. Return False if they are declined.

    Raises ConfigError if they contradict the rest of the file, and StoreError.
    """
    dialog, file = context.dialog, context.file
    if not changes and not answers.password:
        dialog.say("\nNothing to change: your answers match the configuration.")
        return True
    before = read_text(file)
    after = set_keys(before, changes)
    config.parse(after, str(file))
    dialog.say("")
    if not confirm_change(dialog, file, before, after):
        dialog.say("Nothing was changed.")
        return False
    try:
        if answers.password:
            write_password(file.with_name(PASSWORD_FILE), answers.password)
        write_config(file, after)
    except OSError as error:
        raise StoreError(
            f"{file} cannot be written: {error.strerror}. Nothing was changed."
        ) from error
    clear_overlay(context.settings, changes)
    try:
        reload_daemon(context.sockets)
    except DaemonError as error:
        dialog.say(f"The configuration is written, but the daemon did not read it: {error}")
    else:
        dialog.say("The configuration is written, and the daemon uses it.")
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
