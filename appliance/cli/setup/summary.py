"""How setup ends: what failed, and what to do next."""

from __future__ import annotations

import shutil
import sys

from appliance import config
from appliance.cli.setup.answers import Context


def show_summary(context: Context, *, heard: bool) -> None:
    """Run the doctor's checks; print those that failed, and the next step.

    If a sentence was `heard`, the microphone is not checked again: it may be silent between two
    sentences.
    """
    from appliance.cli.doctor.main import (
        GROUPS,
        WIDEST,
        examine,
        failures,
        lines,
        marks,
        surroundings,
    )
    from appliance.cli.doctor.microphone import microphone
    from appliance.cli.doctor.outcome import FAILED, SKIPPED

    options = context.options
    settings = config.read(options.config).settings
    groups = {
        group: tuple(check for check in checks if not (heard and check.look is microphone))
        for group, checks in GROUPS.items()
    }
    findings = list(examine(surroundings(options.config, settings), groups))
    width = min(WIDEST, shutil.get_terminal_size((100, 24)).columns)
    shown = marks(sys.stdout.encoding)
    for finding in findings:
        if finding.outcome.status == FAILED:
            print("\n".join(lines(finding, shown, width)), flush=True)
    checked = sum(finding.outcome.status != SKIPPED for finding in findings)
    count = failures(findings)
    verdict = f"{count} of {checked} checks failed." if count else f"All {checked} checks passed."
    context.dialog.say(f"{verdict} `sudo roomscribe doctor` shows every check.")
    page = options.page or context.settings.web.enabled
    context.dialog.say(f"Next: {next_step(failed=bool(count), page=page)}")


def next_step(*, failed: bool, page: bool) -> str:
    """Return the one thing to do next."""
    if failed:
        return "follow the advice above, then run `sudo roomscribe doctor`."
    if not page:
        return "`sudo roomscribe setup --page` shows what is heard in a browser."
    return "speak, and look at `sudo roomscribe log --follow`."
