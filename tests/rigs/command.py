"""Runs the command as its user does: another process, from the command line."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rigs.checkout import ROOT, environment as environment_of

PROGRAM = ("-m", "appliance")
LINE_WITHIN_S = 60.0
OBEYING_MODES = () if os.geteuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""What keeps root to the modes of files, as other users are."""


def roomscribe(
    *arguments: str | Path,
    stdin: bytes = b"",
    timeout_s: float = 60,
    environment: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
    program: Sequence[str] = PROGRAM,
) -> subprocess.CompletedProcess[str]:
    """Exit status and output of `roomscribe ARGUMENTS`, run by the command `wrapper`, if any;
    `program` is what Python runs."""
    done = subprocess.run(
        [*wrapper, sys.executable, *program, *map(str, arguments)],
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


def start(
    *arguments: str | Path,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
    root: Path = ROOT,
) -> subprocess.Popen[bytes]:
    """A running `roomscribe ARGUMENTS`; `program` is what Python runs in its place, `root` the
    checkout whose package it is."""
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment_of(**dict(environment or {})),
        cwd=root,
    )


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The command's own lines on standard error."""
    return [line for line in done.stderr.splitlines() if line.startswith("roomscribe: ")]


def is_gone(pid: int) -> bool:
    """True when no such process lives; one that nobody has reaped yet is dead all the same."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@contextmanager
def following(
    config: Path, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """`roomscribe log --follow`, and what gives its next line's text."""
    with start(
        "log",
        "--follow",
        "--config",
        config,
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        stream, kept = process.stdout.fileno(), bytearray()

        def next_line() -> str:
            until_s = time.monotonic() + LINE_WITHIN_S
            while b"\n" not in kept:
                assert select.select([stream], [], [], max(0.0, until_s - time.monotonic()))[0]
                kept.extend(os.read(stream, 65536))
            line, _, rest = bytes(kept).partition(b"\n")
            kept[:] = rest
            return line.decode().split("%  ", 1)[1]

        try:
            yield process, next_line
        finally:
            process.kill()
