"""A function in a process of its own, for the doctor's checks and the benchmark's rows."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from appliance.system import Closing, one_line

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

REAP_S = 2.0
"""A killed process that exists for longer hangs in the kernel, and is left alone."""
PRINTED = 4096
"""Bytes of a child's output that are shown, from its end."""


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


class Child(Closing):
    """A function in a process of its own, which may hang, crash or be killed. For use in `with`.

    The child calls `work(connection, *arguments)`. What it sends on the connection (a
    multiprocessing.connection.Connection), and last what `work` returns, is received here in its
    order. The child has a session of its own, no standard input, the usual SIGINT and SIGTERM, and
    what it prints is kept in memory. All of it is killed when the block ends.

    start="spawn" begins with a fresh interpreter: `work` is a function of a module, its arguments
    are pickled, and the libraries that read `environment` when they are loaded see it. start="fork"
    is quick, and only for a process without threads and without libraries that have any.
    """

    def __init__(
        self,
        work: Callable[..., object],
        *arguments: object,
        start: Literal["spawn", "fork"] = "spawn",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process. Raises OSError."""
        from multiprocessing import get_context

        context = get_context(start)
        self._connection, theirs = context.Pipe()
        self._output, self._ended = os.memfd_create("output"), False
        output = f"/proc/{os.getpid()}/fd/{self._output}"
        order = theirs, output, work, arguments
        # typeshed: the base of both contexts has no Process
        self._process = context.Process(target=_run, args=order, daemon=True)  # type: ignore[attr-defined]
        before = dict(os.environ)
        os.environ.update(environment or {})
        try:
            self._process.start()
        except BaseException:
            self._connection.close()
            os.close(self._output)
            raise
        finally:
            theirs.close()
            os.environ.clear()
            os.environ.update(before)

    def receive(self, within_s: float) -> Any:
        """Return the child's next message; the last one is what its function returned.

        Raises TimeoutError after `within_s`, ChildFailedError if the function raised, and
        ChildDiedError if the process ended.
        """
        if not self._connection.poll(max(0.0, within_s)):
            raise TimeoutError(f"no answer after {within_s:g} s")
        try:
            message = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._death() from None
        if isinstance(message, _Failed):
            raise ChildFailedError(message)
        return message

    def close(self) -> None:
        """Kill the child, unless it has ended."""
        self._connection.close()
        self._end(0.0)
        os.close(self._output)

    def _end(self, wait_s: float) -> None:
        if self._ended:  # its number may be another's by now
            return
        self._ended = True
        self._process.join(wait_s)
        with suppress(OSError):  # it has a group of its own number once it has begun
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join(REAP_S)
        if self._process.is_alive():  # or this interpreter waits for it at its own end
            from multiprocessing.process import _children  # type: ignore[attr-defined]

            _children.discard(self._process)

    def _death(self) -> ChildDiedError:
        self._end(REAP_S)
        status = self._process.exitcode
        size = os.fstat(self._output).st_size
        printed = os.pread(self._output, PRINTED, max(0, size - PRINTED)).decode(errors="replace")
        number = max(0, -(status or 0))
        how = f"signal {number}" if number else f"status {status}"
        with suppress(ValueError):  # not every real-time signal has a name, and 0 has none
            how = signal.Signals(number).name
        return ChildDiedError(how, number, printed)


def _run(
    connection: Connection, output: str, work: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    """Run the function in the child and send its result."""
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    try:
        connection.send(work(connection, *arguments))
    except Exception as error:
        with suppress(OSError):  # the parent may have ended
            connection.send(_Failed(f"{type(error).__name__}: {one_line(error)}"))
