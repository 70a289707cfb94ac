"""What the page needs to show each setting, from the configuration's own table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field
from typing import Any

from appliance.config import ADVANCED, MQTT, keys

PASSWORD = {
    "group": MQTT, "title": "Password", "help": "", "advanced": False, "blank": None,
    "kind": "password", "unit": "", "low": None, "high": None, "choices": [],
}  # fmt: skip
"""It has a file of its own and no key."""


def fields() -> dict[str, dict[str, Any]]:
    """Return each setting by section.key: its texts, and the kind, unit and limits of its key.

    `kind` is bool, int, float, str, list, table or password.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, entry in _named(shown=True):
        found[name] = _describe(entry)
        if name == "mqtt.username":
            found["mqtt.password"] = PASSWORD
    return found


def file_only() -> dict[str, str]:
    """Return a name for each key that is in the configuration file only, for messages."""
    proper = {"mqtt": "MQTT", "homeassistant": "Home Assistant"}
    found = {}
    for name, _ in _named(shown=False):
        section, key = name.split(".")
        found[name] = f"{proper.get(section, section.capitalize())}: {key.replace('_', ' ')}"
    return found


def _named(*, shown: bool) -> Iterator[tuple[str, Field[Any]]]:
    """Yield section.key of each key that is on the page, or is not."""
    for section, entry in keys():
        if bool(entry.metadata["label"]) == shown:
            yield f"{section}.{entry.name}", entry


def _describe(entry: Field[Any]) -> dict[str, Any]:
    metadata = entry.metadata
    kind = type({} if entry.default is MISSING else entry.default).__name__
    advanced = metadata["group"] in ADVANCED
    about = metadata["help"] or (metadata["description"].replace("`", "") if advanced else "")
    return {
        "group": metadata["group"],
        "title": metadata["label"],
        "help": about,
        "advanced": advanced,
        "blank": metadata["blank"],
        "kind": {"tuple": "list", "dict": "table"}.get(kind, kind),
        **{name: metadata[name] for name in ("unit", "low", "high")},
        "choices": [[one, metadata["shown"].get(one, one)] for one in metadata["choices"]],
    }
