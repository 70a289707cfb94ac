"""A small disk for tests of full ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(disk: Path, size: str) -> Iterator[Path]:
    """A disk of `size` (400k, 1m) on the new folder `disk`; skips the test where none can be."""
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "roomscribe-test", str(disk)]
    if (
        os.geteuid() != 0
        or subprocess.run(command, check=False, capture_output=True).returncode != 0
    ):
        pytest.skip("mounting a small disk needs root and CAP_SYS_ADMIN")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
