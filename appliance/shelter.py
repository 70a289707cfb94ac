"""Where the log goes on while its disk refuses: a folder in memory, beside the spool."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from appliance import spool_folder
from appliance.config import Settings
from appliance.health import Health
from appliance.publish.stand_in import LastingDatabase
from appliance.publish.store import FILE_NAME, folder

NAME = "log"
INSTALLED = (Path("/var/lib/roomscribe"), Path("/run/roomscribe"))
"""State and runtime folder of the system's daemon."""


class Shelter:
    """The folder, for one process at a time."""

    def __init__(self, settings: Settings) -> None:
        self.path = spool_folder.of_the_log(settings) / NAME
        self._descriptor = -1

    def take(self) -> None:
        """Makes the folder, for this process alone. Raises OSError."""
        spool_folder.make(self.path)
        self._descriptor = spool_folder.lock(self.path)

    def leave(self) -> None:
        """Gives it back; it is gone when it is empty."""
        spool_folder.leave(self.path, self._descriptor)


def lasting_log(settings: Settings, health: Health) -> LastingDatabase:
    """The daemon's log, in memory while its disk refuses. Raises PublishError."""
    tell = functools.partial(health.trouble, "log")
    return LastingDatabase(folder(settings.store) / FILE_NAME, Shelter(settings), tell)


def places(settings: Settings) -> list[Path]:
    """Folders in which the daemon's stand-in may be, as seen by whoever reads the log."""
    found = [spool_folder.of_the_log(settings) / NAME]
    state, runtime = INSTALLED
    if folder(settings.store) == state and not os.environ.get("RUNTIME_DIRECTORY"):
        found.append(runtime / NAME)
    return found
