"""Results of an evening: those of its blocks together, and what was measured on what."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evening_run.score import Row, Whole, row, rows, whole
from rigs.checkout import BUILT_IN

Record = dict[str, Any]
LISTS = (
    "items", "stray", "memory", "repeated", "unsent", "unlogged", "page_errors", "log_errors",
    "trouble", "reload_s", "wyoming_ms", "wyoming_texts", "encode_ms", "decode_ms",
)  # fmt: skip
COUNTS = ("disorder", "partials", "broken_partials", "assist_astray", "page_behind")


def merged(header: Record, blocks: Sequence[Record]) -> Record:
    """Return an evening's results: those of its blocks together."""
    evening: Record = dict(header)
    for key in LISTS:
        evening[key] = [one for block in blocks for one in block.get(key, ())]
    for key in COUNTS:
        evening[key] = sum(block.get(key, 0) for block in blocks)
    evening["quiet"] = [block["quiet"] for block in blocks]
    return evening


def scored(evening: Record) -> tuple[list[Row], Whole]:
    """Return the figures of an evening."""
    total = whole(evening["items"], evening["stray"], evening["quiet"])
    return rows(evening["items"]) or [row("all", [])], total


def about(root: Path, model: Path = BUILT_IN) -> Record:
    """Return what is measured, and on what."""
    commit = git(root, "rev-parse", "--short=10", "HEAD")
    changed = bool(git(root, "status", "--porcelain", "--untracked-files=no"))
    return {
        "commit": commit + ("+" if changed else ""),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "processor": processor(),
        "model": weights_checksum(model),
    }


def git(root: Path, *words: str) -> str:
    """Return what git says of a checkout; "" outside of one."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def processor() -> str:
    """Return the processor's name and how many of its threads there are."""
    names = re.findall(
        r"^(?:model name|Model)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M
    )
    return f"{names[0] if names else 'unknown'}, {os.cpu_count()} threads"


def weights_checksum(bundle: Path) -> str:
    """Return the first 16 digits of the checksum of the weights that a bundle was made of."""
    manifest = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    return str(manifest["checkpoint_sha256"])[:16]
