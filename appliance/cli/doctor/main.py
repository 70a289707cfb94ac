"""`roomscribe doctor`: all checks, each in a process of its own, and the page or JSON of them."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from appliance import __version__, config
from appliance.cli.doctor import (
    fleet,
    homeassistant as home,
    machine,
    microphone as hearing,
    model as transcribing,
    mqtt as publishing,
    npu,
    page,
    storage,
    wyoming as house,
)
from appliance.cli.doctor.daemon import beside_daemon
from appliance.cli.doctor.outcome import (
    FAILED,
    OK,
    SKIPPED,
    Check,
    Finding,
    Outcome,
    Surroundings,
    failed,
    skipped,
)
from appliance.cli.terminal import DIM, GREEN, RED, coloured
from appliance.config import Settings
from appliance.errors import RoomscribeError
from appliance.system import Child, ChildDiedError, one_line

SCHEMA = 1
"""Of the JSON; raised when a field changes its meaning or goes."""
MARKS = {OK: "\u2713", FAILED: "\u2717", SKIPPED: "\u2013"}
PLAIN_MARKS = {OK: "ok", FAILED: "XX", SKIPPED: "--"}
"""Where the terminal does not show the others."""
COLOURS = {OK: GREEN, FAILED: RED, SKIPPED: DIM}
NAME_WIDTH, WIDEST = 21, 120
MOST_FAILED = 63
"""The exit status counts no further; from 64 on it would mean something else (sysexits.h)."""
LAST_LETTERS = 200
"""So many are shown of what a library printed before it ended a check's process."""
ONLY_THERE = frozenset({"appliance", "capture", "mqtt", "store"})
"""Sections with names and places that the user's file alone can tell."""
GROUPS: dict[str, tuple[Check, ...]] = {
    "machine": machine.CHECKS,
    "hearing": hearing.CHECKS,
    "transcribing": (*transcribing.CHECKS, house.SERVED),
    "NPU": npu.CHECKS,
    "publishing": storage.CHECKS + publishing.CHECKS,
    "for the house": (*house.CHECKS, *home.CHECKS),
    "page": page.CHECKS,
    "several rooms": fleet.CHECKS,
    "service": publishing.SERVICE_CHECKS,
}
"""All checks, in the order of the page."""


def run(
    options: argparse.Namespace,
    settings: Settings,
    checks: Mapping[str, tuple[Check, ...]] = GROUPS,
) -> int:
    """`roomscribe doctor`, or some of its `checks`; how many failed, 63 at most.

    Whether the configuration is right is one of the checks: where it is not, `settings` are the
    defaults, and what depends on them is left out.
    """
    around = surroundings(options.config, settings, options.recordings)
    if options.recordings:
        checks = {**checks, "NPU": (*npu.CHECKS, npu.RECORDINGS)}
    if options.json:
        findings = list(examine(around, checks))
        print(json.dumps(as_json(findings), indent=1))
        return exit_status(findings)
    shown = marks(sys.stdout.encoding)
    width = min(WIDEST, shutil.get_terminal_size((100, 24)).columns)
    findings = []
    for finding in examine(around, checks):
        before = findings[-1] if findings else None
        findings.append(finding)
        if before is None or before.group != finding.group:
            print(finding.group)
        if not says_nothing_new(finding, before):
            print("\n".join(lines(finding, shown, width)), flush=True)
    print(last_line(findings))
    return exit_status(findings)


def surroundings(
    file: Path | None, settings: Settings, recordings: Path | None = None
) -> Surroundings:
    """Return what the checks are given: the configuration with its mistakes, and the daemon."""
    daemon, settings = beside_daemon(file, settings)
    wrong = config.read(file).wrong
    if len(wrong) == len(fields(Settings)):  # a file that says nothing: most defaults will do
        wrong = ONLY_THERE
    return Surroundings(settings, file, daemon, recordings=recordings, wrong=wrong)


def examine(
    around: Surroundings, groups: Mapping[str, tuple[Check, ...]] = GROUPS
) -> Iterator[Finding]:
    """One finding after the other, each as soon as it is there."""
    bad = {f"[{section}]" for section in around.wrong}
    for group, checks in groups.items():
        for check in checks:
            begun_s = time.monotonic()
            outcome = _outcome(check, around, bad)
            if outcome.status == FAILED:
                bad.add(check.name)
            yield Finding(group, check.name, outcome, time.monotonic() - begun_s)


