"""The control socket's command `broker`: it tries a login, and saves it if the broker accepts it.

The password is in a file beside the log, readable by the daemon's user only, and never sent back.
"""

import contextlib
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from appliance import config
from appliance.config import MqttSettings, node_name
from appliance.control import ControlError
from appliance.daemon.command_group import CommandGroup, save
from appliance.daemon.setting_commands import (
    SettingCommands,
    check_settings,
    find_mistakes,
    has_password,
    is_text,
)
from appliance.errors import BrokerError, ConfigError, RoomscribeError
from appliance.mqtt import BrokerProbe
from appliance.system import BackgroundTask, shorten

TRIAL_S = 15.0
"""Longest trial. A broker answers, or is known to be out of reach, within CONNECT_S."""
CONNECT_S = 5.0
PASSWORD_FILE = "mqtt-password"
PASSWORD_LETTERS = 1000


@dataclass(slots=True, eq=False)
class Trial:
    """One login at a broker, which nothing waits for: looking up a name may hang."""

    mqtt: MqttSettings
    """What to save if it works, except the password's file."""
    password: str | None
    """None: the one that is saved already."""
    other: Mapping[str, Any]
    """Other settings, by key, to save together with the login."""
    task: BackgroundTask
    """Runs `log_in`."""
    answer: Future[Mapping[str, Any]] = field(default_factory=Future)
    until_s: float = field(default_factory=lambda: time.monotonic() + TRIAL_S)

    def mistakes(self) -> dict[str, str] | None:
        """Return why the broker cannot be used, by key; None while it is not known."""
        if self.task.is_alive():
            if time.monotonic() < self.until_s:
                return None
            return {"mqtt.host": f"{self.mqtt.host} did not answer within {TRIAL_S:.0f} s"}
        if self.task.error:
            return {"mqtt.host": f"the login could not be tried: {self.task.error}"}
        found: dict[str, str] = self.task.outcome
        return found


def log_in(mqtt: MqttSettings, node: str, password: str | None) -> dict[str, str]:
    """Return why the broker cannot be used, by key."""
    try:
        with BrokerProbe(mqtt, node, CONNECT_S, password=password):
            return {}
    except BrokerError as error:
        login = "mqtt.password" if mqtt.username else "mqtt.username"
        keys = {BrokerError.LOGIN: login, BrokerError.TLS: "mqtt.tls"}
        return {keys.get(error.kind, "mqtt.host"): str(error)}
    except ConfigError as error:  # a file with a certificate or the password
        return {"mqtt.tls" if mqtt.tls else "mqtt.password": str(error)}
    except RoomscribeError as error:
        return {"mqtt.host": str(error)}


class BrokerCommands(CommandGroup):
    """`broker`."""

    def __init__(self, settings: SettingCommands) -> None:
        self._settings = settings
        self._trial: Trial | None = None

    def poll(self) -> None:
        """Answer if the trial is over."""
        if self._trial and (mistakes := self._trial.mistakes()) is not None:
            trial, self._trial = self._trial, None
            try:
                trial.answer.set_result(self._save(trial, mistakes))
            except RoomscribeError as error:
                trial.answer.set_exception(error)

    def _answer_broker(
        self, host: Any, port: Any, username: Any, *, password: Any, tls: Any, set: Any
    ) -> Future[Mapping[str, Any]] | dict[str, Any]:
        login = {"host": host, "port": port, "username": username, "tls": tls}
        other = {} if set is None else check_settings(set)
        before = self._settings.read(None)
        current = before.settings.mqtt
        for name, value in login.items():
            login[name] = getattr(current, name) if value is None else value
        if mistakes := _login_mistakes(login, password) | find_mistakes(other):
            return {"mistakes": mistakes}
        same = all(login[key] == getattr(current, key) for key in ("host", "port", "username"))
        is_elsewhere = login["username"] and (not same or login["tls"] < current.tls)
        if password is None and is_elsewhere and has_password(current):
            # the saved password is sent to no other broker, and to the same one not less safely
            why = "Enter the password again, because the broker or its user has changed."
            return {"mistakes": {"mqtt.password": why}}
        if not login["username"]:
            login["password_file"] = ""
        wanted = {"mqtt.enabled": True, **{f"mqtt.{key}": login[key] for key in login}, **other}
        if mistakes := self._settings.propose(wanted, before).mistakes:
            return {"mistakes": mistakes}
        if self._trial:
            raise ControlError("too_many", "another broker is being tried; try again later")
        node, mqtt = node_name(self._settings.settings), replace(current, **login)
        task = BackgroundTask(lambda: log_in(mqtt, node, password), "broker trial")
        self._trial = Trial(mqtt, password, other, task)
        return self._trial.answer

    def _save(self, trial: Trial, mistakes: dict[str, str]) -> dict[str, Any]:
        """Save a login that works, and return the command's answer. Raises StoreError."""
        if mistakes:
            return {"mistakes": {name: shorten(text, 400) for name, text in mistakes.items()}}
        folder, mqtt = self._settings.file.parent, trial.mqtt
        if trial.password is not None:
            file = folder / f"{PASSWORD_FILE}-{secrets.token_hex(4)}"
            save(file, f"{trial.password}\n", "the password")
            mqtt = replace(mqtt, password_file=str(file))
        kept = ("host", "port", "username", "tls", "password_file")
        login = {f"mqtt.{key}": getattr(mqtt, key) for key in kept}
        wanted = {"mqtt.enabled": True, **login, **trial.other}
        changed = self._settings.save(self._settings.propose(wanted, self._settings.read(None)))
        for file in folder.glob(f"{PASSWORD_FILE}-*"):
            if str(file) != mqtt.password_file:
                with contextlib.suppress(OSError):
                    file.unlink()
        return {"changed": sorted(changed)}


def _login_mistakes(login: Mapping[str, Any], password: Any) -> dict[str, str]:
    """Return what is wrong with a login before it is tried, by key."""
    found = {f"mqtt.{key}": config.explain_value(f"mqtt.{key}", login[key]) for key in login}
    if not (password is None or (isinstance(password, str) and _is_password(password))):
        found["mqtt.password"] = f"expected a line of 1 to {PASSWORD_LETTERS} letters"
    elif password is not None and not login["username"]:
        found["mqtt.username"] = "expected a user name beside the password, found none"
    return {name: mistake for name, mistake in found.items() if mistake}


def _is_password(text: str) -> bool:
    """Return True for a password that fits on one line of a file."""
    return 0 < len(text) <= PASSWORD_LETTERS and text.isprintable() and is_text(text)
