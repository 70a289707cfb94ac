"""A function in a process of its own, for the doctor's checks and the benchmark's rows."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from appliance.system import one_line

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

REAP_S = 2.0
"""A killed process that exists for longer hangs in the kernel, and is left alone."""
PRINTED = 4096
"""Bytes of a child's output that are kept, from its end."""
PROGRAM = (
    "import json, sys; descriptor = int(sys.argv.pop()); sys.path[:] = json.loads(sys.argv.pop()); "
    "from appliance.lab.child import spawned; spawned(descriptor)"
)


class ChildDiedError(Exception):
    """The process ended before it answered."""

    def __init__(self, how: str, number: int, printed: str) -> None:
        super().__init__(how)
        self.how = how
        """A signal's name, or `status 3`."""
        self.number = number
        """The signal; 0 when the process ended by itself."""
        self.printed = printed
        """The end of what it printed."""


class ChildFailedError(Exception):
    """The function in the process raised; the text is the exception's type and message."""


class _Failed(str):
    """Message of a child whose function raised."""


class Child:
    """A function in a process of its own, which may hang, crash or be killed. For use in `with`.

    The child calls `work(connection, *arguments)`. What it sends on the connection (a
    multiprocessing.connection.Connection), and last what `work` returns, is received here in its
    order. The child has a session of its own, no standard input, the usual SIGINT and SIGTERM, and
    what it prints comes here, too: `printed`. All of it is killed when the block ends.

    start="spawn" begins with a fresh interpreter: `work` is a function of a module (not of the main
    one, which is not imported there), its arguments are pickled, `environment` is set from its
    beginning, so that the libraries which read it when they are loaded see it. start="fork" is
    quick, and only for a process without threads and without libraries that have any. Two pipes and
    no semaphores, which systemd's sandbox may forbid; and not multiprocessing's own way to spawn,
    whose resource tracker, 13 MB, stays as long as the parent.
    """

    def __init__(
        self,
        work: Callable[..., object],
        *arguments: object,
        start: Literal["spawn", "fork"] = "spawn",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process. Raises OSError."""
        from multiprocessing import Pipe
        from multiprocessing.context import ForkProcess

        order = pickle.dumps((work, arguments)) if start == "spawn" else b""
        self._connection, theirs = Pipe()
        self._output, output = Pipe(duplex=False)
        self._printed, self._ended = b"", False
        self._process: _Interpreter | ForkProcess
        try:
            if start == "spawn":
                self._process = _Interpreter(theirs, output, environment or {})
            else:
                ends = self._connection, self._output
                self._process = ForkProcess(
                    target=_fork,
                    args=(ends, theirs, output, environment or {}, work, arguments),
                    daemon=True,
                )
                self._process.start()
        except BaseException:
            self._connection.close()
            self._output.close()
            raise
        finally:
            theirs.close()
            output.close()
        if order:
            with suppress(BrokenPipeError, ConnectionResetError):
                self._connection.send_bytes(order)

    @property
    def printed(self) -> str:
        """The end of its standard output and standard error."""
        return self._printed.decode(errors="replace")

    def receive(self, within_s: float) -> Any:
        """Return the child's next message; the last one is what its function returned.

        Raises TimeoutError after `within_s`, ChildFailedError if the function raised, and
        ChildDiedError if the process ended.
        """
        from multiprocessing.connection import wait

        deadline_s = time.monotonic() + within_s
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            open_ends = [end for end in (self._connection, self._output) if not end.closed]
            ready = wait(open_ends, left_s)
            if self._output in ready:
                self._read_output()
            if self._connection in ready:
                try:
                    message = self._connection.recv()
                except (EOFError, ConnectionResetError):
                    raise self._death() from None
                if isinstance(message, _Failed):
                    raise ChildFailedError(message)
                return message
            if not left_s:
                raise TimeoutError(f"no answer after {within_s:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._output.close()
        self._end(0.0)

    def _end(self, wait_s: float) -> None:
        if self._ended:  # its number may be another's by now
            return
        self._ended = True
        self._process.join(wait_s)
        if self._process.pid:
            with suppress(OSError):  # it has a group of its own number once it has begun
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join(REAP_S)
        if self._process.is_alive():  # or this interpreter waits for a forked one at its own end
            from multiprocessing.process import _children  # type: ignore[attr-defined]

            _children.discard(self._process)

    def _death(self) -> ChildDiedError:
        self._end(REAP_S)
        status = self._process.exitcode
        while not self._output.closed and self._output.poll(0):
            self._read_output()
        number = max(0, -(status or 0))
        how = f"signal {number}" if number else f"status {status}"
        with suppress(ValueError):  # not every real-time signal has a name, and 0 has none
            how = signal.Signals(number).name
        return ChildDiedError(how, number, self.printed)

    def _read_output(self) -> None:
        data = os.read(self._output.fileno(), 1 << 16)
        self._printed = (self._printed + data)[-PRINTED:]
        if not data:
            self._output.close()


class _Interpreter(subprocess.Popen[bytes]):
    """A fresh interpreter that waits for its function, with the interface of ForkProcess."""

    def __init__(
        self, theirs: Connection, output: Connection, environment: Mapping[str, str]
    ) -> None:
        path = json.dumps([str(Path(__file__).resolve().parents[2]), *sys.path])
        super().__init__(
            (sys.executable, "-I", "-B", "-c", PROGRAM, path, str(theirs.fileno())),
            stdin=subprocess.DEVNULL,
            stdout=output.fileno(),
            stderr=output.fileno(),
            pass_fds=(theirs.fileno(),),
            env={**os.environ, **environment},
            start_new_session=True,
        )

    @property
    def exitcode(self) -> int | None:
        """As Popen's returncode."""
        return self.returncode

    def is_alive(self) -> bool:
        """Return False once it has ended."""
        return self.poll() is None

    def join(self, within_s: float) -> None:
        """Wait for its end."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(within_s)


def spawned(descriptor: int) -> None:
    """Run the child in a fresh interpreter."""
    from multiprocessing.connection import Connection

    connection = Connection(descriptor)
    _run(connection, lambda: pickle.loads(connection.recv_bytes()))


def _fork(
    inherited: Iterable[Connection],
    connection: Connection,
    output: Connection,
    environment: Mapping[str, str],
    *order: object,
) -> None:
    """Run the forked child."""
    os.setsid()
    for end in inherited:
        end.close()
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    os.environ.update(environment)
    _run(connection, lambda: order)


def _run(connection: Connection, order: Callable[[], Any]) -> None:
    """Run the ordered function and send its result."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    try:
        work, arguments = order()
        connection.send(work(connection, *arguments))
    except Exception as error:
        with suppress(OSError):  # the parent may have ended
            connection.send(_Failed(f"{type(error).__name__}: {one_line(error)}"))
