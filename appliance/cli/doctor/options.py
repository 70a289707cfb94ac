"""The options of `roomscribe doctor`; nothing heavy is imported for them."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.add_argument(
        "--recordings",
        type=Path,
        metavar="FOLDER",
        help="where there is an NPU, compare it with the CPU on the sound files of this folder",
    )
