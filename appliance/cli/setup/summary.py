"""How setup ends: what failed, and what to do next."""

from __future__ import annotations

import shutil
import sys

from appliance import config
from appliance.cli.setup.answers import Answers, Context


def show_summary(context: Context, answers: Answers) -> None:
    """Run the doctor's checks; print those that failed, and the next step."""
    from appliance.cli.doctor.main import WIDEST, examine, failures, lines, marks, surroundings
    from appliance.cli.doctor.outcome import FAILED, SKIPPED

    options = context.options
    settings = config.read(options.config).settings
    findings = list(examine(surroundings(options.config, settings)))
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
    context.dialog.say(f"Next: {next_step(answers, failed=bool(count), page=page)}")


def next_step(answers: Answers, *, failed: bool, page: bool) -> str:
    """Return the one thing to do next."""
    from appliance.model import BUILT_IN

    if failed:
        return "follow the advice above, then run `sudo roomscribe doctor`."
    if answers.model == BUILT_IN:
        return "get a real model, such as `sudo roomscribe setup --model tiny.en`."
    if not page:
        return "`sudo roomscribe setup --page` shows what is heard in a browser."
    return "speak, and look at `sudo roomscribe log --follow`."
