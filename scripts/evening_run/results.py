"""Results of an evening on the disk: a line per block while it runs, one JSON file at the end."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evening_run.score import Row, Whole, row, rows, whole
from rigs.checkout import BUILT_IN

Record = dict[str, Any]
LISTS = (
    "items", "stray", "memory", "repeated", "unsent", "unlogged", "page_errors", "log_errors",
    "trouble", "reload_s", "restart_s", "wyoming_ms", "wyoming_texts", "page_ms", "encode_ms",
    "decode_ms",
)  # fmt: skip
COUNTS = ("disorder", "partials", "broken_partials", "assist_astray", "page_behind")


class Checkpoint:
    """A file with a line for what was chosen, and one for each block that is done."""

    def __init__(self, file: Path, header: Record, *, resume: bool) -> None:
        """Raise ValueError when the evening to go on with was another one."""
        self._file = file
        self.done: dict[int, Record] = {}
        if resume and file.exists():
            first, *lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
            differing = [key for key in header if first.get(key) != header[key]]
            if differing:
                raise ValueError(
                    f"{file} has an evening with another {', '.join(differing)}; run without "
                    "--resume, or with what it was begun with"
                )
            self.done = {one["block"]: one for one in lines}
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(header) + "\n", encoding="utf-8")

    def add(self, number: int, record: Record) -> None:
        """Keep a block's record."""
        self.done[number] = record = {"block": number, **record}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def merged(header: Record, blocks: Sequence[Record]) -> Record:
    """Return an evening's results: those of its blocks together."""
    evening: Record = dict(header)
    for key in LISTS:
        evening[key] = [one for block in blocks for one in block.get(key, ())]
    for key in COUNTS:
        evening[key] = sum(block.get(key, 0) for block in blocks)
    evening["quiet"] = [block["quiet"] for block in blocks]
    evening["killed"] = [fate(one) for one in evening["items"] if one["kind"] == "killed"]
    return evening


def fate(killed: Record) -> str:
    """Return what became of a sentence in whose midst the daemon was killed."""
    texts = [one["text"] + (" (late)" if one["late"] else "") for one in killed["heard"]]
    return " + ".join(texts) or ", ".join(killed["discarded"]) or "lost"


def scored(evening: Record) -> tuple[list[Row], Whole]:
    """Return the figures of an evening."""
    total = whole(evening["items"], evening["stray"], evening["quiet"])
    return rows(evening["items"]) or [row("all", [])], total


def summary(evening: Record) -> Record:
    """Return the figures as the JSON file has them."""
    groups, total = scored(evening)
    return {"groups": [{**asdict(one), "wer": one.wer} for one in groups], "whole": asdict(total)}


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
