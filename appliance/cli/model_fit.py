"""`roomscribe model fit`: fit a model's confidence to your own recordings and corrections."""

import argparse
from pathlib import Path
from typing import Any

from appliance.cli.commands import Commands, Run
from appliance.cli.terminal import ProgressLine
from appliance.config import Settings
from appliance.errors import ConfigError
from appliance.system import acting_as_owner


def add_fit(models: Commands, command: Run) -> None:
    """Add `roomscribe model fit` to the command line."""
    sub = models.add(
        "fit",
        command,
        help="fit a model's confidence to your voices",
        description="Transcribes your recordings, compares the texts with what was said, and fits "
        "the model's confidence to its errors: of texts, and of expected sentences if "
        "[phrases] file is set. A fifth of the speakers or sentences is held out in turn; if the "
        "confidence is not better on these, nothing is changed.",
    )
    sub.add_argument("name", metavar="NAME|FOLDER", nargs="?", help="default: the one in use")
    sub.add_argument(
        "--recordings",
        type=Path,
        metavar="FOLDER",
        help="your recordings: sound files with transcripts.tsv (columns file and text, and "
        "speaker if there are several)",
    )
    sub.add_argument(
        "--corrections",
        type=Path,
        metavar="FILE",
        help="the sentences that you corrected: what `roomscribe log --json --limit 0` printed",
    )


def fit(options: argparse.Namespace, settings: Settings, in_use: str) -> int:
    """Run `roomscribe model fit`; `in_use` is the model without a name."""
    from appliance.lab import FitRequest, fit_model
    from appliance.model import find_bundle

    if not options.recordings and not options.corrections:
        raise ConfigError(
            "A model is fitted to your own voice. Name your recordings with --recordings FOLDER, "
            "or your corrections with --corrections FILE."
        )
    folder = find_bundle(options.name or in_use)
    request = FitRequest(folder, options.recordings, options.corrections)

    def show(done: int, total: int) -> None:
        if not (done or options.quiet):
            print(f"listening to {total} recordings", flush=True)
        progress.update(done, total)

    try:
        with (
            acting_as_owner(folder),
            ProgressLine("listening", unit="recordings", quiet=options.quiet) as progress,
        ):
            facts = fit_model(request, settings, show)
    except KeyboardInterrupt:
        print("\nThe model is as it was. The next run begins anew.")
        raise
    for line in describe(facts):
        print(line)
    if len(facts) > 1 and options.name in (None, in_use):
        print("The daemon uses this after `sudo systemctl restart roomscribe`.")
    return 0


def describe(facts: dict[str, Any]) -> list[str]:
    """Return what was fitted, as lines for people."""
    figures = facts["fitted"]["confidence"]
    lines = [
        f"confidence: {'fitted' if 'calibration' in facts else 'not changed'}; {figures['texts']} "
        f"texts, {figures['wrong']} wrong; on those held out mean squared error "
        f"{figures['error']:.3f}, before {figures['error_before']:.3f}"
        + ("; the offset alone, as for fewer than 100 texts" if figures["only_offset"] else "")
    ]
    if "calibration" in facts:
        right, wrong = figures["acting"]
        lines.append(
            f"acting on a text: from a confidence of {facts['calibration']['act']:.2f} on; of the "
            f"{right + wrong} texts held out that reach it, {wrong} are wrong"
        )
    return lines
