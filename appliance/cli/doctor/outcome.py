"""What a check is, what it is given, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.cli.doctor.daemon import Daemon
from appliance.config import Settings

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
CONFIGURATION, BUNDLE, BROKER = "configuration", "model bundle", "broker"
"""Names of checks on which those of other modules stand."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one check ended."""

    status: str
    """One of OK, FAILED, SKIPPED."""
    found: str
    """One line; of a skipped check why it is."""
    fix: str = ""
    """What to do; empty unless it failed."""


def ok(found: str) -> Outcome:
    """All is well; `found` says what is there."""
    return Outcome(OK, found)


def failed(found: str, fix: str) -> Outcome:
    """Something is wrong, and what to do about it."""
    return Outcome(FAILED, found, fix)


def skipped(why: str) -> Outcome:
    """There is nothing to look at, or looking would disturb somebody."""
    return Outcome(SKIPPED, why)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every check is given."""

    settings: Settings
    config: Path | None = None
    """The configuration's file as the command line names it."""
    daemon: Daemon | None = None
    """The daemon that runs on this configuration."""
    root: Path = Path("/")
    """Where /proc, /sys, /dev and /run are looked for."""
    recordings: Path | None = None
    """Folder of recordings on which the NPU is compared with the CPU, too."""
    wrong: frozenset[str] = frozenset()
    """Sections of the configuration in which there is a mistake; `settings` has defaults there."""
    doing: Callable[[str], None] = lambda _what: None
    """Takes what a check is about to do, for the case that this is the last it does."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the page. `look` runs in a process of its own and may raise whatever it likes."""

    name: str
    look: Callable[[Surroundings], Outcome]
    fix: str
    """For errors that do not say what to do, and for a check that hangs."""
    within_s: float = 10.0
    """It is given up after this."""
    needs: tuple[str, ...] = ()
    """Checks without which it says nothing new: it is skipped when one of them failed; and sections
    of the configuration ("[mqtt]"), when there is a mistake in one of them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A check's outcome, as it is shown."""

    group: str
    name: str
    outcome: Outcome
    seconds: float
