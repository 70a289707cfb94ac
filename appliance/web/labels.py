"""What the page needs to show each setting, from the configuration's own table."""

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
    for section, entry in keys():
        if entry.metadata["label"]:
            found[f"{section}.{entry.name}"] = _describe(entry)
        if f"{section}.{entry.name}" == "mqtt.username":
            found["mqtt.password"] = PASSWORD
    return found


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
