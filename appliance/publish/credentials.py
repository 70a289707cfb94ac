"""Secrets of the broker: from files only, never from the configuration or the environment."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.config import MqttSettings
from appliance.errors import ConfigError

PASSWORD_CREDENTIAL = "roomscribe.mqtt-password"
"""Its name among systemd's credentials."""
MOST_BYTES = 4096
"""A longer file is not one that holds a password."""
KEY_CREDENTIAL = "roomscribe.mqtt-key"
"""The same, of the private key behind our certificate."""


def password(settings: MqttSettings) -> str | None:
    """The broker's password: of mqtt.password_file, else of systemd's credential, else None.

    A line end behind it does not belong to it. Raises ConfigError when the file that was asked for
    cannot be read or is empty.
    """
    if settings.password_file:
        return _read(Path(settings.password_file), "mqtt.password_file")
    credential = _credential(PASSWORD_CREDENTIAL)
    return _read(credential, "systemd credential") if credential else None


def key_file() -> str | None:
    """Path of the private key among systemd's credentials, if it is there."""
    credential = _credential(KEY_CREDENTIAL)
    return str(credential) if credential else None


def _credential(name: str) -> Path | None:
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(folder) / name if folder else None
    return path if path and path.exists() else None


def _read(path: Path, key: str) -> str:
    """The secret in a file of a few hundred bytes; never shown. Raises ConfigError."""
    cure = "write the password into it, readable for this user alone, or leave the key out"
    try:
        with path.expanduser().open("rb") as opened:
            text = opened.read(MOST_BYTES + 1).decode("utf-8").rstrip("\r\n")
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        no_text = isinstance(error, UnicodeDecodeError)
        found = "no UTF-8 text" if no_text else getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{key}: expected a file holding the broker's password, found {path}: {found}; {cure}"
        ) from None
    if len(text) > MOST_BYTES or "\n" in text:
        raise ConfigError(f"{key}: expected one line in {path}, found more; {cure}")
    if not text:
        raise ConfigError(
            f"{key}: expected the broker's password in {path}, found it empty; {cure}"
        )
    return text
