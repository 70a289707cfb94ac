"""Run `roomscribe` as its users do: in another process, with a command line."""

import functools
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from rigs.checkout import ROOT, environment as environment_of, require_model
from rigs.waiting import PATIENCE_S
from rigs.warm import WarmPython

PROGRAM = ("-m", "appliance")
OPENING = ("run", "transcribe", "doctor")
"""Commands that open the built-in model, unless they are told another one."""
OBEYING_MODES = () if os.geteuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Prefix of a command that makes root obey the modes of files."""


def roomscribe(
    *arguments: str | Path,
    stdin: bytes = b"",
    timeout_s: float = PATIENCE_S,
    environment: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
    program: Sequence[str] = PROGRAM,
    streams: Mapping[int, str | int | None] | None = None,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `roomscribe ARGUMENTS` and return its exit status and output.

    wrapper: a command that runs it. program: what Python runs in place of the package.
    streams: replaces standard streams by number: the path or number of a file, None for a closed
    one. fresh: start an interpreter in place of a fork of rigs.warm; a wrapper, another program and
    variables that an interpreter reads at its start imply it.
    """
    if arguments and arguments[0] in OPENING and tuple(program) == PROGRAM:
        require_model()
    variables = dict(environment or {})
    streams = streams or {}
    decides = {name for name in variables if name.startswith(("LD_", "PYTHON"))}
    with ExitStack() as opened:
        files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(stdin)
        files[0].seek(0)
        given: list[IO[bytes] | int] = [*files]
        for number, stream in streams.items():
            if isinstance(stream, str):
                given[number] = opened.enter_context(Path(stream).open("wb" if number else "rb"))
            elif stream is not None:
                given[number] = stream
        closed = [number for number, stream in streams.items() if stream is None]
        typed = [*map(str, arguments)]
        everything = os.environ | variables
        if fresh or wrapper or tuple(program) != PROGRAM or decides - {"PYTHONIOENCODING"}:
            command = [*wrapper, sys.executable, *program, *typed]
            status = _run_fresh(command, everything, given, closed, timeout_s)
        else:
            status = _warm_python().run(typed, everything, given, closed, timeout_s)
        for file in files[1:]:
            file.seek(0)
        return subprocess.CompletedProcess(
            typed, status, files[1].read().decode(), files[2].read().decode()
        )


def captured(
    *command: object, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command and return its status and its output as text; `more` goes to subprocess.run."""
    given, more = [str(word) for word in command], {"timeout": PATIENCE_S, **more}
    return subprocess.run(given, capture_output=True, text=True, check=check, **more)


def _run_fresh(
    command: Sequence[str],
    environment: Mapping[str, str],
    files: Sequence[IO[bytes] | int],
    closed: Sequence[int],
    timeout_s: float,
) -> int:
    """Run a new process with these standard streams, some of them closed; return its status."""
    if closed:
        closing = " ".join(f"{number}{'>' if number else '<'}&-" for number in closed)
        command = ["sh", "-c", f'exec "$@" {closing}', "sh", *command]
    stdin, stdout, stderr = files
    return subprocess.run(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        timeout=timeout_s,
        env=environment,
        cwd=ROOT,
        check=False,
    ).returncode


@functools.cache
def _warm_python() -> WarmPython:
    """Return this process's WarmPython; the fixture `warm_python` of conftest.py stops it."""
    return WarmPython()


def stop_warm_python() -> None:
    """End the process behind `roomscribe`, if there is one."""
    if _warm_python.cache_info().currsize:
        _warm_python().stop()
        _warm_python.cache_clear()


def start(
    *arguments: str | Path,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
    root: Path = ROOT,
) -> subprocess.Popen[bytes]:
    """Start `roomscribe ARGUMENTS`. program: what Python runs in its place; root: its checkout."""
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment_of(**dict(environment or {})),
        cwd=root,
    )


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the command's own lines on standard error."""
    return [line for line in done.stderr.splitlines() if line.startswith("roomscribe: ")]


def refusal(done: subprocess.CompletedProcess[str], status: int) -> str:
    """Return the one line with which a command ended with that status."""
    assert done.returncode == status, done.stderr
    (line,) = errors(done)
    return line


def is_gone(pid: int) -> bool:
    """Return whether the process has ended; a zombie has."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def text_of(line: str) -> str:
    """Return the text of a line of `roomscribe log`, behind time and confidence ("?" if the model
    was not fitted)."""
    return re.split(r"(?:\d%|\?)  ", line, maxsplit=1)[1]


@contextmanager
def following(
    config: Path, *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """Run `roomscribe log --follow`; yields the process and a function that returns the text of its
    next line."""
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
            until_s = time.monotonic() + PATIENCE_S
            while b"\n" not in kept:
                assert select.select([stream], [], [], max(0.0, until_s - time.monotonic()))[0]
                kept.extend(os.read(stream, 65536))
            line, _, rest = bytes(kept).partition(b"\n")
            kept[:] = rest
            return text_of(line.decode())

        try:
            yield process, next_line
        finally:
            process.kill()