def _outcome(check: Check, around: Surroundings, bad: set[str]) -> Outcome:
    """The check's outcome; skipped when something that it stands on has failed."""
    missing = [name for name in check.needs if name in bad]
    if missing:
        of = " in the configuration" if missing[-1].startswith("[") else ""
        return skipped(f"left out until this is well: {', '.join(missing)}{of}")
    return look(check, around)


def look(check: Check, around: Surroundings) -> Outcome:
    """The check's outcome, at the latest `check.within_s` (and a moment) from now.

    It may hang, crash or be killed in a process of its own. A forked one, since a library that
    hangs in C cannot be stopped from within, and since what a check opens is closed when it ends,
    however it ends; the doctor itself loads no library that could not be forked.
    """
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
            return failed(f"no answer after {check.within_s:g} s{during}", check.fix)
        except ChildDiedError as error:
            how = error.how if error.number else "its process ending"
            last = [line for line in error.printed.splitlines() if line.strip()][-1:]
            said = "".join(f": {' '.join(line.split())[-LAST_LETTERS:]}" for line in last)
            return failed(f"the check was ended by {how}{during}{said}", check.fix)


def of_error(error: RoomscribeError, fix: str) -> Outcome:
    """An expected error's line: what it says to do, behind its last semicolon, is the fix."""
    found, semicolon, own_fix = str(error).replace("\n", "; ").rpartition("; ")
    return failed(found, own_fix) if semicolon else failed(own_fix, fix)


def _look(connection: Connection, check: Check, around: Surroundings) -> Outcome:
    """The child: sends what it is about to do; its outcome."""
    try:
        return check.look(replace(around, doing=connection.send))
    except RoomscribeError as error:
        return of_error(error, check.fix)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        found = f"unexpected {type(error).__name__}: {one_line(error)} ({where})"
        return failed(found, check.fix)


def marks(encoding: str | None) -> dict[str, str]:
    """The marks that a terminal of this encoding shows."""
    try:
        "".join(MARKS.values()).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN_MARKS
    return MARKS


def lines(finding: Finding, shown: dict[str, str], width: int) -> list[str]:
    """A check's line, and below it, when it failed, its fix."""
    mark = f"  {shown[finding.outcome.status]} "
    found = _wrapped(f"{mark}{finding.name:<{NAME_WIDTH}} ", finding.outcome.found, width)
    found[0] = coloured(mark, COLOURS[finding.outcome.status]) + found[0][len(mark) :]
    if not finding.outcome.fix:
        return found
    return found + _wrapped(" " * (len(mark) + 2), f"fix: {finding.outcome.fix}", width)


def says_nothing_new(finding: Finding, before: Finding | None) -> bool:
    """True for one that is skipped for the same reason as the one before it in its group."""
    same = before and (before.group, before.outcome) == (finding.group, finding.outcome)
    return bool(same) and finding.outcome.status == SKIPPED


def last_line(findings: Sequence[Finding]) -> str:
    """How it all ended."""
    skipped = sum(one.outcome.status == SKIPPED for one in findings)
    looked = len(findings) - skipped
    seconds = sum(one.seconds for one in findings)
    count = failures(findings)
    verdict = f"{count} of {looked} checks failed" if count else f"all {looked} checks are well"
    return f"{verdict}; {skipped} left out; {seconds:.1f} s"


def failures(findings: Sequence[Finding]) -> int:
    """How many failed."""
    return sum(one.outcome.status == FAILED for one in findings)


def exit_status(findings: Sequence[Finding]) -> int:
    """The same, MOST_FAILED at most."""
    return min(MOST_FAILED, failures(findings))


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """All findings, for programs."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "failed": failures(findings),
        "checks": [
            {
                "group": one.group,
                "name": one.name,
                "status": one.outcome.status,
                "found": one.outcome.found,
                "fix": one.outcome.fix,
                "cure": one.outcome.fix,  # the earlier name of `fix`
                "seconds": round(one.seconds, 3),
            }
            for one in findings
        ],
    }


def _wrapped(begin: str, text: str, width: int) -> list[str]:
    """`text` behind `begin`, its further lines indented as far; long words stay whole."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [begin.rstrip()]
