"""`roomscribe doctor`: the round through all checks."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from appliance.config import DEFAULT_PATH, Settings
from appliance.doctor import page
from appliance.doctor.bounded import look
from appliance.doctor.checks import GROUPS, groups
from appliance.doctor.daemon import running_daemon
from appliance.doctor.options import add_arguments
from appliance.doctor.outcome import FAILED, Check, Finding, Outcome, Surroundings, skipped
from appliance.mqtt.tls import PASSWORD_CREDENTIAL

__all__ = ["add_arguments", "examine", "run"]

INSTALLED_STATE = Path("/var/lib/roomscribe")
CREDENTIAL_STORE = Path("/etc/credstore")
"""Where the unit's state and systemd's credentials for it are, when it does not run."""
WIDEST = 120


def run(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe doctor`; how many checks failed, 63 at most.

    A configuration that cannot be read is one of the checks: `settings` are the defaults then, and
    what depends on them is left out.
    """
    around = _surroundings(options, settings)
    checks = groups(recordings=options.recordings is not None)
    if options.json:
        findings = list(examine(around, checks))
        print(json.dumps(page.as_json(findings), indent=1))
        return page.exit_status(findings)
    shown = page.marks(sys.stdout.encoding)
    width = min(WIDEST, shutil.get_terminal_size((100, 24)).columns)
    findings = []
    for finding in examine(around, checks):
        before = findings[-1] if findings else None
        findings.append(finding)
        if before is None or before.group != finding.group:
            print(finding.group)
        if not page.says_nothing_new(finding, before):
            print("\n".join(page.lines(finding, shown, width)), flush=True)
    print(page.last_line(findings))
    return page.exit_status(findings)


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
