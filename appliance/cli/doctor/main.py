"""`roomscribe doctor`: run all checks, each in its own process, and print them as text or JSON."""

import argparse
import json
import shutil
import sys
import textwrap
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from appliance import build_version, config
from appliance.cli.config_file import must_write
from appliance.cli.doctor import (
    machine,
    microphone,
    model,
    mqtt,
    npu,
    storage,
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
    split_fix,
)
from appliance.cli.doctor.report import write_report
from appliance.cli.terminal import DIM, GREEN, RED, coloured
from appliance.config import Settings
from appliance.errors import RoomscribeError
from appliance.lab import Child, ChildDiedError
from appliance.system import one_line, writing

SCHEMA = 1
"""Version of the JSON; raised when a field changes its meaning or is removed."""
MARKS = {OK: "\u2713", FAILED: "\u2717", SKIPPED: "\u2013"}
PLAIN_MARKS = {OK: "ok", FAILED: "XX", SKIPPED: "--"}
"""For terminals that cannot show MARKS."""
COLOURS = {OK: GREEN, FAILED: RED, SKIPPED: DIM}
NAME_WIDTH, WIDEST = 21, 120
MOST_FAILED = 63
"""Largest exit status; from 64 on it would mean something else (sysexits.h)."""
LAST_LETTERS = 200
"""Longest part that is shown of a library's last line before it ended a check's process."""
PERSONAL_SECTIONS = frozenset({"appliance", "capture", "mqtt", "speaker", "store"})
"""Sections whose defaults say nothing about this machine: names, devices, addresses, folders."""
GROUPS: dict[str, tuple[Check, ...]] = {
    "machine": machine.CHECKS,
    "sound": microphone.CHECKS,
    "transcription": model.CHECKS,
    "NPU": npu.CHECKS,
    "log and broker": storage.CHECKS + mqtt.CHECKS,
    "service": mqtt.SERVICE_CHECKS,
}
"""All checks, in the order of the output."""


def run(
    options: argparse.Namespace,
    settings: Settings,
    checks: Mapping[str, tuple[Check, ...]] = GROUPS,
) -> int:
    """Run `roomscribe doctor`, or some of its `checks`; return how many failed, 63 at most.

    The configuration is one of the checks. Where it is wrong, `settings` has the defaults, and
    checks that depend on them are skipped.
    """
    around = surroundings(options.config, settings)
    if options.report:
        with must_write(options.report, "choose another file"), writing(options.report) as file:
            findings = print_findings(around, checks)
            write_report(file, as_json(findings), options.config, around.settings)
        print(f"wrote {options.report}; look through it before you share it")
        return exit_status(findings)
    if options.json:
        findings = list(examine(around, checks))
        print(json.dumps(as_json(findings), indent=1))
        return exit_status(findings)
    return exit_status(print_findings(around, checks))


def print_findings(
    around: Surroundings, checks: Mapping[str, tuple[Check, ...]]
) -> Sequence[Finding]:
    """Run the checks, print each finding at once, and return all."""
    shown = marks(sys.stdout.encoding)
    width = min(WIDEST, shutil.get_terminal_size((100, 24)).columns)
    findings: list[Finding] = []
    for finding in examine(around, checks):
        before = findings[-1] if findings else None
        findings.append(finding)
        if before is None or before.group != finding.group:
            print(finding.group)
        if not repeats_reason(finding, before):
            print("\n".join(lines(finding, shown, width)), flush=True)
    print(last_line(findings))
    return findings


def surroundings(file: Path | None, settings: Settings) -> Surroundings:
    """Return the input of the checks: the configuration with its mistakes, and the daemon."""
    daemon, settings = beside_daemon(file, settings)
    wrong = config.read(file).wrong_sections
    if len(wrong) == len(fields(Settings)):  # the file is unreadable: most defaults will do
        wrong = PERSONAL_SECTIONS
    return Surroundings(settings, file, daemon, wrong=wrong)


def examine(
    around: Surroundings, groups: Mapping[str, tuple[Check, ...]] = GROUPS
) -> Iterator[Finding]:
    """Run the checks one after the other and yield each finding at once."""
    bad = {f"[{section}]" for section in around.wrong}
    for group, checks in groups.items():
        for check in checks:
            begun_s = time.monotonic()
            outcome = _outcome(check, around, bad)
            if outcome.status == FAILED:
                bad.add(check.name)
            yield Finding(group, check.name, outcome, time.monotonic() - begun_s)


