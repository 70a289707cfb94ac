"""The command line of the training loop."""

from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_MINUTES = 110


def arguments(description: str) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, help=f"{DEFAULT_MINUTES}, or as the run began")
    parser.add_argument("--more-minutes", type=float, default=0)
    parser.add_argument("--start-from", type=Path, help="folder of a bundle, for its weights")
    parser.add_argument("--processes", type=int, default=2, help="one per core")
    parser.add_argument("--encoder-layers", type=int, default=5)
    parser.add_argument("--decoder-layers", type=int, default=2)
    parser.add_argument("--frames", type=int, default=5000, help="mel frames a batch and process")
    parser.add_argument("--rate", type=float, default=1.8e-3, help="AdamW's peak rate")
    parser.add_argument("--matrix-rate", type=float, default=0.02, help="Muon's; 0: AdamW alone")
    parser.add_argument("--decay", type=float, default=0.01)
    parser.add_argument("--phone-weight", type=float, default=1.0)
    parser.add_argument("--piece-weight", type=float, default=0.5)
    parser.add_argument("--guide-weight", type=float, default=0.3)
    parser.add_argument("--sounds", type=int, default=320, help="synthetic background sounds")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--test-every-s", type=float, default=600)
    parser.add_argument("--test-count", type=int, default=100)
    parser.add_argument("--report-every-s", type=float, default=20)
    return parser.parse_args()
