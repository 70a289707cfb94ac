"""`roomscribe benchmark`: its options, apart from the rest so that loading them costs nothing."""

import argparse
import re
from pathlib import Path

from appliance.system import shorten

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
        "--most", type=_count, default=0, metavar="N", help="only N recordings, evenly chosen"
    )
    parser.add_argument(
        "--rows",
        default="",
        metavar="A,B",
        help="only these rows, by their keys in the table; a wrong one names them all",
    )
    parser.add_argument(
        "--npu-decoder",
        type=Path,
        metavar="FOLDER",
        help="a decoder's HEF with its two tables (of `model export`, or Hailo's), for the row npu "
        "(default: the folder of the model in use)",
    )
    _add_tables(parser)
    parser.add_argument(
        "--threads", type=_count, default=1, metavar="N", help="CPU threads (default 1)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument(
        "--chart", type=Path, metavar="FILE.svg", help="draw encoder and decoder of each row there"
    )


def _add_tables(parser: argparse.ArgumentParser) -> None:
    """Tables apart, in place of the rows."""
    parser.add_argument(
        "--cache",
        action="store_true",
        help="compare the decoder with one without a KV cache, as Hailo's compiler needs it: ms a "
        "token, and what is computed; needs --checkpoint, as the next two do",
    )
    parser.add_argument(
        "--padding",
        action="store_true",
        help="compare what stands behind a window of 10 s: nothing, zeros, or states of silence up "
        "to 600, 650, 700 and 1500 positions",
    )
    parser.add_argument(
        "--guards",
        action="store_true",
        help="compare penalties for repetition, bonuses for end-of-text and the presets made of "
        "them, also on sentences that are really said twice",
    )


def _count(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, found {shorten(text)}")
    return int(text)
