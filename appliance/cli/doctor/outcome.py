"""A check, its input and its outcome."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.cli.doctor.daemon import DaemonProcess
from appliance.config import Settings

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
CONFIGURATION, BUNDLE = "configuration", "model bundle"
"""Names of checks that checks of other modules need."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one check."""

    status: str
    """One of OK, FAILED, SKIPPED."""
    found: str
    """One line; the reason if the check was skipped."""
    fix: str = ""
    """What to do; empty unless the check failed."""


def ok(found: str) -> Outcome:
    """Return the outcome of a check that passed."""
    return Outcome(OK, found)


def failed(found: str, fix: str) -> Outcome:
    """Return the outcome of a check that failed: what is wrong, and what to do about it."""
    return Outcome(FAILED, found, fix)


def skipped(why: str) -> Outcome:
    """Return the outcome of a check that does not apply, or would disturb a running program."""
    return Outcome(SKIPPED, why)


def split_fix(message: str) -> tuple[str, str]:
    """Return what an error's message says happened, and what it says to do (may be empty).

    The second part is what follows the first sentence, or else the last semicolon.
    """
    line = message.replace("\n", "; ")
    if sentences := re.match(r"([^;]*?[^.;])\. (?=[A-Z`])(.*)", line):
        return sentences[1], sentences[2].removesuffix(".")
    found, semicolon, fix = line.rpartition("; ")
    return (found, fix) if semicolon else (line, "")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The input of every check."""

    settings: Settings
    config: Path | None = None
    """The configuration file on the command line."""
    daemon: DaemonProcess | None = None
    """The daemon that runs with this configuration."""
    root: Path = Path("/")
    """Folder with /proc, /sys, /dev and /run."""
    wrong: frozenset[str] = frozenset()
    """Sections of the configuration with a mistake; `settings` has their defaults."""
    doing: Callable[[str], None] = lambda _what: None
    """Call it with the next step, such as "loading the model": it is named if the check hangs."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's output. `look` runs in its own process and may raise anything."""

    name: str
    look: Callable[[Surroundings], Outcome]
    fix: str
    """What to do if the check hangs, or raises an error that does not say it."""
    within_s: float = 10.0
    """Seconds after which the check is stopped."""
    needs: tuple[str, ...] = ()
    """Checks that must pass, and sections of the configuration ("[mqtt]") that must be right;
    otherwise this check is skipped."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A check's name and outcome, as they are printed."""

    group: str
    name: str
    outcome: Outcome
    seconds: float
