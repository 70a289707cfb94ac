"""`roomscribe doctor`: all checks, and their findings as a page for people or as JSON."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from appliance import __version__
from appliance.cli.doctor import hearing, machine, npu, publishing, storage, transcribing
from appliance.cli.doctor.bounded import look
from appliance.cli.doctor.daemon import running_daemon
from appliance.cli.doctor.outcome import (
    FAILED,
    OK,
    SKIPPED,
    Check,
    Finding,
    Outcome,
    Surroundings,
    skipped,
)
from appliance.config import DEFAULT_PATH, Settings
from appliance.mqtt import PASSWORD_CREDENTIAL

SCHEMA = 1
"""Of the JSON; raised when a field changes its meaning or goes."""
MARKS = {OK: "\u2713", FAILED: "\u2717", SKIPPED: "\u2013"}
PLAIN_MARKS = {OK: "ok", FAILED: "XX", SKIPPED: "--"}
"""Where the terminal does not show the others."""
NAME_WIDTH, WIDEST = 21, 120
MOST_FAILED = 63
"""The exit status counts no further; from 64 on it would mean something else (sysexits.h)."""
INSTALLED_STATE = Path("/var/lib/roomscribe")
CREDENTIAL_STORE = Path("/etc/credstore")
"""Where the unit's state and systemd's credentials for it are, when it does not run."""
GROUPS: dict[str, tuple[Check, ...]] = {
    "machine": machine.CHECKS,
    "hearing": hearing.CHECKS,
    "transcribing": transcribing.CHECKS,
    "NPU": npu.CHECKS,
    "publishing": storage.CHECKS + publishing.CHECKS,
    "service": publishing.SERVICE_CHECKS,
}
"""All checks, in the order of the page."""


def run(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe doctor`; how many checks failed, 63 at most.

    A configuration that cannot be read is one of the checks: `settings` are the defaults then, and
    what depends on them is left out.
    """
    around = _surroundings(options, settings)
    checks = GROUPS
    if options.recordings:
        checks = GROUPS | {"NPU": (*npu.CHECKS, npu.RECORDINGS)}
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


def examine(
    around: Surroundings, groups: Mapping[str, tuple[Check, ...]] = GROUPS
) -> Iterator[Finding]:
    """One finding after the other, each as soon as it is there."""
    bad: set[str] = set()
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
        return skipped(f"left out until this is well: {', '.join(missing)}")
    return look(check, around)


def _surroundings(options: argparse.Namespace, settings: Settings) -> Surroundings:
    """What the checks are given; the environment becomes the daemon's where that matters."""
    daemon = running_daemon(options.config)
    around = Surroundings(settings, options.config, daemon, recordings=options.recordings)
    if daemon:
        os.environ.update(daemon.environment)
    elif options.config in (None, DEFAULT_PATH) and DEFAULT_PATH.exists():
        if INSTALLED_STATE.exists():
            os.environ.setdefault("STATE_DIRECTORY", str(INSTALLED_STATE))
        if os.access(CREDENTIAL_STORE / PASSWORD_CREDENTIAL, os.R_OK):
            os.environ.setdefault("CREDENTIALS_DIRECTORY", str(CREDENTIAL_STORE))
    return around


def marks(encoding: str | None) -> dict[str, str]:
    """The marks that a terminal of this encoding shows."""
    try:
        "".join(MARKS.values()).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN_MARKS
    return MARKS


def lines(finding: Finding, shown: dict[str, str], width: int) -> list[str]:
    """A check's line, and below it, when it failed, its cure."""
    mark = f"  {shown[finding.outcome.status]} "
    found = _wrapped(f"{mark}{finding.name:<{NAME_WIDTH}} ", finding.outcome.found, width)
    if not finding.outcome.cure:
        return found
    return found + _wrapped(" " * (len(mark) + 2), f"cure: {finding.outcome.cure}", width)


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
                "cure": one.outcome.cure,
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
