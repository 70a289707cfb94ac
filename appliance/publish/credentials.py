"""Secrets of the broker: from files only, never from the configuration or the environment."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.errors import ConfigError
from appliance.settings import MqttSettings

PASSWORD_CREDENTIAL = "roomscribe.mqtt-password"
"""Its name among systemd's credentials."""


def password(settings: MqttSettings) -> str | None:
    """The broker's password: of mqtt.password_file, else of systemd's credential, else None.

    A line end behind it does not belong to it. Raises ConfigError when the file that was asked for
    cannot be read or is empty.
    """
    if settings.password_file:
        return _read(Path(settings.password_file).expanduser(), "mqtt.password_file")
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if folder and (Path(folder) / PASSWORD_CREDENTIAL).exists():
        return _read(Path(folder) / PASSWORD_CREDENTIAL, "systemd credential")
    return None


def _read(path: Path, key: str) -> str:
    cure = "write the password into it, readable for this user alone, or leave the key out"
    try:
        text = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "no UTF-8 text"
        raise ConfigError(
            f"{key}: expected a file holding the broker's password, found {path}: {found}; {cure}"
        ) from None
    if not text:
        raise ConfigError(
            f"{key}: expected the broker's password in {path}, found it empty; {cure}"
        )
    return text
