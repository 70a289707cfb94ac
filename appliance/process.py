"""Processes of our own, each an interpreter that runs one module's `main` and ends with its parent.

The recorder and the NPU's encoder are such processes: their drivers may hang, crash or hold the
interpreter's lock, and a process can be killed, or left behind if not even that ends it. It gets no
descriptor but its standard streams and those that it is given, so it never holds the log's lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from {} import main; main()"
PR_SET_PDEATHSIG = 1
"""Of prctl(2). The program setpriv would need capset, which the unit forbids."""
_LIBC = ctypes.CDLL(None)


def start_process(
    module: str, *arguments: str, command: Sequence[str] = (), descriptors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start `main` of a module, which finds the parent's id and then `arguments` in sys.argv, with
    pipes as its standard input and output. It ends when the calling thread does.

    `command` replaces the program. The process inherits `descriptors`. Raises OSError.
    """
    import subprocess  # which the process itself does without

    # isolated: the environment reaches only the libraries; no bytecode is written
    program = (sys.executable, "-I", "-S", "-B", "-c", PROGRAM.format(module))
    paths = json.dumps([str(ROOT), *sys.path])
    return subprocess.Popen(
        command or (*program, str(os.getpid()), *arguments, paths),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        pass_fds=descriptors,
    )


def end_process(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Kill a process and close its pipes; return True if it has ended after at most `within_s`. One
    that is stuck in the kernel ends later, when its system call returns."""
    import subprocess

    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(within_s)
    return process.returncode is not None


def how_it_ended(status: int | None) -> str:
    """Return the exit status of a process in words."""
    if status is None or status >= 0:
        return f"the end of its process (exit status {status})"
    return f"the end of its process by {signal.Signals(-status).name}"


def begin() -> int:
    """In the process: ignore the signals that stop the parent, end with it, and send whatever
    libraries print nowhere. Return the descriptor of the parent's pipe."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    if os.getppid() != int(sys.argv[1]):
        os._exit(0)
    output = os.dup(1)
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return output


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; also between fork and exec."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
