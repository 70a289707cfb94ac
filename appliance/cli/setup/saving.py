"""Show the changes, write them, and have the daemon read them."""

import argparse
import os
import shutil
import tomllib
from contextlib import suppress
from pathlib import Path

from appliance import config
from appliance.cli import model as models, mqtt
from appliance.cli.config_file import (
    confirm_change,
    must_write,
    read_text,
    reload_daemon,
    set_keys,
    write_config,
)
from appliance.cli.setup.answers import Answers, Changes, Context
from appliance.cli.setup.broker import PASSWORD_FILE
from appliance.cli.terminal import GREEN
from appliance.config import Settings
from appliance.errors import DaemonError, RoomscribeError
from appliance.system import write_whole


def save(context: Context, before: Answers, answers: Answers) -> bool:
    """Show the changes, ask, write them, and reload the daemon. Return False if they are declined.

    Raises ConfigError if they contradict the rest of the file, ModelError and StoreError.
    """
    dialog, file = context.dialog, context.file
    changes, model = answers.changes_since(before), answers.model
    model = "" if model == before.model else model
    if not changes and not answers.password and not model:
        dialog.say("\nNothing to change: your answers match the configuration.")
        return True
    text = read_text(file)
    after = set_keys(text, changes)
    config.parse(after, str(file))
    dialog.say("")
    if model:
        dialog.say(f"The model: {model} instead of {before.model}", GREEN)
    agreed = (
        confirm_change(dialog, file, text, after) if text != after else dialog.confirm("Use it?")
    )
    if not agreed:
        dialog.say("Nothing was changed.")
        return False
    write_answers(file, after, answers.password)
    if model:
        models.choose_model(model)
    clear_overlay(context.settings, changes)
    try:
        reload_daemon(context.sockets)
    except DaemonError as error:
        dialog.say(f"The answers are written, but the daemon did not read them: {error}")
    else:
        dialog.say("The answers are written, and the daemon uses them.")
        if answers.node != before.node and before.mqtt.enabled:
            forget_former(context, before.node)
    return True


def forget_former(context: Context, node: str) -> None:
    """Clear what the broker keeps of the room under its former name, or say how."""
    options = argparse.Namespace(config=context.file, node=node)
    try:
        mqtt.forget_appliance(options, context.settings)
    except RoomscribeError as error:
        context.dialog.say(
            f"The broker may still show {node}, the former name ({error}). "
            f"`sudo roomscribe mqtt forget --node {node}` clears it."
        )


def write_answers(file: Path, text: str, password: str) -> None:
    """Write the configuration, and the broker's password if there is one. Raises StoreError."""
    with must_write(file):
        if password:
            write_password(file.with_name(PASSWORD_FILE), password)
        if text != read_text(file):
            write_config(file, text)


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
