"""Runs the command as its user does: another process, from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rigs.checkout import HOME_EN, ROOT, SPEECH

__all__ = ["HOME_EN", "ROOT", "SPEECH", "errors", "roomscribe", "start"]


def roomscribe(
    *arguments: str | Path,
    stdin: bytes = b"",
    timeout_s: float = 60,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Exit status and output of `roomscribe ARGUMENTS`."""
    done = subprocess.run(
        [sys.executable, "-m", "appliance", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        timeout=timeout_s,
        env=os.environ | dict(environment or {}),
        cwd=ROOT,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def start(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """A running `roomscribe ARGUMENTS`, its log on a pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "appliance", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        cwd=ROOT,
    )


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The command's own lines on standard error."""
    return [line for line in done.stderr.splitlines() if line.startswith("roomscribe: ")]
