"""Run an evening: the shipped appliance with everything switched on; print one table.

    scripts/measure evening [--short] [--seed N] [--work FOLDER]
    scripts/measure evening --against COMMIT ...
    scripts/measure evening --model FOLDER ...
    scripts/measure evening --write ...

A real daemon with the shipped configuration hears one continuous stream through PulseAudio: people
and synthesisers who give commands, in rooms, beside kitchen noise and a television, people who read
and talk, noise, music, silence. A page is open in a browser, a Wyoming client asks now and then, a
stand-in for Home Assistant tells 50 names and counts what is handed to Assist. Meanwhile the
configuration is reloaded 20 times.

docs/figures.md says what each column means. --short takes 4 minutes and is what CI runs; verdict.py
says when it fails. --against hears each block with another commit's appliance and the same model,
too. --model takes another model than the built-in one. --write puts the figures into README.md and
docs/figures.md. Results are in FOLDER.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evening_run.play import Player
from evening_run.programme import LEVELS, SENTENCE, Block, gather
from evening_run.publish import write
from evening_run.results import about, git, merged, scored
from evening_run.schedule import lay_out
from evening_run.score import actions_not_asked_for
from evening_run.stand import Stand
from evening_run.table import compared, compared_wholes, more, of_groups
from evening_run.verdict import faults
from rigs import broker, microphone
from rigs.checkout import BUILT_IN, ROOT

from appliance.lab.benchmark.table import as_markdown
from appliance.records import SAMPLE_RATE

WORK = ROOT / "dist" / "evening"
Record = dict[str, Any]


def main() -> int:
    """Run an evening; 1 when something is wrong that does not depend on time."""
    options = arguments()
    if missing := [*microphone.missing_packages(), *filter(None, [broker.missing()])]:
        print(f"evening: not installed: {', '.join(missing)}", file=sys.stderr)
        return 69
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        signal.signal(number, signal.default_int_handler)
    begun_s = time.monotonic()
    blocks = prepare(options)
    with ExitStack() as stack:
        roots = {"here": ROOT}
        if options.against:
            roots["there"] = stack.enter_context(worktree(options.against))
        sides = [Side(name, root, options) for name, root in roots.items()]
        try:
            hear(sides, blocks)
        except KeyboardInterrupt:
            sides[0].interrupted = True
        except RuntimeError as error:
            print(f"evening: {error}", file=sys.stderr)
            return 1
    for side in sides:
        side.report()
    if options.against:
        compare(*reversed(sides))
    say(f"took {(time.monotonic() - begun_s) / 60:.0f} min; results in {options.work}")
    if options.write and not sides[0].interrupted:
        write(ROOT, sides[0].evening)
    return int(any(side.faults or side.interrupted for side in sides))


def prepare(options: argparse.Namespace) -> list[Block]:
    """Return what is heard in the evening that was chosen, and say how long it takes."""
    level = LEVELS[options.level]
    sounds = gather(level, options.seed)
    blocks = lay_out(sounds, level, options.seed)
    minutes = sum(block.length for block in blocks) / SAMPLE_RATE / 60
    count = sum(one.kind == SENTENCE for one in sounds)
    if not shutil.which("chromedriver"):
        say("no chromedriver: the page is not opened (apt install chromium-driver)")
    say(f"{count} sentences in {len(blocks)} blocks, {minutes:.0f} minutes")
    return blocks


def arguments() -> argparse.Namespace:
    """The command line."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(
        "scripts/measure evening", description=__doc__, formatter_class=raw
    )
    parser.add_argument("--short", dest="level", action="store_const", const="short")
    parser.add_argument("--seed", type=int, default=1, help="of order and pauses; default 1")
    parser.add_argument("--work", type=Path, default=WORK, metavar="FOLDER")
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--model", type=Path, metavar="FOLDER")
    parser.add_argument("--write", action="store_true")
    parser.set_defaults(level="usual")
    options = parser.parse_args()
    if options.write and options.level == "short":
        parser.error("--write needs the usual evening")
    if options.write and options.model:
        parser.error("--write needs the built-in model")
    if options.model and not (options.model / "bundle.json").is_file():
        parser.error(f"--model: expected a folder with bundle.json, found {options.model}")
    if options.against and not git(ROOT, "rev-parse", "--verify", f"{options.against}^{{commit}}"):
        parser.error(f"--against: expected a commit of this checkout, found {options.against}")
    return options


