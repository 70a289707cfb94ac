"""`roomscribe log`: what it takes."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance import log_commands

_DESCRIPTION = """\
Shows the transcripts of the local log, oldest first; exports them, or deletes them."""

_EPILOG = """\
A TIME is an age (90s, 15m, 2h, 3d, 1w) or a date with or without a time, by this machine's clock
(2026-01-31, 2026-01-31T18:00); TEXT is found anywhere in a transcript, also within words, upper and
lower case alike.

examples:
  roomscribe log --since 1h --grep light --grep kitchen
  roomscribe log --follow
  roomscribe log --since 2026-01-01 --export csv --output january.csv
  roomscribe log --until 7d --delete
"""


def add_log(
    names: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Adds the command to the others."""
    sub = names.add_parser(
        "log",
        parents=[common],
        help="show, export or delete what was heard",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.add_argument(
        "--since",
        metavar="TIME",
        help="only what ended then or later: 90s, 15m, 2h, 3d ago, or a "
        "time such as 2026-01-31T18:00 (local)",
    )
    sub.add_argument("--until", metavar="TIME", help="only what ended before")
    sub.add_argument(
        "--grep",
        metavar="TEXT",
        action="append",
        default=[],
        help="only transcripts that contain this; given several times, all of it",
    )
    sub.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help=f"the newest N (default {log_commands.SHOWN}, of an export all); 0: all",
    )
    sub.add_argument("--json", action="store_true", help="one JSON object a transcript")
    doing = sub.add_mutually_exclusive_group()
    doing.add_argument(
        "--follow", action="store_true", help="go on with what is heard from now on, until Ctrl-C"
    )
    doing.add_argument(
        "--export",
        choices=("csv", "jsonl"),
        help="write every field; in csv, a text that a spreadsheet would take for a formula "
        "(beginning with = + - @) gets an apostrophe before it",
    )
    doing.add_argument(
        "--delete",
        action="store_true",
        help="delete them for good, also from the index and the free space of the file; what the "
        "broker or others were told is not called back",
    )
    sub.add_argument(
        "--output", type=Path, metavar="FILE", help="where to export to, in place of the terminal"
    )
    sub.add_argument("--all", action="store_true", help="delete everything, damaged files, too")
    sub.add_argument("--yes", action="store_true", help="delete without asking")
    sub.set_defaults(command=log_commands.log, usage_error=sub.error)
