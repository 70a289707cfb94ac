"""The input of setup's questions, and the answers, as immutable values."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.cli.dialog import Dialog
from appliance.config import MqttSettings, Settings, node_name

KEYS = {
    "node": "appliance.node",
    "area": "homeassistant.area",
    "device": "capture.device",
    "speaker": "speaker.enabled",
    "speaker_device": "speaker.device",
}
"""Answers, and the keys of the configuration that they set."""
MQTT_KEYS = ("enabled", "host", "port", "username", "password_file")
"""The keys of [mqtt] that setup changes."""

Changes = dict[str, Any]
"""Keys of the configuration (section.key) with their new values."""


@dataclass(frozen=True, slots=True)
class Context:
    """What every question is given."""

    options: argparse.Namespace
    settings: Settings
    """As they are before setup."""
    file: Path
    """The configuration that is written in the end."""
    sockets: tuple[Path, ...]
    """Where the daemon's control socket may be."""
    dialog: Dialog


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers so far; before the first question, what is configured."""

    node: str
    area: str
    """The room in Home Assistant; empty: none is suggested to it."""
    device: str
    """The microphone's name; empty: the default one."""
    mqtt: MqttSettings
    model: str
    """Name or folder of the one in use."""
    speaker: bool = False
    """True to answer on a loudspeaker."""
    speaker_device: str = ""
    """The loudspeaker's name; empty: the default one."""
    pinned: bool = False
    """True if the configuration names the model."""
    password: str = ""
    """The broker's, to be written beside the configuration; empty: it stays as it is."""

    def changes_since(self, before: "Answers") -> Changes:
        """Return the keys of the configuration in which these answers differ from `before`.

        The model is chosen as `model use` does it, and a key that overrides that is emptied.
        """
        pairs = [(key, getattr(self, name), getattr(before, name)) for name, key in KEYS.items()]
        pairs += [
            (f"mqtt.{key}", getattr(self.mqtt, key), getattr(before.mqtt, key)) for key in MQTT_KEYS
        ]
        found: Changes = {key: value for key, value, old in pairs if value != old}
        if self.model != before.model and self.pinned:
            found["model.bundle"] = ""
        return found


def configured_answers(settings: Settings, model: str) -> Answers:
    """Return the answers that change nothing; `model` is the one in use."""
    return Answers(
        node=node_name(settings),
        area=settings.homeassistant.area,
        device=settings.capture.device,
        mqtt=settings.mqtt,
        model=model,
        speaker=settings.speaker.enabled,
        speaker_device=settings.speaker.device,
        pinned=bool(settings.model.bundle),
    )
