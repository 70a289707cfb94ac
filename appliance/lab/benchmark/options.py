"""`roomscribe benchmark`: its options, apart from the rest so that loading them costs nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

SHAPES = ("base", "tiny")
"""Names in subject.SHAPES."""
CLOCKS = ("cpu", "wall")
"""Names in clock.CLOCKS."""


def add_benchmark_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument(
        "--random-weights",
        choices=SHAPES,
        default="",
        help="measure a Whisper of this shape with made-up weights: speed and memory are the same",
    )
    weights.add_argument(
        "--checkpoint", type=Path, metavar="FOLDER", help="checkpoint in Hugging Face's layout"
    )
    parser.add_argument(
        "--window", type=float, default=10.0, metavar="S", help="length of a window (default 10)"
    )
    parser.add_argument(
        "--speech",
        type=float,
        metavar="S",
        help="seconds of speech in the window, with silence behind it (default: all of it)",
    )
    parser.add_argument(
        "--threads", type=_count, default=1, metavar="N", help="CPU threads (default 1)"
    )
    parser.add_argument(
        "--repeats", type=_count, default=15, metavar="N", help="measured rounds (default 15)"
    )
    parser.add_argument(
        "--tokens", type=_count, default=20, metavar="N", help="tokens per utterance (default 20)"
    )
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: the processor's time, for a machine that is busy with other things (with one "
        "thread the two are the same where it is not)",
    )
    parser.add_argument(
        "--rows",
        default="",
        metavar="A,B",
        help="only these rows, by their keys in the table; a wrong one names them all",
    )
    parser.add_argument(
        "--recordings",
        type=Path,
        metavar="FOLDER",
        help="count errors, too, on the recordings of a folder with MANIFEST.tsv or "
        "transcripts.tsv (columns file and text)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the rows as a PNG")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, found {text}")
    return number