class Side:
    """A checkout in an evening: its results so far, and its stand while it runs."""

    def __init__(self, name: str, root: Path, options: argparse.Namespace) -> None:
        self.root, self.folder = root, options.work / name
        self.model = (options.model or BUILT_IN).resolve()
        chosen = {"level": options.level, "seed": options.seed}
        self.header = about(root, self.model) | chosen
        self.done: dict[int, Record] = {}
        """The record of each block."""
        self.file = options.work / f"{name}.json"
        self.interrupted = False
        self.faults: list[str] = []

    @property
    def evening(self) -> Record:
        """What was measured so far."""
        return merged(self.header, [self.done[number] for number in sorted(self.done)])

    def report(self) -> None:
        """Print the figures and store them."""
        evening = self.evening
        self.rows, self.whole = scored(evening)
        self.faults = faults(evening, self.rows, self.whole)
        print(f"\n{evening['commit']}, model {evening['model']}, {evening['processor']}")
        print(of_groups(self.rows) + "\n\n" + as_markdown(["", ""], more(self.whole, evening)))
        for line in actions_not_asked_for(evening["items"]):
            print(line)
        for fault in self.faults:
            print(f"FAULT: {fault}")
        figures = {"groups": [asdict(one) for one in self.rows], "whole": asdict(self.whole)}
        result = {**evening, "figures": figures, "faults": self.faults}
        result["interrupted"] = self.interrupted
        self.file.write_text(json.dumps(result, indent=1), encoding="utf-8")


def compare(*sides: Side) -> None:
    """Print the figures of two sides beside each other."""
    names = [side.header["commit"] for side in sides]
    print("\n" + compared(names, [side.rows for side in sides]) + "\n")
    print(compared_wholes(names, [side.whole for side in sides], [side.evening for side in sides]))


def hear(sides: Sequence[Side], blocks: Sequence[Block]) -> None:
    """Play the evening to each side, block by block, in turn."""
    sounds = sum(len(block.items) for block in blocks)
    with ExitStack() as stack:
        stands = {}
        for side in sides:
            say(f"starting {side.header['commit']}")
            stand = Stand(side.root, side.folder, side.model, seed=side.header["seed"])
            stands[id(side)] = stack.enter_context(stand)
        turns = [(n, side) for n in range(len(blocks)) for side in sides[:: 1 if n % 2 else -1]]
        for number, side in turns:
            first = sum(len(block.items) for block in blocks[:number])
            stand = stands[id(side)]
            player = Player(stand, counting(side.header["commit"], first, sounds))
            side.done[number] = player.play(blocks[number]) | stand.take_tally()
            if player.interrupted:
                side.interrupted = True
                say("interrupted; what was measured so far:")
                return
            if number == len(blocks) - 1:
                side.done[number] |= stand.closing()


def counting(name: str, first: int, of: int) -> Callable[[str], None]:
    """What says where an evening is, sound by sound."""
    count = iter(range(first + 1, of + 1000))

    def say_next(what: str) -> None:
        say(f"{name} {next(count)}/{of} {what}")

    return say_next


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Another commit's files, in a folder of their own."""
    folder = Path(tempfile.mkdtemp(prefix="roomscribe-evening-"))
    command = ["git", "worktree"]
    try:
        subprocess.run(
            [*command, "add", "--quiet", "--detach", folder / "tree", commit], cwd=ROOT, check=True
        )
        yield folder / "tree"
    finally:
        subprocess.run([*command, "remove", "--force", folder / "tree"], cwd=ROOT, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def say(line: str) -> None:
    """Print a line about the evening itself."""
    print(f"== {time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
