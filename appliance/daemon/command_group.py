"""Commands of the control socket on one topic: their base class, and how arguments are checked."""

import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from appliance.control import Command, ControlError
from appliance.errors import StoreError
from appliance.mqtt import events
from appliance.system import shorten, write_whole

PREFIX = "_answer_"


class CommandGroup:
    """Commands on one topic. A method `_answer_mute` answers the command `mute`, whose arguments
    are its parameters: None for a missing one without a default. One thread, the control socket's.
    """

    @property
    def commands(self) -> dict[str, Command]:
        """The commands by name."""
        return commands_of(self)

    def poll(self) -> None:
        """Complete the late answers that are due. Called at least once a second until then."""

    def close(self) -> None:
        """Give up what is under way."""


def commands_of(owner: object) -> dict[str, Command]:
    """Return the commands that an object answers, by name; see `CommandGroup`."""
    names = [name for name in dir(owner) if name.startswith(PREFIX)]
    return {name.removeprefix(PREFIX): partial(_call, getattr(owner, name)) for name in names}


def _call(method: Callable[..., Any], request: Mapping[str, Any]) -> Any:
    """Return what a command answers to a request."""
    known = inspect.signature(method).parameters
    given = zip(known.values(), take_arguments(request, *known), strict=True)
    is_given = {name: name in request or one.default is one.empty for name, one in known.items()}
    return method(**{one.name: value for one, value in given if is_given[one.name]})


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


def answer_late(future: Future[Mapping[str, Any]], answer: Mapping[str, Any]) -> None:
    """Give the answer, unless nobody waits for it any more. Any thread."""
    if future.set_running_or_notify_cancel():
        future.set_result(answer)


def save(file: Path, text: str, what: str) -> None:
    """Write a file for this user alone, whole or not at all. Raises StoreError."""
    try:
        write_whole(file, text, 0o600)
    except OSError as error:
        raise StoreError(f"{file}: cannot save {what}: {error.strerror}; check the disk") from error


def bad_request(message: str) -> ControlError:
    """Return the error for wrong arguments."""
    return ControlError("bad_request", message)


def unavailable(message: str) -> ControlError:
    """Return the error for a command that does not work now."""
    return ControlError("unavailable", shorten(message, 400))
