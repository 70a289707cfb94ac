"""The findings as a page for people, and as JSON for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from appliance import __version__
from appliance.doctor.outcome import FAILED, OK, SKIPPED, Finding

SCHEMA = 1
"""Of the JSON; raised when a field changes its meaning or goes."""
MARKS = {OK: "\u2713", FAILED: "\u2717", SKIPPED: "\u2013"}
PLAIN_MARKS = {OK: "ok", FAILED: "XX", SKIPPED: "--"}
"""Where the terminal does not show the others."""
NAME_WIDTH = 21
MOST_FAILED = 63
"""The exit status counts no further; from 64 on it would mean something else (sysexits.h)."""


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
    """How many failed, MOST_FAILED at most."""
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
