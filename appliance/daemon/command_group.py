"""Commands of the control socket on one topic: their base class, and how arguments are checked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from appliance.control import Command, ControlError
from appliance.mqtt import events
from appliance.system import shorten


class CommandGroup:
    """Commands on one topic, by name. Used by the control socket's thread alone."""

    commands: Mapping[str, Command]

    def poll(self) -> None:
        """Complete the late answers that are due. Called at least once a second until then."""

    def close(self) -> None:
        """Give up what is under way."""


def take_arguments(request: Mapping[str, Any], *names: str) -> list[Any]:
    """Return the arguments of these names, None for a missing one.

    Raises ControlError for an argument of another name.
    """
    if unknown := request.keys() - set(names):
        known = ", ".join(names) or "none"
        raise bad_request(f"unknown argument {shorten(min(unknown))}; expected {known}")
    return [request.get(name) for name in names]


def parse_time(name: str, text: object) -> datetime | None:
    """Return a time with its zone as UTC; None for None. Raises ControlError."""
    try:
        return None if text is None else events.parse_time(text)
    except ValueError as error:
        raise bad_request(f"{name}: {error}") from None


def parse_integer(name: str, value: object, low: int, high: int, default: int) -> int:
    """Return a whole number of `low` to `high`; `default` for None. Raises ControlError."""
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise bad_request(f"{name}: expected a whole number of {low} to {high}")
    return value


def bad_request(message: str) -> ControlError:
    """Return the error for wrong arguments."""
    return ControlError("bad_request", message)


def unavailable(message: str) -> ControlError:
    """Return the error for a command that does not work now."""
    return ControlError("unavailable", shorten(message, 400))
