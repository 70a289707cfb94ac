"""A broker that somebody chooses over the control socket: tried before it is kept.

The password lies in a file beside the log, for the daemon's user alone, and is never told.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from appliance.config import MqttSettings
from appliance.errors import RoomscribeError
from appliance.mqtt import Probe, password
from appliance.system import Child, ChildDiedError, ChildFailedError, write_whole

WITHIN_S = 15.0
"""A broker answers or is known to be away within 5."""
CONNECT_S = 5.0
PASSWORD_FILE = "mqtt-password"
FIELDS = ("host", "port", "username", "password", "tls")


@dataclass(slots=True, eq=False)
class Trial:
    """One login at a broker, in a process of its own, for it may wait for names and addresses."""

    mqtt: MqttSettings
    """As it is to be kept, but for the password's file."""
    node: str
    password: str | None
    """None: the one that is known already."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """Other settings by key, which are kept together with the broker."""
    answer: Future[Mapping[str, Any]] = field(default_factory=Future)
    until_s: float = field(default_factory=lambda: time.monotonic() + WITHIN_S)
    _child: Child = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises OSError."""
        self._child = Child(log_in, self.mqtt, self.node, self.password)

    def result(self) -> str | None:
        """Why the broker cannot be used, "" when it can; None while that is not known."""
        try:
            said = str(self._child.receive(0.0))
        except TimeoutError:
            if time.monotonic() < self.until_s:
                return None
            said = f"no answer from {self.mqtt.host} within {WITHIN_S:.0f} s"
        except (ChildDiedError, ChildFailedError) as error:
            said = f"the login could not be tried: {error}"
        self._child.close()
        return said

    def close(self) -> None:
        """Gives it up."""
        self._child.close()

    def place_of(self, trouble: str) -> str:
        """The field that a trouble is about."""
        if "certificate" in trouble.lower() or "tls" in trouble.lower():
            return "mqtt.tls"
        if "refuses" in trouble:
            return "mqtt.password" if self.mqtt.username else "mqtt.username"
        return "mqtt.host"


def log_in(_connection: Connection, mqtt: MqttSettings, node: str, word: str | None) -> str:
    """The process: why the broker cannot be used, on one line; "" when it can."""
    if word is not None:
        memory = os.memfd_create(PASSWORD_FILE)
        os.write(memory, word.encode())
        mqtt = replace(mqtt, password_file=f"/proc/self/fd/{memory}")
    try:
        with Probe(mqtt, node, CONNECT_S):
            return ""
    except RoomscribeError as error:
        return str(error)


def is_known(mqtt: MqttSettings) -> bool:
    """True when there is a password for the broker, or a file that should have it."""
    try:
        return password(mqtt) is not None
    except RoomscribeError:
        return True


def keep_password(folder: Path, word: str) -> Path:
    """Writes the password into a new file in `folder`; the file. Raises OSError."""
    file = folder / f"{PASSWORD_FILE}-{secrets.token_hex(4)}"
    write_whole(file, f"{word}\n", 0o600)
    return file


def forget_passwords(folder: Path, but: str) -> None:
    """Deletes the files of passwords that are not used any more, all but the one at `but`."""
    for file in folder.glob(f"{PASSWORD_FILE}-*"):
        if str(file) != but:
            with contextlib.suppress(OSError):
                file.unlink()
