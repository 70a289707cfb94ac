"""How commands are added to the command line, and where they find the daemon."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from appliance.config import Settings

Run = Callable[[argparse.Namespace, Settings], int]
"""Runs a command and returns its exit status. Raises RoomscribeError."""


WHAT = {"metavar": "WHAT"}
COMMANDS = {"title": "commands", "metavar": "COMMAND"}
"""How a help text shows commands."""


class Commands:
    """A level of the command line."""

    def __init__(
        self, parser: argparse.ArgumentParser, common: argparse.ArgumentParser, **options: str
    ) -> None:
        """`common` has the options of every command; `options` are those of add_subparsers."""
        self._common = common
        self._parsers = parser.add_subparsers(required=True, **options)

    def add(self, name: str, command: Run, **options: Any) -> argparse.ArgumentParser:
        """Add a command and return its parser; `options` are the parser's."""
        parser = self._parsers.add_parser(name, parents=[self._common], **options)
        parser.set_defaults(command=command, usage_error=parser.error)
        return parser

    def group(self, name: str, below: Mapping[str, str] = WHAT, **options: Any) -> "Commands":
        """Add a command that has commands of its own, and return their level."""
        return Commands(self._parsers.add_parser(name, **options), self._common, **below)


def control_sockets(settings: Settings) -> list[Path]:
    """Return where the daemon's control socket may be."""
    from appliance.control import SOCKET_NAME
    from appliance.store import runtime_folders

    return [folder / SOCKET_NAME for folder in runtime_folders(settings)]
