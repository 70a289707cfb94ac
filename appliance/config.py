"""TOML to the settings tree, with every mistake reported at once.

A message names file, section and key, what was expected, what was found, and the nearest right key.
"""

from __future__ import annotations

import difflib
import re
import socket
import tomllib
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, get_type_hints

from appliance.errors import ConfigError
from appliance.settings import Settings

DEFAULT_PATH = Path("/etc/roomscribe/roomscribe.toml")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def load(path: Path | None) -> Settings:
    """Settings from `path`; from the default path, if it is there, when None; else the defaults.

    Raises ConfigError holding one message for each mistake.
    """
    if path is None:
        if not DEFAULT_PATH.exists():
            return Settings()
        path = DEFAULT_PATH
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; expected a configuration in TOML; "
            "write one, or leave --config out to run on the defaults"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    return parse(text, str(path))


def parse(text: str, origin: str) -> Settings:
    """Settings from TOML `text`; `origin` names it in messages. Raises ConfigError."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(
            f"{origin}: not valid TOML: brackets within brackets without end"
        ) from None
    except ValueError as error:  # TOMLDecodeError, and int's own for one of thousands of digits
        raise ConfigError(f"{origin}: not valid TOML: {_plain(str(error), 200)}") from None
    sections = get_type_hints(Settings)
    mistakes: list[str] = []
    values: dict[str, Any] = {}
    for section, content in table.items():
        if section not in sections:
            what = f"section [{_plain(section)}]"
            mistakes.append(_unknown(origin, what, section, sections))
        elif not isinstance(content, dict):
            mistakes.append(f"{origin}: {section} is a section: write [{section}] above its keys")
        else:
            values[section] = _section(sections[section], content, f"{origin}: {section}", mistakes)
    if not mistakes:
        settings = Settings(**values)
        mistakes.extend(_contradictions(settings, origin))
    if mistakes:
        raise ConfigError(*mistakes)
    return settings


def keys() -> Iterator[tuple[str, Field[Any]]]:
    """(section, field) of every key, in the order of the shipped file."""
    for section, kind in get_type_hints(Settings).items():
        for entry in fields(kind):
            yield section, entry


def node_name(settings: Settings) -> str:
    """The configured node, or a slug of the host name: [a-z0-9_], never empty."""
    host = socket.gethostname().split(".")[0]
    slug = re.sub(r"[^a-z0-9]+", "_", host.lower()).strip("_")
    return settings.appliance.node or slug[:64] or "roomscribe"


def _section(kind: Any, content: dict[str, Any], where: str, mistakes: list[str]) -> Any:
    """One section's dataclass; what is wrong is appended to `mistakes` and left out."""
    types = get_type_hints(kind)
    known = {entry.name: entry for entry in fields(kind)}
    right: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            mistakes.append(_unknown(where, f"key {_plain(name)}", name, known))
            continue
        wrong = _objection(known[name], types[name], value)
        if wrong:
            mistakes.append(f"{where}.{name}: {wrong}")
        else:
            right[name] = types[name](value)
    return kind(**right)


def _objection(entry: Field[Any], kind: type, value: Any) -> str:
    """What is wrong with `value`, or an empty text."""
    whole_as_number = kind is float and type(value) is int
    if type(value) is not kind and not whole_as_number:
        return f"expected {_TYPE_NAMES[kind]}, found {_shown(value)}"
    if kind is str and _CONTROL.search(value):
        return f"expected text without control characters, found {_shown(value)}"
    limits = entry.metadata
    if limits["choices"] and value not in limits["choices"]:
        near = difflib.get_close_matches(str(value), limits["choices"], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"expected one of {', '.join(limits['choices'])}, found {_shown(value)}{hint}"
    low, high, unit = limits["low"], limits["high"], limits["unit"]
    if low is not None and not low <= value <= high:
        return f"expected {low} to {high}{' ' + unit if unit else ''}, found {_shown(value)}"
    if limits["pattern"] and not re.fullmatch(limits["pattern"], value):
        return f"expected text of the form {limits['pattern']}, found {_shown(value)}"
    return ""


def _contradictions(settings: Settings, origin: str) -> Iterator[str]:
    """Values that are right by themselves and wrong together."""
    voice = settings.voice
    if voice.close_score > voice.open_score:
        yield (
            f"{origin}: voice.close_score: expected at most voice.open_score "
            f"({voice.open_score}), found {voice.close_score}"
        )
    if settings.mqtt.password_file and not settings.mqtt.username:
        yield f"{origin}: mqtt.password_file: expected mqtt.username beside it, found none"
    if not settings.mqtt.tls:
        for name in ("ca_file", "cert_file", "key_file"):
            if getattr(settings.mqtt, name):
                yield f"{origin}: mqtt.{name}: expected mqtt.tls = true beside it, found false"
    if settings.mqtt.key_file and not settings.mqtt.cert_file:
        yield f"{origin}: mqtt.key_file: expected mqtt.cert_file beside it, found none"


def _unknown(where: str, what: str, name: str, known: Any) -> str:
    """Message for a name that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    cure = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"{where}: unknown {what}; {cure}"


def _shown(value: Any) -> str:
    """`value` as TOML would show it, cut short."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except (ValueError, RecursionError):
        text = "something endless"
    return text if len(text) <= 60 else text[:57] + "..."


def _plain(text: str, most: int = 60) -> str:
    """`text` without what would break a line or confuse a terminal, cut short."""
    plain = text if text.isprintable() else repr(text)[1:-1]
    return plain if len(plain) <= most else plain[: most - 3] + "..."
