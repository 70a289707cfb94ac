"""The configuration of a Home Assistant app, made from the options that its users see.

The supervisor writes the options into options.json and tells its apps the broker
(developers.home-assistant.io/docs/apps/communication). All other keys come from /config/
roomscribe.toml, if the user has put one into the app's folder.
"""

import json
import logging
import os
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from appliance.cli.config_file import read_text, set_keys
from appliance.errors import ConfigError
from appliance.system import write_whole

log = logging.getLogger("roomscribe.container")

KEYS = {
    "node": "appliance.node",
    "area": "homeassistant.area",
    "microphone": "capture.device",
    "words": "vocabulary.words",
    "assist_phrase": "assist.phrase",
    "partials": "mqtt.partials",
    "retention_days": "store.retention_days",
    "wyoming": "wyoming.enabled",
    "satellite": "wyoming.satellite",
    "log_level": "journal.level",
    "mqtt_host": "mqtt.host",
    "mqtt_port": "mqtt.port",
    "mqtt_username": "mqtt.username",
}
"""The key of roomscribe.toml that each option sets. home_names and mqtt_password: see below."""
SUPERVISOR = "http://supervisor"
INGRESS = "172.30.32.2"
"""Address from which the supervisor forwards its users' requests."""
PORT = 8099
OWN_FILE = Path("/config/roomscribe.toml")
ANSWER_S = 10.0


def write_app_config(
    folder: Path,
    private: Path,
    state: Path,
    supervisor: str = SUPERVISOR,
    own_file: Path = OWN_FILE,
) -> Path:
    """Return a configuration in `private`, made from the options in `folder`.

    Secrets are written into files beside it. Raises ConfigError, StoreError.
    """
    options = _read_options(folder / "options.json")
    token = os.environ.get("SUPERVISOR_TOKEN", "")
    given = {name: value for name, value in options.items() if value not in (None, "", [])}
    changes = {KEYS[name]: given[name] for name in KEYS if name in given}
    changes |= {
        "web.enabled": True,
        "web.listen": "0.0.0.0",
        "web.port": PORT,
        "web.ingress": INGRESS,
        "web.path": str(state / "page"),
    }
    if options.get("satellite"):
        changes |= {"speaker.enabled": True, "speaker.device": "pulse:"}
    password, own = options.get("mqtt_password"), read_text(own_file)
    if "mqtt.host" not in changes and not _names_broker(own):
        broker, password = _find_broker(supervisor, token)
        changes |= broker
    if password and changes.get("mqtt.username"):
        changes["mqtt.password_file"] = _write_secret(private / "mqtt-password", str(password))
    if token and options.get("home_names", True):
        changes["homeassistant.url"] = f"{supervisor}/core"
        changes["homeassistant.token_file"] = _write_secret(private / "token", token)
    try:
        text = set_keys(own, changes)
    except ValueError as error:
        raise ConfigError(f"{own_file}: not valid TOML: {error}") from error
    file = private / "roomscribe.toml"
    write_whole(file, text, 0o600)
    return file


def _read_options(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: expected the options of the app, found {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: expected a JSON object, found another value")
    return found


def _names_broker(text: str) -> bool:
    """Return True if a configuration sets mqtt.host; False also if it is no TOML."""
    try:
        return bool(tomllib.loads(text)["mqtt"]["host"])
    except (LookupError, TypeError, ValueError):
        return False


def _find_broker(supervisor: str, token: str) -> tuple[dict[str, Any], str]:
    """Return the keys for the supervisor's MQTT service, and its password."""
    request = urllib.request.Request(
        f"{supervisor}/services/mqtt", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            found = json.load(answer)["data"]
            return {
                "mqtt.host": str(found["host"]),
                "mqtt.port": int(found["port"]),
                "mqtt.tls": bool(found.get("ssl")),
                "mqtt.username": str(found.get("username") or ""),
            }, str(found.get("password") or "")
    except urllib.error.HTTPError as error:
        error.close()
        why = "Home Assistant has no broker"
    except (OSError, ValueError, LookupError, TypeError) as error:
        why = f"the supervisor does not say where the broker is ({error})"
    log.warning(
        "%s: sentences are only in the log. Install the app Mosquitto broker, or enter another "
        "broker in the options; then restart this app.",
        why,
    )
    return {"mqtt.enabled": False}, ""


def _write_secret(file: Path, text: str) -> str:
    write_whole(file, text + "\n", 0o600)
    return str(file)
