"""Commands of the control socket that read and change the configuration.

Changed settings go into a file beside the log, which takes precedence over the configuration file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from appliance import config
from appliance.capture import is_stream, public_name
from appliance.config import MqttSettings, Reading, Settings
from appliance.control import ControlError
from appliance.daemon.command_group import CommandGroup, bad_request, save
from appliance.errors import ModelError, RoomscribeError
from appliance.infer import transcribed_elsewhere
from appliance.model import chosen_model, find_bundle, installed_bundles, library
from appliance.mqtt import read_password
from appliance.system import shorten

Overlay = dict[str, dict[str, Any]]
"""Changed settings, by section and key."""
ReadConfiguration = Callable[[Mapping[str, Mapping[str, Any]] | None], Reading]
"""Reads the configuration with this overlay; None: with the one that is saved."""

LIVE = (
    "appliance.node", "capture.device", "capture.silence_s", "voice.", "segmenter.",
    "model.bundle", "encoder.threads", "decoder.threads", "decoder.language", "gates.",
    "store.retention_days", "store.retention_mb", "mqtt.enabled", "mqtt.partials",
    "homeassistant.enabled", "homeassistant.area", "journal.", "vocabulary.words",
    "vocabulary.boost", "vocabulary.replace",
)  # fmt: skip
"""Keys, and sections whose every key, may be set over the socket: none of them names a file or a
host, or lets anyone in. They take effect with the next reload."""
CHANGES_AT_ONCE = 100
LOGIN_FIELDS = ("host", "port", "username", "password", "tls")
"""What the login at a broker consists of; the password is in a file of its own."""


def live_keys() -> list[str]:
    """Return the keys that may be set over the socket, as section.key."""
    every = list(config.keys())
    names = (f"{section}.{entry.name}" for section, entry in every)
    sections = tuple(one for one in LIVE if one.endswith("."))
    return [name for name in names if name in LIVE or name.startswith(sections)]


@dataclass(frozen=True, slots=True)
class Change:
    """Settings that a client wants to change, and the configuration without and with them."""

    wanted: Mapping[str, Any]
    """Values by key."""
    overlay: Overlay
    """With the wanted values in it."""
    before: Reading
    after: Reading

    @property
    def mistakes(self) -> dict[str, str]:
        """What would be wrong with the configuration, by key."""
        if self.before.mistakes:
            return {}
        first, *_ = self.wanted
        found = {
            next((name for name in self.wanted if name in mistake.keys), first): shorten(
                mistake.text, 400
            )
            for mistake in self.after.mistakes
        }
        return found or _language_mistake(self.wanted, self.after.settings)


class SettingCommands(CommandGroup):
    """`settings`, `configure` and `reload`."""

    def __init__(
        self, settings: Settings, read: ReadConfiguration, reload: Callable[[], object]
    ) -> None:
        """`settings` are in use; `reload` requests a reload and does not wait for it."""
        self.settings, self.read, self._reload = settings, read, reload
        self._chosen = chosen_model()
        self.file = config.overlay_file(settings)

    def propose(self, wanted: Mapping[str, Any], before: Reading) -> Change:
        """Return a change of `before`, the configuration as it is saved; None forgets a value."""
        overlay: Overlay = {}
        saved = {
            name: _value(name, before.settings)
            for name, origin in before.origins.items()
            if origin == str(self.file)
        }
        for name, value in (saved | dict(wanted)).items():
            section, _, key = name.partition(".")
            if value is not None:
                overlay.setdefault(section, {})[key] = value
        return Change(wanted, overlay, before, self.read(overlay))

    def save(self, change: Change) -> dict[str, Any]:
        """Save a change and request a reload; return the settings that differ now, by key.

        Raises StoreError.
        """
        save(self.file, config.as_toml(change.overlay), "the settings")
        self._reload()
        return {
            name: _shown(name, change.after)
            for name in change.wanted
            if _value(name, change.before.settings) != _value(name, change.after.settings)
        }

    def _answer_settings(self) -> dict[str, Any]:
        reading = self.read(None)
        mqtt = reading.settings.mqtt
        login = {name: getattr(mqtt, name) for name in LOGIN_FIELDS if name != "password"}
        return {
            "settings": {name: _shown(name, reading) for name in live_keys()},
            "broker": {**login, "password": bool(mqtt.username) and has_password(mqtt)},
        }

    def _answer_configure(self, set: Any) -> dict[str, Any]:
        wanted = check_settings(set)
        if mistakes := find_mistakes(wanted):
            return {"mistakes": mistakes}
        change = self.propose(wanted, self.read(None))
        return {"mistakes": change.mistakes} if change.mistakes else {"changed": self.save(change)}

    def _answer_reload(self) -> dict[str, Any]:
        reading = self.read(None)
        if reading.mistakes:
            mistakes = [shorten(mistake.text, 400) for mistake in reading.mistakes[:50]]
            raise ControlError("refused", mistakes[0], mistakes=mistakes)
        self._reload()
        by_choice = not reading.settings.model.bundle and chosen_model() != self._chosen
        return {"changed": by_choice or reading.settings != self.settings}


def has_password(mqtt: MqttSettings) -> bool:
    """Return True if there is a password for the broker, or should be: its file is unreadable."""
    try:
        return read_password(mqtt) is not None
    except RoomscribeError:
        return True


def check_settings(wanted: Any) -> dict[str, Any]:
    """Return `wanted` if it can be settings by key. Raises ControlError."""
    if not isinstance(wanted, dict) or not 0 < len(wanted) <= CHANGES_AT_ONCE:
        raise bad_request('set: expected keys with values, such as {"capture.device": "USB"}')
    return wanted


def find_mistakes(wanted: Mapping[str, Any]) -> dict[str, str]:
    """Return why settings may not have these values, by key."""
    found = {shorten(name): _mistake(name, value) for name, value in wanted.items()}
    return {name: mistake for name, mistake in found.items() if mistake}


def _mistake(name: str, value: Any) -> str:
    """Return why a key may not have this value; "" if it may."""
    if found := config.explain_value(name, value):
        return found
    if name not in live_keys():
        return "may not be set here: write it into roomscribe.toml, or run `sudo roomscribe setup`"
    if isinstance(value, str) and not is_text(value):
        return "expected text, found half a letter"
    if name == "capture.device" and isinstance(value, str) and is_stream(value):
        return "expected a sound card: write a stream into roomscribe.toml"
    return _mistaken_model(value) if name == "model.bundle" and value else ""


def _mistaken_model(value: str) -> str:
    """Return why this is no installed model; "" if it is."""
    if "/" in value:
        return "expected the name of an installed model, found a path"
    installed = installed_bundles()
    if value not in installed:
        return f"expected an installed model ({', '.join(installed)}), found {shorten(value)}"
    return ""


def _language_mistake(wanted: Mapping[str, Any], settings: Settings) -> dict[str, str]:
    """Return why the model cannot have the language, if one of them is `wanted`, by key."""
    language = settings.decoder.language
    if not language or transcribed_elsewhere(settings):
        return {}
    try:
        folder = find_bundle(settings.model.bundle)
        found = library.overview(folder)
    except ModelError:
        return {}
    known = found.languages
    if language == found.language or (len(known) > 1 and language in ("auto", *known)):
        return {}
    if "decoder.language" in wanted:
        codes = ", ".join(known[:8]) + (" ..." if len(known) > 8 else "")
        why = f"expected a language of the model {folder.name} ({codes}), found {language}"
        return {"decoder.language": why}
    spoken = "several languages" if language == "auto" else f"the chosen language, {language}"
    why = f"expected a model that knows {spoken}, found {folder.name}"
    return {"model.bundle": why} if "model.bundle" in wanted else {}


def is_text(text: str) -> bool:
    """Return True if UTF-8 can hold the text: it has no half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode() == text


def _value(name: str, settings: Settings) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(settings, section), key)


def _shown(name: str, reading: Reading) -> dict[str, Any]:
    """Return a key's value and the file that it comes from; null: it is the default.

    A stream is shown without its password.
    """
    value = _value(name, reading.settings)
    if name == "capture.device":
        value = public_name(value)
    return {"value": value, "from": reading.origins.get(name)}
