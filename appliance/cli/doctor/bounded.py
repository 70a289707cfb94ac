"""A check in a process of its own: it may hang, crash or be killed, and the doctor goes on.

A forked process, since a library that hangs in C cannot be stopped from within, and since what a
check opens is closed when it ends, however it ends. The doctor itself loads no library that could
not be forked.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from appliance.cli.doctor.outcome import Check, Outcome, Surroundings, failed
from appliance.errors import RoomscribeError
from appliance.system import Child, ChildDiedError, one_line

LAST_LETTERS = 200
"""So many are shown of what a library printed before it ended the process."""


def look(check: Check, around: Surroundings) -> Outcome:
    """The check's outcome, at the latest `check.within_s` (and a moment) from now."""
    deadline_s = time.monotonic() + check.within_s
    during = ""
    with Child(_look, check, around, start="fork") as child:
        try:
            while True:
                message: Outcome | str = child.receive(deadline_s - time.monotonic())
                if isinstance(message, Outcome):
                    return message
                during = f" while {message}"
        except TimeoutError:
            return failed(f"no answer after {check.within_s:g} s{during}", check.cure)
        except ChildDiedError as error:
            how = error.how if error.number else "its process ending"
            last = [line for line in error.printed.splitlines() if line.strip()][-1:]
            said = "".join(f": {' '.join(line.split())[-LAST_LETTERS:]}" for line in last)
            return failed(f"the check was ended by {how}{during}{said}", check.cure)


def of_error(error: RoomscribeError, cure: str) -> Outcome:
    """An expected error's line: what it says to do, behind its last semicolon, is the cure."""
    found, semicolon, own_cure = str(error).replace("\n", "; ").rpartition("; ")
    return failed(found, own_cure) if semicolon else failed(own_cure, cure)


def _look(connection: Connection, check: Check, around: Surroundings) -> Outcome:
    """The child: sends what it is about to do; its outcome."""
    try:
        return check.look(replace(around, doing=connection.send))
    except RoomscribeError as error:
        return of_error(error, check.cure)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        found = f"unexpected {type(error).__name__}: {one_line(error)} ({where})"
        return failed(found, check.cure)