def _outcome(check: Check, around: Surroundings, bad: set[str]) -> Outcome:
    """Run a check; skip it if one that it needs has failed."""
    missing = [name for name in check.needs if name in bad]
    if missing:
        section = " in the configuration" if missing[-1].startswith("[") else ""
        return skipped(f"skipped because of {', '.join(missing)}{section}")
    return look(check, around)


def look(check: Check, around: Surroundings) -> Outcome:
    """Run a check in its own process and return its outcome after `check.within_s` at the latest.

    The check may hang, crash or be killed. A process is used because a library that hangs in C
    cannot be stopped otherwise, and because its end closes everything that the check opened. It is
    forked: the doctor itself loads no library that could not be forked.
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
            return failed(f"no result after {check.within_s:g} s{during}", check.fix)
        except ChildDiedError as error:
            cause = error.how if error.number else "the end of its process"
            last = [line for line in error.printed.splitlines() if line.strip()][-1:]
            output = "".join(f": {' '.join(line.split())[-LAST_LETTERS:]}" for line in last)
            return failed(f"the check was stopped by {cause}{during}{output}", check.fix)


def error_outcome(error: RoomscribeError, fix: str) -> Outcome:
    """Return the outcome for an expected error; `fix` is used if the error names none."""
    found, own_fix = split_fix(str(error))
    return failed(found, own_fix or fix)


def _look(connection: Connection, check: Check, around: Surroundings) -> Outcome:
    """Run in the child: send each step, and return the outcome."""
    try:
        return check.look(replace(around, doing=connection.send))
    except RoomscribeError as error:
        return error_outcome(error, check.fix)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        found = f"unexpected {type(error).__name__}: {one_line(error)} ({where})"
        return failed(found, check.fix)


def marks(encoding: str | None) -> dict[str, str]:
    """Return the marks that a terminal with this encoding can show."""
    try:
        "".join(MARKS.values()).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN_MARKS
    return MARKS


def lines(finding: Finding, shown: dict[str, str], width: int) -> list[str]:
    """Return a check's line and, if it failed, its fix below."""
    mark = f"  {shown[finding.outcome.status]} "
    found = _wrapped(f"{mark}{finding.name:<{NAME_WIDTH}} ", finding.outcome.found, width)
    found[0] = coloured(mark, COLOURS[finding.outcome.status]) + found[0][len(mark) :]
    if not finding.outcome.fix:
        return found
    return found + _wrapped(" " * (len(mark) + 2), f"fix: {finding.outcome.fix}", width)


def repeats_reason(finding: Finding, before: Finding | None) -> bool:
    """Return True for a check that is skipped for the same reason as the one before it."""
    same = before and (before.group, before.outcome) == (finding.group, finding.outcome)
    return bool(same) and finding.outcome.status == SKIPPED


def last_line(findings: Sequence[Finding]) -> str:
    """Return the summary."""
    skipped = sum(finding.outcome.status == SKIPPED for finding in findings)
    checked = len(findings) - skipped
    seconds = sum(finding.seconds for finding in findings)
    count = failures(findings)
    verdict = f"{count} of {checked} checks failed" if count else f"all {checked} checks passed"
    return f"{verdict}; {skipped} skipped; {seconds:.1f} s"


def failures(findings: Sequence[Finding]) -> int:
    """Return how many checks failed."""
    return sum(finding.outcome.status == FAILED for finding in findings)


def exit_status(findings: Sequence[Finding]) -> int:
    """Return how many checks failed, MOST_FAILED at most."""
    return min(MOST_FAILED, failures(findings))


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return all findings, for programs."""
    return {
        "schema": SCHEMA,
        "version": build_version(),
        "failed": failures(findings),
        "checks": [
            {
                "group": finding.group,
                "name": finding.name,
                **asdict(finding.outcome),
                "seconds": round(finding.seconds, 3),
            }
            for finding in findings
        ],
    }


def _wrapped(begin: str, text: str, width: int) -> list[str]:
    """Return `text` after `begin`, with later lines indented as far; long words stay whole."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [begin.rstrip()]
