"""Change the configuration: set keys, show the difference, ask, write, have the daemon read it.

Comments, order, owner and mode of the file stay as they are.
"""

import difflib
import json
import os
import re
import subprocess
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from appliance.cli.dialog import Dialog
from appliance.cli.terminal import BOLD, GREEN, RED
from appliance.control import ControlClient
from appliance.errors import DaemonError, StoreError
from appliance.system import write_whole

RESTART_S = 30.0
"""Seconds that a daemon may take to restart after a reload."""


def read_text(file: Path) -> str:
    """Return the text of a configuration; empty if there is none. Raises StoreError."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{file}: cannot be read: {error}; check the file and its disk") from error


@contextmanager
def must_write(path: Path, fix: str = "") -> Iterator[None]:
    """Turn an OSError into a StoreError of one line, with the `fix`: by default sudo if it is not
    permitted, else the disk."""
    try:
        yield
    except OSError as error:
        usual = "run this with sudo" if isinstance(error, PermissionError) else "see its disk"
        reason = f"{path}: cannot be written: {error.strerror}"
        raise StoreError(f"{reason}; {fix or f'{usual}, try again'}") from error


def set_keys(text: str, changes: Mapping[str, Any]) -> str:
    """Return the TOML `text` with these keys (section.key) set, and everything else as it was.

    A key goes where the file shows it commented out, else to the end of its section.
    """
    import tomlkit

    for name, value in changes.items():
        section, _, key = name.partition(".")
        shown = json.dumps(value, ensure_ascii=False)
        document = tomlkit.parse(text)
        table = document.get(section)
        if table is not None and key in table:
            table[key] = value
            text = tomlkit.dumps(document)
            continue
        body = re.search(rf"(?ms)^\[{section}\][^\n]*\n(.*?)(?=^\s*\[|\Z)", text)
        line = body and re.search(rf"(?m)^#\s?{key}\s*=.*$", body[1])
        if body and line:
            start, end = body.start(1) + line.start(), body.start(1) + line.end()
            candidate = f"{text[:start]}{key} = {shown}{text[end:]}"
            if _sets(candidate, section, key, value):
                text = candidate
                continue
        if table is None:
            document[section] = table = tomlkit.table()
        table[key] = value
        text = tomlkit.dumps(document)
    return text


def _sets(text: str, section: str, key: str, value: Any) -> bool:
    """Return True if `text` is TOML that sets the key to `value`."""
    with suppress(ValueError):
        return bool(tomllib.loads(text).get(section, {}).get(key) == value)
    return False


def confirm_change(dialog: Dialog, file: Path, before: str, after: str) -> bool:
    """Show how `after` differs from `before` and return whether the user wants to write it."""
    dialog.say(f"{file}", BOLD)
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""):
        if line[:3] not in ("---", "+++") and line[:2] != "@@":
            dialog.say(line, GREEN if line[0] == "+" else RED)
    return dialog.confirm("Write it?")


def write_config(file: Path, text: str) -> None:
    """Write the file whole, with the owner and mode that it had. Raises OSError."""
    real = Path(os.path.realpath(file))
    found = real.stat() if real.exists() else None
    write_whole(real, text, found.st_mode & 0o7777 if found else 0o644)
    if found:
        with suppress(PermissionError):
            os.chown(real, found.st_uid, found.st_gid)


def reload_daemon(sockets: Sequence[Path]) -> None:
    """Have the daemon read its configuration, and wait until it has restarted what changed.

    Raises DaemonError if it does not run or refuses.
    """
    with ControlClient(sockets) as daemon:
        if not daemon.call("reload")["changed"]:
            return
        deadline_s = time.monotonic() + RESTART_S
        with suppress(DaemonError):  # a restart ends every connection
            while time.monotonic() < deadline_s:
                daemon.next_event(1.0)
    with suppress(DaemonError):  # what it had has stopped, too, when it answers again
        connect(sockets, "state", within_s=deadline_s - time.monotonic()).close()


def connect(sockets: Sequence[Path], *events: str, within_s: float = 0.0) -> ControlClient:
    """Return the daemon, subscribed to these events.

    While the daemon starts again it may accept a connection and end it at once: it is tried again
    for `within_s`. Raises DaemonError.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        daemon = None
        try:
            daemon = ControlClient(sockets)
            daemon.subscribe(*events)
            return daemon
        except DaemonError:
            if daemon:
                daemon.close()
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


def systemctl(*arguments: str) -> None:
    """Run systemctl. Raises StoreError with its first line of output."""
    command = ["systemctl", *arguments]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
        return
    except OSError as error:
        problem = error.strerror or str(error)
    except subprocess.CalledProcessError as error:
        problem = next(iter(error.stderr.strip().splitlines()), f"status {error.returncode}")
    raise StoreError(f"systemctl {' '.join(arguments)} failed: {problem}. Run this with sudo.")
