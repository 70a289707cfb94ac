"""`roomscribe benchmark`: its options, apart from the rest so that loading them costs nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_SENTENCES = 12
"""Of the sentences that come with the package, without --recordings."""


def add_benchmark_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FOLDER",
        help="weights of which all rows are made: a folder of CTranslate2's (faster-whisper's) or "
        "in Hugging Face's layout (default: the model in use, without the rows that need weights)",
    )
    parser.add_argument(
        "--recordings",
        type=Path,
        metavar="FOLDER",
        help="recordings with MANIFEST.tsv or transcripts.tsv, columns file and text (default: "
        f"{DEFAULT_SENTENCES} sentences of synthetic voices that come with the package)",
    )
    parser.add_argument(
        "--rows",
        default="",
        metavar="A,B",
        help="only these rows, by their keys in the table; a wrong one names them all",
    )
    parser.add_argument(
        "--padding",
        action="store_true",
        help="compare what stands behind a window of 10 s: nothing, zeros, or states of silence up "
        "to 700 and 1500 positions; needs --checkpoint",
    )
    parser.add_argument(
        "--against-wyoming",
        type=_address,
        metavar="HOST:PORT",
        help="compare this machine's Wyoming server, which must run, with another one: words, "
        "times, memory",
    )
    parser.add_argument(
        "--threads", type=_count, default=1, metavar="N", help="CPU threads (default 1)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, found {text}")
    return text


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, found {text}")
    return number
