"""`roomscribe model fit`: fit a model's confidence and more to its own errors.

`roomscribe model add` and the page fit each new model, too.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.config import Settings
from appliance.errors import RoomscribeError
from appliance.system import acting_as_owner

if TYPE_CHECKING:
    from appliance.convert import ProgressDisplay
    from appliance.lab import FitRequest

STEPS = 10
"""Lines of progress in each step where the output is no terminal."""
UNFITTED = (
    "The model works, but its confidence stays unmeasured: fit it with "
    "`roomscribe model fit {name}`."
)


def add_fit(new: Callable[..., argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add `roomscribe model fit` to the command line, and return it."""
    sub = new(
        "fit",
        help="fit a model's confidence to its errors",
        description="Lets the model transcribe sentences of the package, in noise and in simulated "
        "rooms, and writes into the model: how likely a text is right (confidence, also of "
        "expected sentences), when a sentence is complete, and whether a second pass and short "
        "windows help. This takes minutes. If it is interrupted, run the same command again: it "
        "continues. Nothing is changed until the end, and no audio is stored.",
    )
    sub.add_argument("name", metavar="NAME|FOLDER", nargs="?", help="default: the one in use")
    sub.add_argument(
        "--recordings",
        type=Path,
        metavar="FOLDER",
        help="also your recordings: sound files with transcripts.tsv (columns file and text)",
    )
    sub.add_argument(
        "--corrections",
        type=Path,
        metavar="FILE",
        help="also the sentences that you corrected: what `roomscribe log --export jsonl` wrote",
    )
    return sub


def fit(options: argparse.Namespace, settings: Settings, in_use: str) -> int:
    """Run `roomscribe model fit`; `in_use` is the model without a name."""
    from appliance.lab import FitRequest
    from appliance.model import find_bundle

    folder = find_bundle(options.name or in_use)
    facts = _fit(FitRequest(folder, options.recordings, options.corrections), settings, _Terminal())
    for line in describe(facts):
        print(line)
    if options.name in (None, in_use):
        print("The daemon uses this after `sudo systemctl restart roomscribe`.")
    return 0


def fit_added(name: str, settings: Settings, display: ProgressDisplay | None = None) -> list[str]:
    """Fit a model that was just added, and return lines about it. A model that cannot be fitted is
    used as it is."""
    from appliance.lab import FitRequest
    from appliance.model import find_bundle

    try:
        show = _Display(display) if display else _Terminal()
        return describe(_fit(FitRequest(find_bundle(name)), settings, show))
    except RoomscribeError as error:
        return [str(error), UNFITTED.format(name=name)]


def _fit(request: FitRequest, settings: Settings, show: _Terminal | _Display) -> dict[str, Any]:
    from appliance.lab import fit_model

    try:
        with acting_as_owner(request.folder):
            return fit_model(request, settings, show)
    finally:
        show.end()


def describe(facts: dict[str, Any]) -> list[str]:
    """Return what was fitted, as lines for people."""
    found = facts["fitted"]
    vtln = facts["vtln"]
    right, wrong = found["acting"]
    share = wrong / (right + wrong) if right + wrong else 0.0
    second = "off" if not vtln else "on" if vtln["warp"] else "on (beam search)"
    return [
        f"confidence: fitted to {found['texts']} texts, {found['wrong']} of them wrong; "
        f"calibration error {found['calibration_error']:.2f}",
        f"acting on a text: from a confidence of {facts['calibration']['act']:.2f} on; "
        f"of the {right + wrong:.0f} sentences that reach it, {share:.0%} are wrong",
        f"expected sentences: {'fitted' if facts['phrase_calibration'] else 'not fitted'}",
        f"end of a sentence: {'fitted' if facts['endings'] else 'not fitted'}",
        f"second pass: {second}; short windows: {'on' if facts['short_windows'] else 'off'}",
    ]


class _Terminal:
    """Shows progress: one line that changes on a terminal, elsewhere some lines for each step."""

    def __init__(self) -> None:
        self._step, self._shown = "", -1
        self._begun_s, self._first = 0.0, 0
        self._moves = sys.stdout.isatty()

    def __call__(self, step: str, done: int, total: int) -> None:
        if step != self._step:
            self.end()
            self._step, self._shown = step, -1
            self._begun_s, self._first = time.monotonic(), done
        share = done * (100 if self._moves else STEPS) // max(1, total)
        if share == self._shown:
            return
        self._shown = share
        spent_s, now = time.monotonic() - self._begun_s, done - self._first
        left = f", about {spent_s / now * (total - done) / 60:.1f} min left" if now > 9 else ""
        line = f"{step}: {done} of {total}{left}"
        print(f"\r{line:70}" if self._moves else line, end="" if self._moves else "\n", flush=True)

    def end(self) -> None:
        """End the line."""
        if self._moves and self._step:
            print(flush=True)


class _Display:
    """Shows progress on a ProgressDisplay, the page's."""

    def __init__(self, display: ProgressDisplay) -> None:
        self._display, self._step, self._done = display, "", 0

    def __call__(self, step: str, done: int, total: int) -> None:
        share = 100 * done // max(1, total)
        if (step, share) != (self._step, self._done):
            self._step, self._done = step, share
            self._display.note(f"fitting its confidence to its errors: {step}, {share} %")

    def end(self) -> None:
        """End the step."""
